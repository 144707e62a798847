"""Checksums of checkpoints: SHA-256 in the comment at the end of the zip file, where copies and other readers keep it.

The comment is the fixed text `TAG` and the hexadecimal SHA-256 of everything before these digits. A zip file ends
with a record of 22 bytes, whose last two are the length of the comment that follows (PKWARE's APPNOTE, 4.3.16).
"""

import hashlib
import os
import struct
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO

from fedem_lightning.records.reading import regular

TAG = b"fedem-lightning sha256 "
_DIGITS = 64
_END, _SIGNATURE = 22, b"PK\x05\x06"
_LENGTH = struct.pack("<H", len(TAG) + _DIGITS)
_PIECE = 1 << 20


def seal(path: Path) -> None:
    """Adds the checksum to a zip file without a comment, such as `torch.save` writes; the file is read piece by piece.

    Raises:
        OSError: the file cannot be written.

    """
    with path.open("r+b") as file:
        file.seek(-len(_LENGTH), os.SEEK_END)
        file.write(_LENGTH + TAG)
        file.seek(0)
        digest = _digest(file, path.stat().st_size)
        file.seek(0, os.SEEK_END)
        file.write(digest)


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
        last = _at(file, size - _END, _END)
        if last.startswith(_SIGNATURE) and last.endswith(b"\0\0"):  # no comment
            return None
        end = size - _DIGITS
        sealed = _at(file, end - len(TAG) - len(_LENGTH), len(_LENGTH + TAG)) == _LENGTH + TAG
        digits = _at(file, end, _DIGITS)
        file.seek(0)
        return sealed and _digest(file, end) == digits


def _at(file: BinaryIO, place: int, length: int) -> bytes:
    file.seek(max(0, place))
    return file.read(length)


def _digest(file: BinaryIO, length: int) -> bytes:
    """The SHA-256 of the next `length` bytes, in hexadecimal digits."""
    digest = hashlib.sha256()
    while length > 0 and (piece := file.read(min(length, _PIECE))):
        digest.update(piece)
        length -= len(piece)
    return digest.hexdigest().encode()
