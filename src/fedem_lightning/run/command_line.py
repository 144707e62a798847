"""Hydra's part of a command: mistakes in one line, folders made before a run, commands to copy that go on with it."""

import difflib
import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from hydra import compose, initialize_config_dir
from hydra._internal.utils import get_args_parser
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Quote, QuotedString
from hydra.errors import MissingConfigException, OverrideParseException
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigAttributeError, ConfigKeyError

from fedem_lightning.settings import configs as configs  # it hands Hydra what stands in no file of its own
from fedem_lightning.settings.errors import UserError, installs, meant, one_line, require
from fedem_lightning.settings.keys import CALLS_RUN, CONFIG_DIR, FINDS_RUN, SAME, choices, fold, nearest

_ASIDE = re.compile(r"^\s*(See https|full_key: |object_type=|Config search path|provider=).*$", re.MULTILINE)
"""Lines of Hydra's messages that tell a user nothing."""


def check_words(words: Sequence[str]) -> None:
    """UserError: Hydra does not know an option; or a search of `+tune` is over several methods, data sets or seeds."""
    parser = get_args_parser()

    def refuse(message: str) -> NoReturn:
        near = meant(message.rpartition(" ")[2], parser._option_string_actions)
        raise UserError(f"{message}{near or '; --help lists options'}")

    parser.error = refuse  # type: ignore[method-assign]
    typed = parser.parse_args([*words]).overrides
    if not any(word.lstrip("+").startswith("tune=") for word in typed):
        return
    with suppress(OverrideParseException):  # which Hydra says
        parsed = [word for word in OverridesParser.create().parse_overrides(typed) if word.is_discrete_sweep()]
        several = " ".join(str(word.input_line) for word in parsed if word.key_or_group in (*CALLS_RUN, "case", "seed"))
        require(not several, f"+tune: {several} would be one search, which ends with one of them; tune each alone")


def composed(words: list[str], **options: bool) -> DictConfig:
    """The configuration that these overrides make, not run; UserError if one cannot be read, or means nothing."""
    try:
        with initialize_config_dir(str(CONFIG_DIR), version_base="1.3"):
            return compose("config", words, **options)
    except Exception as error:  # such as dataset=null
        raise not_composed(error, words) from error


def not_composed(error: Exception, words: Sequence[str]) -> UserError:
    """The line for whatever Hydra raises before a run begins."""
    result = UserError(_line(error, words))
    result.__cause__ = error  # HYDRA_FULL_ERROR=1 shows it
    return result


def _line(error: Exception, words: Sequence[str]) -> str:
    message, cause = str(error), error.__cause__
    if isinstance(error, MissingConfigException) and error.missing_cfg_file and error.options:
        group, _, choice = error.missing_cfg_file.rpartition("/")
        if choice == "optuna":
            return f"hydra/sweeper=optuna: not installed; {installs('optuna')}"
        like = nearest(choice, error.options)
        meant = f"did you mean {like}?" if like else f"there are {', '.join(sorted(error.options))}"
        if group == "algorithm" and fold(choice) in SAME:
            return f"algorithm={choice}: here it is algorithm={SAME[fold(choice)]}"
        return f"{group}={choice}: no such choice; {meant}"
    if isinstance(error, OverrideParseException):
        return f"{error.override}: {one_line(_ASIDE.sub('', message))}"
    unknown = re.match(r"Could not override '([^']+)'", message)
    if unknown and isinstance(cause, ConfigKeyError | ConfigAttributeError) and cause.parent_node is not None:
        key = unknown[1]
        if key.startswith(str(cause.full_key)):  # else the value has a key that is none
            known = _dotted(OmegaConf.to_container(cause.parent_node._get_root()))
            near = nearest_keys(key, [k for k in known if k.startswith("hydra") == key.startswith("hydra")])
            groups = [] if "." in key else difflib.get_close_matches(key, choices(), n=1)
            near = near or [f"+{group}" for group in groups]
            meant = f"did you mean {' or '.join(near)}?" if near else f"to add it: +{key}=..."
            return f"{key}: no such key; {meant}"
    lines = [_ASIDE.sub("", text) for text in dict.fromkeys([message, str(cause or "")])]
    line = one_line(": ".join(filter(None, lines))) or type(error).__name__
    keys = {word: word.lstrip("+~").partition("=")[0] for word in words}
    about = [word for word, key in keys.items() if "." not in key]
    return line if any(key in line for key in keys.values()) else f"{' '.join(about)}: {line}"


