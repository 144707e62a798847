"""A run's folder: never written over, continued only by the run it belongs to, and one run at a time in it."""

import fcntl
import json
import os
import re
import shutil
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

from hydra.utils import to_absolute_path
from omegaconf import DictConfig

from fedem_lightning.errors import UserError, require
from fedem_lightning.records.configs import read_yaml, resolved
from fedem_lightning.records.files import regular, writing
from fedem_lightning.run.failures import user_message
from fedem_lightning.run.resuming import continued, differences, read_own_config, tree_of
from fedem_lightning.settings.keys import KEYS
from fedem_lightning.startup.process import is_worker_rank

OURS = (".hydra", "checkpoints", "results.json", "metrics.csv", "clients.parquet", "trackers.json")
"""What a run has in its folder, beside figures and arrays: `DRAWN_OR_KEPT`."""
DRAWN_OR_KEPT = (".png", ".npz")
"""Endings of a run's other files; their names depend on the method."""
IN_FOLDERS = {".hydra": (".yaml", ".json"), "checkpoints": (".ckpt",)}
"""Endings of the files in a run's own folders."""
_MAY_CHANGE = {key.name for key in KEYS if key.may_change}
"""Parts of the configuration that a resumed run may change; what some of them set is compared in `algorithm`."""
LOCK = ".fedem_lightning.lock"
_TEMPORARY = re.compile(r"\..+\.\d+\.tmp")


def check_run_folder(folder: Path, config: DictConfig) -> None:
    """Refuses a folder that holds a run, unless this one continues it with an unchanged configuration.

    Raises:
        UserError: see above; or the folder holds files that are no run's, and that a run would write over.

    """
    check_kinds(folder)
    held = [name for name in OURS if os.path.lexists(folder / name)]
    if config.ckpt_path is None:
        require(
            not held,
            f"run_dir: {folder} already holds a run ({', '.join(held)}); choose another, or continue it with "
            "ckpt_path=auto",
        )
    if not {".hydra", "checkpoints"} & set(held):
        files = folder.iterdir() if folder.is_dir() else ()
        taken = held or sorted(path.name for path in files if path.suffix in DRAWN_OR_KEPT)
        require(
            not taken,
            f"run_dir: {folder} holds no run that could go on, but files that a run may write over "
            f"({', '.join(taken)}); choose another",
        )
    earlier = read_own_config(folder)
    continued(folder)  # reads the configurations before that one, too, which results.json will need
    for key, (before, now) in ({} if earlier is None else differences(earlier, tree_of(config))).items():
        if not {key, key.split(".")[0]} & _MAY_CHANGE and not _same_path(before, now):
            raise UserError(
                f"{key}: the run in {folder} had {before}, now it is {now}; resume with the same "
                "configuration, or choose another run_dir"
            )


@contextmanager
def left_as_it_was(folder: Path, has_trained: Callable[[], bool]) -> Iterator[None]:
    """Removes what a run has made in its folder, if it is refused before its first round has ended.

    Some mistakes show only in the first round. The folder is then free for the corrected command.

    Args:
        folder: of the run.
        has_trained: whether a round has ended.

    """
    before = set(os.listdir(folder)) if folder.is_dir() else set()
    try:
        yield
    except Exception as error:
        if user_message(error) is not None and not has_trained() and not is_worker_rank():
            for path in folder.iterdir():
                if path.name in before or not (path.name in OURS or path.suffix in DRAWN_OR_KEPT):
                    continue  # it may be the user's, or a tracker's
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink(missing_ok=True)
        raise


def _same_path(before: Any, now: Any) -> bool:
    """Whether two values are one path: a run with hydra.job.chdir=true has absolute ones in its configuration."""
    if not (isinstance(before, str) and isinstance(now, str)):
        return False
    return len({os.path.normpath(to_absolute_path(os.path.expanduser(path))) for path in (before, now)}) == 1


def check_kinds(folder: Path) -> None:
    """Refuses a run's folder in which something else has the name of a file that a run writes, or the reverse.

    Raises:
        UserError: there is one.

    """
    away = "move it away, or choose another run_dir"
    for place in (folder / name for name in OURS[:2]):
        is_none = os.path.lexists(place) and not place.is_dir()
        require(not is_none, f"run_dir: {place} is a file, but a run keeps a folder of that name; {away}")
    for place in (folder, folder / ".hydra", folder / "checkpoints"):
        for path in sorted(place.iterdir()) if place.is_dir() else ():
            is_file = path.name in OURS[2:] or path.suffix in (*DRAWN_OR_KEPT, *IN_FOLDERS.get(place.name, ()))
            what = "a folder" if path.is_dir() else "no regular file"
            fits = not is_file or path.is_file() or not path.exists()  # a link to nothing is skipped or replaced
            require(fits, f"run_dir: {path} is {what}, but a run writes a file of that name; {away}")


def finished_results(folder: Path, config: DictConfig) -> dict[str, Any] | None:
    """What results.json holds, if the run in `folder` has ended and `config` asks for no more rounds; else None."""
    try:
        results: dict[str, Any] = json.loads(regular(folder / "results.json").read_text())
        planned = resolved(read_yaml(folder / ".hydra" / "config.yaml"))["trainer"]["max_epochs"]
        done = config.trainer.max_epochs <= max(planned, results["rounds"])  # it may have ended before its plan
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return results if done else None


@contextmanager
def only_run_in(folder: Path, option: str = "run_dir") -> Iterator[None]:
    """Within it no other process can run in this folder; the first process of several takes the lock for all.

    The system drops the lock when the process ends, however it ends. The file only says who has it.

    Args:
        folder: of the run.
        option: by which the user has named it.

    Raises:
        UserError: another process has the lock, or the folder cannot be written to.

    """
    if is_worker_rank():
        yield
        return
    new = not folder.exists()
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    try:
        with _taken(folder, option):
            _remove_temporaries(folder)
            yield
    finally:
        if new:
            with suppress(OSError):  # it has content
                folder.rmdir()


@contextmanager
def _taken(folder: Path, option: str) -> Iterator[None]:
    path = folder / LOCK
    while not _is_at(file := _locked(path, option), path):  # its last owner has removed it in between
        file.close()
    try:
        with writing(path):
            since = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
            file.truncate(0)
            file.write(f"pid {os.getpid()} on {socket.gethostname()}, since {since}")
            file.flush()
        yield
    finally:
        path.unlink(missing_ok=True)
        with suppress(OSError):
            file.close()


def _locked(path: Path, option: str) -> TextIO:
    with writing(path):
        file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644), "r+")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        with file:
            owner = " ".join(file.read(200).split())
        raise UserError(f"{option}: {path.parent}: another process ({owner or 'just begun'}) is running it") from None
    except OSError:  # a file system without locks
        pass
    return file


def _is_at(file: TextIO, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _remove_temporaries(folder: Path) -> None:
    """Removes the temporary files of processes that were killed: no other process writes here now."""
    for place in (folder, folder / ".hydra", folder / "checkpoints"):
        for path in place.glob(".*.tmp"):
            if _TEMPORARY.fullmatch(path.name) and path.is_file():
                with writing(path):
                    path.unlink()
