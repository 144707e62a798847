"""One run at a time in a folder; and what killed ones have left there."""

import fcntl
import os
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

from fedem_lightning.errors import UserError
from fedem_lightning.records.files import writing
from fedem_lightning.startup.rank import in_another_process

LOCK = ".fedem_lightning.lock"
_TEMPORARY = re.compile(r"\..+\.\d+\.tmp|\..+\.ckpt\.tmp|\.clients\.parquet\.tmp")  # the last two: of older versions


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
    if in_another_process():
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
