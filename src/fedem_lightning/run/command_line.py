"""Mistakes on the command line that Hydra would answer with a traceback, a page of usage, or not at all."""

import difflib
from pathlib import Path
from typing import NoReturn

from hydra._internal.utils import get_args_parser
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Override, QuotedString
from hydra.errors import HydraException

from fedem_lightning.errors import UserError, require
from fedem_lightning.run.misspelt import no_choice
from fedem_lightning.run.usage import choices

_GRAMMAR = "https://hydra.cc/docs/1.3/advanced/override_grammar/basic"
_NEEDED = {
    *("adaptation", "algorithm", "backbone", "callbacks", "dataset", "engine", "logger", "trainer"),
    *("ckpt_path", "data_dir", "default_lr", "fidelity", "learning_rates", "local_training", "method_settings"),
    *("mixing_weights", "n_components", "run_dir", "seed"),
    *("trainer.devices", "trainer.max_epochs", "trainer.precision"),
}
"""What the run and the configuration read."""
_OF_ONE = {"adaptation", "algorithm", "backbone", "dataset", "dataset/augmentation", "engine", "trainer"}
"""Groups of which a run takes one choice; it may combine several of others, such as logger=[wandb,tensorboard]."""


def check_command_line(words: list[str], config_dir: Path) -> None:
    """Looks at what the user typed.

    Args:
        words: of the command line.
        config_dir: of the package.

    Raises:
        UserError: an option that does not exist, an override that cannot be read, or one that the run cannot do with.

    """
    parser = get_args_parser()
    parser.error = _refuse  # type: ignore[method-assign]
    given, unknown = parser.parse_known_args(words)
    for word in unknown:
        option = word.partition("=")[0]
        require(option.startswith("-"), f"{word}: options such as -m stand before all KEY=VALUE, or after them")
        near = difflib.get_close_matches(option, [*parser._option_string_actions, "--help", "--version"], n=1)
        raise UserError(f"{option}: no such option; " + (f"did you mean {near[0]}?" if near else "see --help"))
    groups = choices(config_dir) | (choices(Path(given.config_dir)) if given.config_dir else {})
    for override in map(_read, given.overrides):
        _check_removed(override)
        _check_sweep(override, given.multirun or "hydra.mode=MULTIRUN" in given.overrides)
        if override.key_or_group in groups:
            _check_choice(override, groups[override.key_or_group])


def _refuse(message: str) -> NoReturn:
    raise UserError(message)


def _read(word: str) -> Override:
    require("=" in word or word.startswith("~"), f"{word}: expected KEY=VALUE, +KEY=VALUE or ~KEY")
    try:
        return OverridesParser.create().parse_overrides([word])[0]
    except HydraException:
        how = "close brackets and quotes, and put special characters in quotes"
        raise UserError(f"{word}: Hydra cannot read this; {how} ({_GRAMMAR})") from None


def _check_removed(override: Override) -> None:
    key = override.key_or_group
    needed = key in _NEEDED or key.endswith("._target_")
    require(not (override.is_delete() and needed), f"{key}: it cannot be removed, the run needs it")


def _check_sweep(override: Override, multirun: bool) -> None:
    key, _, values = str(override.input_line).partition("=")
    several = f"{key}: several values need -m, which makes a run of each: -m {key}={values}"
    listed = "" if override.key_or_group in _OF_ONE else f" (a list is {key}=[{values}])"
    require(multirun or not override.is_sweep_override(), several + listed)


def _check_choice(override: Override, options: list[str]) -> None:
    """Hydra takes the name of a choice, a list of names, or a dictionary of keys; a sweep has several of them."""
    group, value = override.key_or_group, override.value()
    typed = str(override.input_line).partition("=")[2]
    if override.is_delete() or isinstance(value, dict):
        return
    if isinstance(value, list):
        single = f"{group}={typed}: expected one choice; -m {group}={','.join(map(str, value))} makes a run of each"
        require(group not in _OF_ONE, single)
    swept = value.list if isinstance(value, ChoiceSweep) else [] if override.is_sweep_override() else [value]
    for name in [name for choice in swept for name in (choice if isinstance(choice, list) else [choice])]:
        named = isinstance(name, str | QuotedString) and name != ""
        require(named, no_choice(group, "null" if name is None else str(name), options))