def _dotted(tree: Any, prefix: str = "") -> Iterator[str]:
    """All dotted keys, those of parts as well."""
    for name, part in tree.items() if isinstance(tree, dict) else ():
        yield f"{prefix}{name}"
        yield from _dotted(part, f"{prefix}{name}.")


def nearest_keys(key: str, keys: Sequence[str]) -> list[str]:
    """The keys that `key` may have meant, three at most: of the same name elsewhere, else the one spelt most alike."""
    name = key.rpartition(".")[2]
    names = {k: k.rpartition(".")[2] for k in keys if not k.rpartition(".")[2].startswith("_")}
    initials = "".join(word[:1] for word in name.split("_")) if "_" in name else name  # learning_rate is lr
    result = [k for k, other in names.items() if other in (name, initials)]
    result = result or difflib.get_close_matches(key, names, n=1)
    part = key.partition(".")[0]
    return ([k for k in result if k.partition(".")[0] == part] or result)[:3]


_made: Path | None = None  # the folder of the present run or sweep
_there: Path | None = None  # the nearest folder that was there before it
_ended_sweep: Path | None = None


class JobFolders(Callback):
    """Of Hydra: notes which folders are there before it makes others, and which sweep has ended."""

    def on_run_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Before a single run."""
        _begin(config.hydra.run.dir)

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Before a sweep."""
        _begin(config.hydra.sweep.dir)

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        """After a sweep."""
        global _ended_sweep
        _ended_sweep = Path(config.hydra.sweep.dir)


def _begin(folder: str) -> None:
    global _made, _there, _ended_sweep
    _made, _ended_sweep = Path(os.path.abspath(folder)), None
    _there = next(place for place in (_made, *_made.parents) if os.path.lexists(place))


def ended_sweep() -> Path | None:
    """The folder of this process's sweep, all of whose jobs have ended; None if there is none."""
    return _ended_sweep


def remove_if_empty(folder: Path) -> None:
    """Removes a folder, and those above it that were made for it, as far as they are empty."""
    for place in (folder.absolute(), *folder.absolute().parents):
        if _there is None or place in (_there, *_there.parents):
            return
        try:
            place.rmdir()
        except OSError:  # it has content
            return


def remove_what_is_left() -> None:
    """Leaves no folder of a command that was refused; of a sweep none in which Hydra alone has written."""
    if _made is None or not _made.is_dir():
        return
    if _made != _there and [path.name for path in _made.iterdir()] == ["multirun.yaml"]:  # Hydra's
        (_made / "multirun.yaml").unlink()
    remove_if_empty(_made)


def resume_command(folder: Path, overrides: Sequence[str], flags: Sequence[str] = ()) -> str:
    """What continues the run or the sweep in `folder`, quoted for Hydra and for a shell."""
    kept = [override for override in overrides if override.lstrip("+").split("=")[0] not in FINDS_RUN]
    quoted = QuotedString(str(folder), Quote.double).with_quotes()
    ours = os.path.dirname(shutil.which("python") or "") == os.path.dirname(sys.executable)
    python = "python" if ours else sys.executable  # which a shell does not find by that name
    return shlex.join([python, "-m", "fedem_lightning", *flags, *kept, "ckpt_path=auto", f"run_dir={quoted}"])


def run_command(overrides: Sequence[str], flags: Sequence[str] = ()) -> str:
    """The command line of a run, quoted for a shell; of a job of a sweep, the one that makes this job alone."""
    return shlex.join(["python", "-m", "fedem_lightning", *flags, *overrides])
