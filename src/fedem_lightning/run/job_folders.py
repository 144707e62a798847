"""Folders that Hydra makes before a run begins, and the commands that make or continue a run, to copy into a shell."""

import itertools
import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import Quote, QuotedString
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf, read_write

from fedem_lightning.settings.keys import FINDS_RUN
from fedem_lightning.startup import is_worker_rank

_made: Path | None = None  # the folder of the present run or sweep
_there: Path | None = None  # the nearest folder that was there before it
_ended_sweep: Path | None = None


class JobFolders(Callback):
    """Of Hydra: notes which folders are there before it makes others, and which sweep has ended.

    It makes the folder that is named by the time; a launch that finds it made by another gets a number: TIME_2.
    """

    def on_run_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Before a single run."""
        _begin(config, "run")

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Before a sweep."""
        _begin(config, "sweep")

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        """After a sweep."""
        global _ended_sweep
        _ended_sweep = Path(config.hydra.sweep.dir)


def _begin(config: DictConfig, part: str) -> None:
    global _made, _there, _ended_sweep
    options = config.hydra[part]
    _made, _ended_sweep = Path(os.path.abspath(options.dir)), None
    _there = next(place for place in (_made, *_made.parents) if os.path.lexists(place))
    chosen = not OmegaConf.is_missing(config, "run_dir") or not OmegaConf.is_interpolation(options, "dir")
    if chosen or is_worker_rank():
        return
    for folder in itertools.chain([options.dir], (f"{options.dir}_{n}" for n in itertools.count(2))):
        try:
            Path(folder).mkdir(parents=True)
            break
        except FileExistsError:
            continue
        except OSError:  # Hydra says it
            return
    _made = Path(os.path.abspath(folder))
    with read_write(config.hydra):  # the jobs of a sweep are composed anew, from the overrides
        options.dir = folder
        config.hydra.overrides.hydra.append(f"hydra.{part}.dir={_quoted(folder)}")


def _quoted(text: str) -> str:
    return str(QuotedString(text, Quote.double).with_quotes())


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
    run_dir = f"run_dir={_quoted(str(folder))}"
    found = shutil.which("python")  # whether a shell finds this one by that name
    same = found is not None and os.path.dirname(found) == os.path.dirname(sys.executable)
    python = "python" if same else sys.executable
    return shlex.join([python, "-m", "fedem_lightning", *flags, *kept, "ckpt_path=auto", run_dir])


def run_command(overrides: Sequence[str], flags: Sequence[str] = ()) -> str:
    """The command line of a run, quoted for a shell; of a job of a sweep, the one that makes this job alone."""
    return shlex.join(["python", "-m", "fedem_lightning", *flags, *overrides])
