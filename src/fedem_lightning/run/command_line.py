"""Mistakes on the command line that Hydra would answer with a traceback, a page of usage, or not at all."""

import argparse
import difflib
from pathlib import Path
from typing import NoReturn

from hydra import compose, initialize_config_dir
from hydra._internal.utils import get_args_parser
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Override, QuotedString, RangeSweep
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf

from fedem_lightning.errors import UserError, one_line, require
from fedem_lightning.run.failures import user_message
from fedem_lightning.run.misspelt import likely_meant, no_choice
from fedem_lightning.settings.expected import given as shown
from fedem_lightning.settings.keys import KEYS
from fedem_lightning.settings.shipped import CONFIG_DIR, choices

_GRAMMAR = "https://hydra.cc/docs/1.3/advanced/override_grammar/basic"
_NEEDED = {key.name for key in KEYS if key.needed}
_LONGEST_KEY = 200
"""Characters: Hydra looks for a file of the key's name, and file systems take up to 255 bytes."""
_OF_ONE = {key.name for key in KEYS if key.single}


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
    if given.package is not None or given.config_name is not None:
        _check_flags(given)


def composed(words: list[str]) -> DictConfig:
    """The configuration that these overrides make, for a command that does not run it.

    Raises:
        UserError: an override cannot be read, or means nothing.

    """
    for word in words:
        _read(word)
    try:
        with initialize_config_dir(str(CONFIG_DIR), version_base="1.3"):
            return compose("config", words)
    except HydraException as error:
        raise likely_meant(error, words) or error from None
    except Exception as error:  # such as dataset=null
        raise not_composed(error, words) from error


def not_composed(error: Exception, words: list[str]) -> UserError:
    """The line for whatever Hydra raises before a run begins: what was typed, or a file of configurations, is wrong."""
    names_nothing = isinstance(error, OSError) and error.filename is None  # Hydra's, on a file of a number
    message = None if names_nothing else user_message(error)
    line = UserError(message or _wrong_file(words) or _wrong_words(error, words))
    line.__cause__ = error  # HYDRA_FULL_ERROR=1 shows it
    return line


def _wrong_words(error: Exception, words: list[str]) -> str:
    hydras = [word for word in words if word.lstrip("+~").startswith(("hydra", "-"))]
    typed = ", ".join(hydras or words) or "the configuration"
    said = one_line(error)
    reason = said if " " in said else f"{type(error).__name__} {said}".strip()
    return f"{typed}: Hydra cannot use this ({reason})"


def _wrong_file(words: list[str]) -> str | None:
    """The first file of configurations of the user's that is none, and why; Hydra does not always name it."""
    folders = _config_dirs(get_args_parser().parse_known_args(words)[0])
    for path in (path for folder in folders for path in sorted(folder.rglob("*.yaml")) if path.is_file()):
        try:
            tree = OmegaConf.to_container(OmegaConf.load(path))
        except Exception as error:  # no text, no YAML, a number, ...
            return f"{path}: expected a file of keys with values ({one_line(error)})"
        if not isinstance(tree, dict):
            return f"{path}: expected keys with values, got {shown(tree)}"
        defaults = tree.get("defaults", [])
        if not isinstance(defaults, list):
            return f"{path}: defaults: expected a list, got {shown(defaults)}"
        if path.stem in defaults:
            return f"{path}: defaults: the file names itself"
    return None


def _config_dirs(given: argparse.Namespace) -> list[Path]:
    """Folders of configurations that the user has named."""
    named = [given.config_dir] if given.config_dir else []
    for override in map(_read, given.overrides):
        places = override.value()
        if override.key_or_group == "hydra.searchpath" and isinstance(places, list):
            named += [str(place).removeprefix("file://") for place in places]
    return [Path(place) for place in named]


def _check_flags(given: argparse.Namespace) -> None:
    """Looks for what --package and --config-name name, which Hydra would miss in the middle of its work."""
    name, folders = given.config_name or "config", [*_config_dirs(given), CONFIG_DIR]
    home = next((folder for folder in folders if (folder / f"{name}.yaml").is_file()), CONFIG_DIR)
    others = ",".join(f"file://{folder.absolute()}" for folder in folders if folder != home)
    words = [*given.overrides, *([f"hydra.searchpath=[{others}]"] if others else [])]
    try:
        with initialize_config_dir(str(home.absolute()), version_base="1.3"):
            config = compose(name, words, return_hydra_config=True)
    except Exception:  # Hydra says so itself
        return
    missing = next((key for key in sorted(_NEEDED) if "." not in key and key not in config), None)
    require(missing is None, f"--config-name {name}: it lacks {missing}; begin the file with defaults: [config]")
    there = given.package in (None, "_global_") or OmegaConf.select(config, given.package) is not None
    require(there, f"--package {given.package}: the configuration has no such key")


def _refuse(message: str) -> NoReturn:
    raise UserError(message)


def _read(word: str) -> Override:
    require("=" in word or word.startswith("~"), f"{word}: expected KEY=VALUE, +KEY=VALUE or ~KEY")
    require(word.isascii() or _is_text(word), f"{word}: it has bytes that are no text (UTF-8)")
    try:
        override = OverridesParser.create().parse_overrides([word])[0]
    except HydraException:
        how = "close brackets and quotes, and put special characters in quotes"
        raise UserError(f"{word}: Hydra cannot read this; {how} ({_GRAMMAR})") from None
    except RecursionError:
        raise UserError(f"{word}: it is nested too deeply") from None
    except ValueError as error:  # of Python: a number of more than 4300 digits
        raise UserError(f"{word}: Hydra cannot read this ({one_line(error)})") from None
    key = override.key_or_group
    require(key not in ("", "hydra") and len(key) <= _LONGEST_KEY, f"{word}: expected KEY=VALUE, +KEY=VALUE or ~KEY")
    return override


def _is_text(word: str) -> bool:
    return not any("\ud800" <= letter <= "\udfff" for letter in word)


def _check_removed(override: Override) -> None:
    key = override.key_or_group
    needed = key in _NEEDED or key.endswith("._target_")
    require(not (override.is_delete() and needed), f"{key}: it cannot be removed, the run needs it")


def _check_sweep(override: Override, multirun: bool) -> None:
    key, _, values = str(override.input_line).partition("=")
    several = f"{key}: several values need -m, which makes a run of each: -m {key}={values}"
    listed = "" if override.key_or_group in _OF_ONE else f" (a list is {key}=[{values}])"
    require(multirun or not override.is_sweep_override(), several + listed)
    value = override.value()
    require(not (isinstance(value, RangeSweep) and value.step == 0), f"{key}={values}: the step of a range is not 0")


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
