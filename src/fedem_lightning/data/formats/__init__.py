"""Readers of the file formats of federated data; each returns named NumPy arrays, and none executes code from a file.

Images: x uint8 [n, h, w] or [n, h, w, channels], y [n], and if known client, coarse, split [n], client_names [T].
Text: text uint8, client and piece [characters], client_names [T]; a piece is text without a gap.
"""

import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from fedem_lightning.data.names import check_unread
from fedem_lightning.errors import UserError, require


@contextmanager
def reading(path: Path, kind: str) -> Iterator[None]:
    """Makes one line of whatever a broken file raises: parsers fail in many ways, also by recursion and memory.

    Raises:
        UserError: there is no such file; or the parser failed. The line names the file, and what was expected.

    """
    require(path.is_file(), f"path: no file {path}")
    try:
        yield
    except (UserError, UserWarning):
        raise
    except Exception as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise UserError(f"path: cannot read {path} as {kind} ({reason})") from error


def files_in(path: Path, *endings: str) -> list[Path]:
    """A file as it is; of a folder the files with one of these endings in it and all folders in it, sorted."""
    if path.is_file():
        return [path]
    return sorted(file for file in path.rglob("*") if file.name.lower().endswith(endings) and file.is_file())


def read_npz(path: Path, known: Sequence[str]) -> dict[str, np.ndarray]:
    """The arrays of an .npz file that are known, by name.

    Args:
        path: the file.
        known: names of the arrays that are read; see `check_unread`.

    Raises:
        UserError: missing, broken or truncated; an array holds Python objects.

    """
    with reading(path, ".npz without Python objects: save strings with .astype(str), numbers with .astype(float)"):
        require(zipfile.is_zipfile(path), f"path: {path} is no .npz file, or only a part of one")
        with np.load(path, allow_pickle=False) as archive:
            check_unread(f"path: {path}", archive.files, known)
            return {name: archive[name] for name in archive.files if name in known}
