"""NumPy's .npz, the form that downloads and conversions are kept in, and .npy. Read without pickle; mapped on request.

The header of each array is read first. An array is allocated only if its size is that of the file's member, and if all
arrays together fit into memory.
"""

import math
import struct
import zipfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

import numpy as np

from fedem_lightning.data.formats import check_file, reading
from fedem_lightning.data.formats.pickles import PickledArray, plain
from fedem_lightning.data.names import check_unread
from fedem_lightning.errors import require
from fedem_lightning.settings.check import require_memory

ZIP_LOCAL_HEADER = 30  # bytes before the member's name; the last four give the lengths of name and extra field
MOST_MEMBERS = 1000
MAPPED_FROM = 2**20  # bytes
MOST_DEFLATED = 1032
"""No byte of a compressed member becomes more bytes than this."""


class Header(NamedTuple):
    """What the beginning of a .npy says: the array, and the header's own length."""

    shape: tuple[int, ...]
    fortran: bool
    dtype: np.dtype
    length: int

    @property
    def n_bytes(self) -> int:
        """Of the array."""
        return math.prod(self.shape) * self.dtype.itemsize


def read_npz(path: Path, known: Sequence[str], mmap: bool = False) -> dict[str, np.ndarray]:
    """The arrays of the file that are known, by name.

    Args:
        path: the file.
        known: names of the arrays that are read; see `check_unread`.
        mmap: map large arrays (from 1 MB on) from the file, copying what is written to, instead of reading them.

    Raises:
        UserError: missing, broken or truncated; holds Python objects; promises arrays that it does not hold, or that
            are larger than the memory; mapping asked of a compressed file.

    """
    check_file(path)
    require(zipfile.is_zipfile(path), f"path: {path} is no .npz file, or only a part of one")
    with reading(path, ".npz without pickle"), zipfile.ZipFile(path) as archive:
        members = _members(path, archive)
        headers = {name: _header(path, name, archive, member) for name, member in members.items()}
        check_unread(f"path: {path}", members, known)
        mapped = {name for name, member in members.items() if mmap and member.file_size >= MAPPED_FROM}
        read = sum(header.n_bytes for name, header in headers.items() if name in known and name not in mapped)
        require_memory(f"path: {path}", read, "its arrays together")
        return {
            name: _map(path, member, headers[name]) if name in mapped else _read(archive, member)
            for name, member in members.items()
            if name in known
        }


def read_npy(path: Path) -> np.ndarray:
    """The array of a .npy file.

    Raises:
        UserError: missing or broken; holds Python objects, or another number of bytes than its header says.

    """
    check_file(path)
    with reading(path, ".npy without pickle"), path.open("rb") as file:
        header, held = _parsed(file), path.stat().st_size - file.tell()
        require(not header.dtype.hasobject, f"path: {path} holds Python objects; save numbers")
        said = f"{header.dtype} of shape {list(header.shape)}, {header.n_bytes} bytes"
        require(header.n_bytes == held, f"path: {path} promises {said}, but holds {held}")
        file.seek(0)
        array: np.ndarray = np.lib.format.read_array(file, allow_pickle=False)
        return array


def read_object(path: Path, name: str) -> Any:
    """The Python object that NumPy has saved in an .npz under a name, read by `formats.pickles`.

    Raises:
        UserError: missing or broken; holds other arrays, an array of numbers, or what `pickles.plain` refuses.

    """
    check_file(path)
    require(zipfile.is_zipfile(path), f"path: {path} is no .npz file, or only a part of one")
    with reading(path, f".npz with a Python object {name}"), zipfile.ZipFile(path) as archive:
        members = _members(path, archive)
        require(list(members) == [name], f"path: {path} has {', '.join(members)[:100]}; expected {name} alone")
        member = members[name]
        most = MOST_DEFLATED * member.compress_size
        require(member.file_size <= most, f"path: {path}: {member.compress_size} bytes cannot hold {member.file_size}")
        require_memory(f"path: {path}", member.file_size, "its object")
        with archive.open(member) as file:
            header = _parsed(file)
            require(header.dtype.hasobject, f"path: {path}: {name} is an array; expected a dictionary x, y")
            held = plain(file.read(), path.name)
        require(isinstance(held, PickledArray), f"path: {path}: expected a dictionary x, y, got {type(held).__name__}")
        return held.one(f"path: {path}")


def _members(path: Path, archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    """The members by the names of their arrays."""
    found = archive.infolist()
    require(len(found) <= MOST_MEMBERS, f"path: {path} has {len(found)} members, more than {MOST_MEMBERS}")
    names = [member.filename.removesuffix(".npy") for member in found]
    twice = [name for name, n in Counter(names).items() if n > 1]
    require(not twice, f"path: {path} has several arrays of the name {', '.join(twice)[:100]}")
    return dict(zip(names, found, strict=True))


def _header(path: Path, name: str, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Header:
    """The checked header of one array."""
    said = f"path: {path}: array {name[:100]}"
    with archive.open(member) as file:
        start = file.read(len(np.lib.format.MAGIC_PREFIX))
        array = start == np.lib.format.MAGIC_PREFIX
        require(array, f"path: {path} has a member that is no array: {name[:100]}")
        file.seek(0)
        header = _parsed(file)
    how = "save strings with .astype(str), numbers with .astype(int) or .astype(float)"
    require(not header.dtype.hasobject, f"path: {path} holds Python objects in {name}; {how}")
    require(len(header.shape) > 0, f"{said} is a single value; expected several")
    sound = min(header.shape) >= 0 and (header.dtype.itemsize > 0 or 0 in header.shape)
    held = member.file_size - header.length
    promised = f"promises {header.dtype} of shape {list(header.shape)}, {header.n_bytes} bytes"
    require(sound and header.n_bytes == held, f"{said} {promised}, but holds {held}")
    deflated = member.compress_type == zipfile.ZIP_DEFLATED
    most = MOST_DEFLATED * member.compress_size if deflated else member.file_size
    require(held <= most, f"{said} {promised}, which {member.compress_size} compressed bytes cannot hold")
    return header


def _parsed(file: IO[bytes]) -> Header:
    versions = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    version = np.lib.format.read_magic(file)
    if version == (3, 0):  # as 2.0 in UTF-8, which only names of fields need
        raise ValueError("an array with named fields")
    shape, fortran, dtype = versions[version](file)
    return Header(shape, fortran, dtype, file.tell())


def _read(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> np.ndarray:
    with archive.open(member) as file:
        array: np.ndarray = np.lib.format.read_array(file, allow_pickle=False)
        return array


def _map(path: Path, member: zipfile.ZipInfo, header: Header) -> np.ndarray:
    require(
        member.compress_type == zipfile.ZIP_STORED,
        f"mmap: {path} is compressed and cannot be mapped; python -m fedem_lightning.data convert writes one that can",
    )
    with path.open("rb") as file:
        file.seek(member.header_offset)
        name, extra = struct.unpack("<HH", file.read(ZIP_LOCAL_HEADER)[-4:])
    start = member.header_offset + ZIP_LOCAL_HEADER + name + extra + header.length
    order: Literal["F", "C"] = "F" if header.fortran else "C"
    return np.memmap(path, header.dtype, mode="c", offset=start, shape=header.shape, order=order)
