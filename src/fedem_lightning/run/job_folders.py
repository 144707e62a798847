"""Run folders before a run begins, and the commands that continue what is in them, to be copied into a shell.

Folders of a sweep get names; those that stay empty are removed.
"""

import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra._internal.utils import get_args_parser
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Quote, QuotedString
from hydra.errors import HydraException
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf, open_dict, read_write

from fedem_lightning.settings.keys import KEYS
from fedem_lightning.startup.process import raise_at_a_stop, say_at_a_stop

PACKAGE = "fedem_lightning"
FINDS_RUN = tuple(key.name for key in KEYS if key.finds_run)
MULTIRUN = "multirun.yaml"
"""What Hydra writes into the folder of a sweep."""

_before: set[Path] = set()  # folders that were there before Hydra made any
_made: Path | None = None  # the folder that was made last
_sweep_command: str | None = None  # the command that continues the sweep of this process
_new_sweep: Path | None = None  # the folder of this process's sweep, if it is a new one
_ended_sweep: Path | None = None  # the folder of this process's sweep once its jobs have ended


class RunRefused(BaseException):
    """The folder cannot be had; the message says why. Hydra would make a warning of an `Exception`."""


class JobFolders(Callback):
    """Of Hydra: makes the folder, notes what a sweep is, and names its jobs' folders after the keys that differ."""

    def on_run_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Before a single run."""
        _make(config.hydra.run.dir)
        leave_sweep()

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Before a sweep."""
        global _new_sweep, _ended_sweep
        _ended_sweep = None
        _make(config.hydra.sweep.dir)
        folder = Path(os.path.abspath(config.hydra.sweep.dir))
        _new_sweep = None if (folder / MULTIRUN).exists() else folder
        _name_by_swept_keys(config)
        begin_sweep(Path(config.hydra.sweep.dir), sys.argv[1:])
        if "BasicLauncher" not in config.hydra.launcher._target_:
            raise_at_a_stop()

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        """After a sweep, when nothing is left to stop."""
        global _ended_sweep
        _ended_sweep = Path(config.hydra.sweep.dir)
        say_at_a_stop(None)


def remove_if_empty(folder: Path) -> None:
    """Removes a folder, and those above it, as far as they are empty and were made for this run."""
    for place in (folder, *folder.parents):
        if not _before or place in _before:
            return
        try:
            place.rmdir()
        except OSError:  # it has content
            return


def remove_what_is_left() -> None:
    """Leaves no folder of a run that Hydra did not begin, nor anything of a new sweep whose jobs were all refused.

    Not even the file that Hydra writes for a sweep stays.
    """
    global _made, _new_sweep
    folder, _new_sweep = _new_sweep, None
    if folder is not None and folder.is_dir() and all(p in _before for p in folder.iterdir() if p.is_dir()):
        (folder / MULTIRUN).unlink(missing_ok=True)
    if _made is not None:
        remove_if_empty(_made)
    _made = None


def _make(name: str) -> None:
    """Makes a folder that a run may write in."""
    global _made
    if not name:
        raise RunRefused("run_dir: expected the name of a folder, got an empty one")
    folder = _made = Path(os.path.abspath(name))
    _look_at(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        nearest = next(place for place in (folder, *folder.parents) if os.path.exists(place))
        if not nearest.is_dir():
            raise RunRefused(f"run_dir: {nearest} is a file, expected a folder") from None
        remove_if_empty(nearest)
        raise RunRefused(f"run_dir: cannot make the folder {folder} ({error.strerror})") from None


def _look_at(folder: Path) -> None:
    _before.clear()
    _before.update(place for place in (folder, *folder.parents) if os.path.exists(place))
    if os.path.isdir(folder):  # which a name that is too long does not stop
        _before.update(place for place in folder.iterdir() if place.is_dir())


def _name_by_swept_keys(config: DictConfig) -> None:
    """Leaves the keys that are the same in all jobs out of hydra.job.override_dirname."""
    params = OmegaConf.select(config, "hydra.sweeper.params") or {}
    given = [f"{key}={value}" for key, value in params.items()] + list(config.hydra.overrides.task)
    try:
        overrides = OverridesParser.create().parse_overrides(given)
    except HydraException:
        return  # the sweeper says so itself
    swept = {override.key_or_group: override.is_sweep_override() for override in overrides}  # later ones count
    name = config.hydra.job.config.override_dirname
    left_out = [*name.exclude_keys, *(key for key, differs in swept.items() if not differs)]
    more = [f"hydra.job.config.override_dirname.exclude_keys={_quoted(left_out)}"]
    pattern = OmegaConf.to_container(config.hydra.sweep, resolve=False)["subdir"]  # type: ignore[index,call-overload]
    if "override_dirname" in str(pattern) and not swept.keys() - set(left_out):
        more.append("hydra.sweep.subdir=${hydra.job.num}")
    with read_write(config), open_dict(config):
        config.hydra.overrides.hydra.extend(more)


def _quoted(keys: list[str]) -> str:
    return "[" + ",".join(f"'{key}'" for key in keys) + "]"


def resume_command(
    folder: Path, overrides: Sequence[str], flags: Sequence[str] = (), own: bool = True, module: str = PACKAGE
) -> str:
    """What continues the run in `folder`, quoted for Hydra and for a shell.

    Args:
        folder: of the run.
        overrides: what the run was started with; of a sweep, what this job was.
        flags: of Hydra, such as --config-dir, or of `module`.
        own: whether to continue from the run's own checkpoints; else from where it began.
        module: that runs it.

    """
    replaced = FINDS_RUN if own else ("run_dir",)
    kept = [override for override in overrides if override.lstrip("+").split("=")[0] not in replaced]
    begun_elsewhere = any(override.lstrip("+").startswith("ckpt_path=") for override in kept)
    checkpoint = [] if begun_elsewhere else ["ckpt_path=auto"]
    run_dir = "run_dir=" + QuotedString(str(folder), Quote.double).with_quotes()
    return shlex.join([_python(), "-m", module, *flags, *kept, *checkpoint, run_dir])


def run_command(overrides: Sequence[str], flags: Sequence[str] = (), module: str = PACKAGE) -> str:
    """The command line of a run, quoted for a shell; of a job of a sweep, the one that makes this job alone.

    Args:
        overrides: as the user typed them.
        flags, module: see `resume_command`.

    """
    return shlex.join(["python", "-m", module, *flags, *overrides])


def begin_sweep(folder: Path, words: Sequence[str]) -> None:
    """Notes what continues the sweep that begins in `folder` by these words of the command line.

    Finished jobs stay as they are. A sweep that was given a checkpoint keeps it, for the jobs that have not begun.
    """
    global _sweep_command
    overrides = get_args_parser().parse_known_args(list(words))[0].overrides
    options = [word for word in words if word not in overrides]  # before: Hydra reads overrides in one piece
    _sweep_command = resume_command(folder.absolute(), overrides, options, own=False)


def leave_sweep() -> None:
    """A single run follows."""
    global _sweep_command
    _sweep_command = None


def sweep_command() -> str | None:
    """What continues the sweep; None if this process has begun none."""
    return _sweep_command


def ended_sweep() -> Path | None:
    """The folder of this process's sweep, all of whose jobs have ended; None if there is none."""
    return _ended_sweep


def _python() -> str:
    """`python` where a shell finds this one by that name, else its path."""
    found = shutil.which("python")
    same = found is not None and os.path.dirname(found) == os.path.dirname(sys.executable)
    return "python" if same else sys.executable
