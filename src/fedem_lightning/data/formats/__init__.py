"""Readers of the file formats of federated data; each returns named NumPy arrays, and none executes code from a file.

Images: x uint8 [n, h, w] or [n, h, w, channels], y [n], and if known client, coarse, split [n], names [T].
Text: text uint8, client and piece [characters], names [T]; a piece is text without a gap.
"""

import difflib
import re
import warnings
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from fedem_lightning.data.names import listed, shown
from fedem_lightning.errors import of_a_file, require


@contextmanager
def reading(path: Path, kind: str) -> Iterator[None]:
    """Makes one line of whatever a broken file raises: parsers fail in many ways, also by recursion and memory."""
    require(path.is_file(), f"path: no file {path}")
    with of_a_file(f"path: cannot read {path} as {kind}"):
        yield


def files_in(path: Path, *endings: str) -> list[Path]:
    """A file as it is; of a folder the files with one of these endings in it and all folders in it, sorted."""
    if path.is_file():
        return [path]
    return sorted(file for file in path.rglob("*") if file.name.lower().endswith(endings) and file.is_file())


def read_npz(path: Path, known: Sequence[str]) -> dict[str, np.ndarray]:
    """The known arrays of an .npz file, by name; `client_names` is another word for `names`.

    Raises:
        UserError: missing, broken or truncated; an array holds Python objects, or its name looks like a known one.

    """
    with reading(path, ".npz without Python objects: save strings with .astype(str), numbers with .astype(float)"):
        require(zipfile.is_zipfile(path), f"path: {path} is no .npz file, or only a part of one")
        with np.load(path, allow_pickle=False) as archive:
            _check_unread(f"path: {path}", archive.files, known)
            found = {name: archive[name] for name in archive.files if name in known}
    both = {"names", "client_names"} <= found.keys()
    require(not both, "names: the file has names beside client_names; give one of them")
    return {"names" if name == "client_names" else name: array for name, array in found.items()}


def _check_unread(where: str, found: Sequence[str], known: Sequence[str]) -> None:
    """Refuses a name that has a known one as a word, or is one misspelt; warns of all others that are not known."""
    others = [name for name in found if name not in known]
    for name in others:
        words = re.findall(r"[a-z0-9]+", name.lower())
        near = [one for one in known if one in words] or difflib.get_close_matches(name.lower(), known, 1, cutoff=0.8)
        hint = "; all samples belong into x and y, and split says which are for testing" * ({"x", "y"} >= set(near[:1]))
        said = f"{shown(name)} is not read, but looks like {''.join(near[:1])}; rename it, or leave it out{hint}"
        require(not near, f"{where}: {said}")
    if others:
        warnings.warn(f"{where}: not read: {listed(map(shown, others))}", stacklevel=4)
