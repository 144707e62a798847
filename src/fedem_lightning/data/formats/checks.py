"""Checks that every reader of files shares: what a file promises is compared with its size and with the memory."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedem_lightning.errors import UserError, require


def check_file(path: Path) -> None:
    """Refuses what is no file that could be read: a folder, a device, an empty file, one larger than the memory.

    Raises:
        UserError: one line names the file.

    """
    require(path.is_file(), f"path: no file {path}")
    with reading(path, "a file"):
        n_bytes = path.stat().st_size
    require(n_bytes > 0, f"path: {path} is empty")
    check_size(path, n_bytes, "the file")


def check_size(path: Path, n_bytes: int, what: str) -> None:
    """Refuses what is larger than the machine's memory, before it is allocated."""
    limit = memory()
    said = f"{what}: {n_bytes / 1e9:.3g} GB, more than this machine's memory, {limit / 1e9:.3g} GB"
    require(n_bytes <= limit, f"path: {path}, {said}")


def memory() -> int:
    """Bytes of memory that this process may have: the machine's, or a container's limit."""
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        return min(machine, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    except (OSError, ValueError):  # no such file, or "max"
        return machine


@contextmanager
def reading(path: Path, kind: str) -> Iterator[None]:
    """Makes one line of whatever a broken file raises: parsers fail in many ways, also by recursion and memory.

    Raises:
        UserError: the line names the file, what was expected, and the parser's reason.

    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise UserError(f"path: cannot read {path} as {kind} ({reason})") from error
