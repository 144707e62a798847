"""Readers of the file formats of federated data; each returns named NumPy arrays, and none executes code from a file.

Images: x uint8 [n, h, w] or [n, h, w, channels], y [n], and if known client, coarse, split [n], client_names [T].
Text: text uint8, client and piece [characters], client_names [T]; a piece is text without a gap.

Here are the checks that the readers share: what a file promises is compared with its size and with the memory.
"""

import filecmp
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedem_lightning.errors import UserError, require
from fedem_lightning.settings.check import require_memory

UNREAD = ("l", "~", ".gz", ".bz2", ".xz", ".zst", ".zip", ".part", ".partial", ".incomplete", ".crdownload", ".tmp")
"""What may stand behind the ending of a file with samples."""


def check_file(path: Path) -> None:
    """Refuses what is no file that could be read: a folder, a device, an empty file, one larger than the memory.

    Raises:
        UserError: one line names the file.

    """
    require(path.is_file(), f"path: no file {path}")
    with reading(path, "a file"):
        n_bytes = path.stat().st_size
    require(n_bytes > 0, f"path: {path} is empty")
    require_memory(f"path: {path}", n_bytes, "the file")


def files_in(folder: Path, *endings: str) -> list[Path]:
    """The files with one of these endings in a folder and all folders in it, sorted; nothing is passed over.

    Raises:
        UserError: there is a link to nothing or to a folder, a pipe, a folder that cannot be read, a packed or half
            downloaded file, or a file twice.

    """
    found: list[Path] = []

    def refuse(error: OSError) -> None:
        raise UserError(f"path: cannot read the folder {error.filename} ({error.strerror})") from error

    for place, folders, names in os.walk(folder, onerror=refuse):
        linked = [name for name in folders if Path(place, name).is_symlink()]
        require(not linked, f"path: {Path(place, *linked[:1])} is a link to a folder; give the folder itself")
        for name in names:
            packed = name.lower().endswith(tuple(ending + more for ending in endings for more in UNREAD))
            require(not packed, f"path: {Path(place, name)} is not read; unpack it, or take it out of the folder")
        found += [Path(place, name) for name in names if name.lower().endswith(endings)]
    for file in found:
        require(file.is_file(), f"path: {file} is no file that could be read, or a link to none")
    by_size: dict[int, list[Path]] = {}
    for file in sorted(found):
        equal = [other for other in by_size.get(file.stat().st_size, []) if filecmp.cmp(file, other, shallow=False)]
        require(not equal, f"path: {file} has the same content as {Path(*equal[:1])}: the same samples twice")
        by_size.setdefault(file.stat().st_size, []).append(file)
    return sorted(found)


@contextmanager
def reading(path: Path, kind: str) -> Iterator[None]:
    """Makes one line of whatever a broken file raises: parsers fail in many ways, also by recursion and memory.

    Raises:
        UserError: the line names the file, what was expected, and the parser's reason.

    """
    try:
        yield
    except (UserError, UserWarning):
        raise
    except Exception as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise UserError(f"path: cannot read {path} as {kind} ({reason})") from error
