"""Run folders, made before a run begins: names them in a sweep, and removes those that stay empty."""

import os
import sys
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict, read_write

from fedem_lightning.records.files import replacing
from fedem_lightning.records.secrets import hide_in_overrides, hide_in_tree, is_secret
from fedem_lightning.run.resuming import begin_sweep, leave_sweep
from fedem_lightning.startup.loading import raise_at_a_stop, say_at_a_stop

MULTIRUN = "multirun.yaml"
"""What Hydra writes into the folder of a sweep."""

_before: set[Path] = set()  # folders that were there before Hydra made any
_made: Path | None = None  # the folder that was made last
_sweep: Path | None = None  # the folder of this process's sweep, if it is a new one


class Refused(BaseException):
    """The folder cannot be had; the message says why. Hydra would make a warning of an `Exception`."""


class JobFolders(Callback):
    """Of Hydra: makes the folder, notes what a sweep is, and names its jobs' folders after the keys that differ."""

    def on_run_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Before a single run."""
        _make(config.hydra.run.dir)
        leave_sweep()

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Before a sweep."""
        global _sweep
        _make(config.hydra.sweep.dir)
        folder = Path(os.path.abspath(config.hydra.sweep.dir))
        _sweep = None if (folder / MULTIRUN).exists() else folder
        _name_by_swept_keys(config)
        begin_sweep(Path(config.hydra.sweep.dir), sys.argv[1:])
        if "BasicLauncher" not in config.hydra.launcher._target_:
            raise_at_a_stop()

    def on_job_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Before a run, of a sweep as well."""
        if config.hydra.mode == RunMode.MULTIRUN:
            _hide_secrets(Path(config.hydra.sweep.dir) / MULTIRUN)

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        """After a sweep, when nothing is left to stop."""
        _hide_secrets(Path(config.hydra.sweep.dir) / MULTIRUN)  # its jobs may have run elsewhere
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
    global _made, _sweep
    folder, _sweep = _sweep, None
    if folder is not None and folder.is_dir() and all(p in _before for p in folder.iterdir() if p.is_dir()):
        (folder / MULTIRUN).unlink(missing_ok=True)
    if _made is not None:
        remove_if_empty(_made)
    _made = None


def _hide_secrets(path: Path) -> None:
    """Writes what Hydra has written about a sweep once more, without secrets."""
    if not path.is_file():
        return
    tree: Any = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
    shown = hide_in_tree(tree)
    shown["hydra"]["overrides"]["task"] = hide_in_overrides(tree["hydra"]["overrides"]["task"])
    if shown != tree:
        with replacing(path) as temporary:
            OmegaConf.save(OmegaConf.create(shown), temporary)


def _make(name: str) -> None:
    """Makes a folder that a run may write in."""
    global _made
    if not name:
        raise Refused("run_dir: expected the name of a folder, got an empty one")
    folder = _made = Path(os.path.abspath(name))
    _look_at(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        nearest = next(place for place in (folder, *folder.parents) if os.path.exists(place))
        if not nearest.is_dir():
            raise Refused(f"run_dir: {nearest} is a file, expected a folder") from None
        remove_if_empty(nearest)
        raise Refused(f"run_dir: cannot make the folder {folder} ({error.strerror})") from None


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
    left_out = [*name.exclude_keys, *(key for key, differs in swept.items() if not differs or is_secret(key))]
    more = [f"hydra.job.config.override_dirname.exclude_keys={_quoted(left_out)}"]
    pattern = OmegaConf.to_container(config.hydra.sweep, resolve=False)["subdir"]  # type: ignore[index,call-overload]
    if "override_dirname" in str(pattern) and not swept.keys() - set(left_out):
        more.append("hydra.sweep.subdir=${hydra.job.num}")
    with read_write(config), open_dict(config):
        config.hydra.overrides.hydra.extend(more)


def _quoted(keys: list[str]) -> str:
    return "[" + ",".join(f"'{key}'" for key in keys) + "]"
