"""NumPy's .npz: the form that downloads and conversions are kept in. Read without pickle; mapped on request."""

import os
import struct
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from fedem_lightning.errors import UserError, require

ZIP_LOCAL_HEADER = 30  # bytes before the member's name; the last four give the lengths of name and extra field


def read_npz(path: Path, mmap: bool = False) -> dict[str, np.ndarray]:
    """All arrays of the file, by name.

    Args:
        path: the file.
        mmap: map large arrays (from 1 MB on) from the file, copying what is written to, instead of reading them.

    Raises:
        UserError: missing, broken or truncated; holds Python objects; mapping asked of a compressed file.

    """
    require(path.is_file(), f"dataset.path: no file {path}")
    require(zipfile.is_zipfile(path), f"dataset.path: {path} is no .npz file, or only a part of one")
    try:
        with np.load(path, allow_pickle=False) as file:
            large = _large_members(path) if mmap else {}
            arrays = {n: _map(path, n, large[n]) if n in large else _read(path, n, file) for n in file.files}
    except (ValueError, OSError, EOFError, NotImplementedError, zipfile.BadZipFile, zlib.error) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"dataset.path: cannot read {path} as .npz without pickle ({error})") from error
    odd = [name for name, array in arrays.items() if not isinstance(array, np.ndarray) or array.ndim == 0]
    require(not odd, f"dataset.path: {path} has members that are no arrays: {', '.join(odd)}")
    return arrays


def _read(path: Path, name: str, file: Mapping[str, np.ndarray]) -> np.ndarray:
    try:
        return file[name]
    except ValueError as error:
        _refuse_objects("Object arrays" in str(error), path, name)
        raise


def _refuse_objects(there: bool, path: Path, name: str) -> None:
    how = "save strings with .astype(str), numbers with .astype(int) or .astype(float)"
    require(not there, f"dataset.path: {path} holds Python objects in {name}; {how}")


def _large_members(path: Path) -> dict[str, zipfile.ZipInfo]:
    with zipfile.ZipFile(path) as archive:
        members = [info for info in archive.infolist() if info.file_size >= 2**20]
    for info in members:
        require(
            info.compress_type == zipfile.ZIP_STORED,
            f"dataset.mmap: {path} is compressed and cannot be mapped; python -m fedem_lightning.data convert writes "
            "one that can",
        )
    return {info.filename.removesuffix(".npy"): info for info in members}


def _map(path: Path, array: str, member: zipfile.ZipInfo) -> np.ndarray:
    with path.open("rb") as file:
        file.seek(member.header_offset)
        name, extra = struct.unpack("<HH", file.read(ZIP_LOCAL_HEADER)[-4:])
        file.seek(member.header_offset + ZIP_LOCAL_HEADER + name + extra)
        read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
        shape, fortran, dtype = read[np.lib.format.read_magic(file)](file)
        _refuse_objects(dtype.hasobject, path, array)
        return np.memmap(path, dtype, mode="c", offset=file.tell(), shape=shape, order="F" if fortran else "C")


def write_npz(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """Writes the arrays uncompressed, in one step: a reader, or a run killed meanwhile, never meets half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
