"""Run folders, which Hydra makes before a run begins: names them in a sweep, and removes those that stay empty."""

import os
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf, open_dict, read_write

_before: set[Path] = set()  # folders that were there before Hydra made any


class JobFolders(Callback):
    """Of Hydra: looks at what is there, and names the folders of a sweep's jobs after the keys that differ."""

    def on_run_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Before the folder of a single run is made."""
        _look_at(Path(config.hydra.run.dir))

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Before the folders of a sweep are made."""
        _look_at(Path(config.hydra.sweep.dir))
        _name_by_swept_keys(config)


def remove_if_empty(folder: Path) -> None:
    """Removes a folder, and those above it, as far as they are empty and were made for this run."""
    for place in (folder, *folder.parents):
        if not _before or place in _before:
            return
        try:
            place.rmdir()
        except OSError:  # it has content
            return


def _look_at(folder: Path) -> None:
    folder = Path(os.path.abspath(folder))
    _before.clear()
    _before.update(place for place in (folder, *folder.parents) if place.exists())
    if folder.is_dir():
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
