"""Files: read only if they are regular, written whole or not at all, and sealed with a checksum where they are large.

A checksum is the SHA-256 in the comment at the end of a zip file, where copies and other readers keep it: the fixed
text `TAG` and the hexadecimal digits of everything before them. A zip file ends with a record of 22 bytes, whose last
two are the length of the comment that follows (PKWARE's APPNOTE, 4.3.16).
"""

import errno
import hashlib
import os
import stat
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO

from fedem_lightning.errors import UserError

TAG = b"fedem-lightning sha256 "
_DIGITS = 64
_END, _SIGNATURE = 22, b"PK\x05\x06"
_LENGTH = struct.pack("<H", len(TAG) + _DIGITS)
_PIECE = 1 << 20


def regular(path: Path) -> Path:
    """The same path, if a regular file with content is there; a link counts as what it leads to.

    The system's own files, such as /proc/kmsg, call themselves regular and empty, and may have no end either.

    Raises:
        OSError: there is a folder, a FIFO, a socket, a device or an empty file, or nothing.

    """
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "no regular file", str(path))
    if found.st_size == 0:
        raise OSError(errno.ENODATA, "empty", str(path))
    return path


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Within it a refusal of the system becomes a line that names the path and the system's reason.

    Raises:
        UserError: the disk is full, the folder cannot be written to, and the like.

    """
    try:
        yield
    except OSError as error:
        raise UserError(f"cannot write {path} ({error.strerror or error})") from error


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yields a temporary file beside `path`, which replaces `path` in one step if all goes well, and else goes.

    So no reader ever sees half a file, and the earlier one stays if the disk is full or the run is killed. Folders that
    were made for the file go as well if it cannot be written.

    Raises:
        UserError: see `writing`.

    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with writing(path):
        new = [folder for folder in path.parents if not os.path.lexists(folder)]
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            yield temporary
            os.replace(temporary, path)
        except BaseException:
            with suppress(OSError):  # also if the folder was never made, or has something else in it by now
                temporary.unlink(missing_ok=True)
                for folder in new:
                    folder.rmdir()
            raise


def write_atomically(path: Path, content: bytes) -> None:
    """Replaces `path` by `content` in one step; see `replacing`."""
    with replacing(path) as temporary:
        temporary.write_bytes(content)


def write_arrays(path: Path, arrays: Mapping[str, Any], compressed: bool = True) -> None:
    """Writes NumPy's arrays by name as an .npz, in one step; `numpy.load` reads it without pickle."""
    import numpy as np  # commands that answer at once write files, too

    assert not any(np.asarray(array).dtype.hasobject for array in arrays.values())
    with replacing(path) as temporary, temporary.open("wb") as file:
        (np.savez_compressed if compressed else np.savez)(file, **arrays)


def seal(path: Path) -> None:
    """Adds the checksum to a zip file without a comment, such as `torch.save` writes; the file is read piece by piece.

    Raises:
        OSError: the file cannot be written.

    """
    with path.open("r+b") as file:
        file.seek(-len(_LENGTH), os.SEEK_END)
        file.write(_LENGTH + TAG)
        file.write(_digest(file, file.tell()))


def is_intact(path: Path) -> bool | None:
    """Whether a file is what `seal` has left; None: it was never sealed, so nobody can tell.

    Args:
        path: a zip file. Any other file, and one whose end is damaged, is not intact.

    Raises:
        OSError: the file cannot be read.

    """
    found = regular(path).stat()
    return _is_intact(path, found.st_ino, found.st_size, found.st_mtime_ns)


@lru_cache(maxsize=64)
def _is_intact(path: Path, inode: int, size: int, time: int) -> bool | None:
    """A file that has not changed is read once: a run looks at its checkpoint several times."""
    with path.open("rb") as file:
        file.seek(max(0, size - len(_LENGTH + TAG) - _DIGITS))
        last = file.read()
        if last[-_END:].startswith(_SIGNATURE) and last.endswith(b"\0\0"):  # no comment
            return None
        return last.startswith(_LENGTH + TAG) and _digest(file, size - _DIGITS) == last[-_DIGITS:]


def _digest(file: BinaryIO, length: int) -> bytes:
    """The SHA-256 of the first `length` bytes, in hexadecimal digits; the file's place is behind them then."""
    file.seek(0)
    digest = hashlib.sha256()
    while length > 0 and (piece := file.read(min(length, _PIECE))):
        digest.update(piece)
        length -= len(piece)
    return digest.hexdigest().encode()
