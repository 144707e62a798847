"""Readers of files of federated data: .npz, and LEAF's FEMNIST and Shakespeare; none executes a file's code.

Each returns named NumPy arrays. Images: x uint8 [n, h, w] or [n, h, w, channels], y [n], and if known client, coarse,
split [n], names [T]. Text: text uint8, client and piece [characters], names [T]; a piece is text without a gap.

The Hugging Face hub has those of LEAF (Caldas et al. 2018, arXiv 1812.01097) as flwrlabs/femnist (parquet) and
flwrlabs/shakespeare (csv or parquet).
"""

import io
import warnings
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from PIL import Image

from fedem_lightning.data.arrays import listed, shown
from fedem_lightning.settings.errors import of_a_file, require


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
        UserError: missing, broken or truncated; an array holds Python objects.

    """
    with reading(path, ".npz without Python objects: save strings with .astype(str), numbers with .astype(float)"):
        require(zipfile.is_zipfile(path), f"path: {path} is no .npz file, or only a part of one")
        with np.load(path, allow_pickle=False) as archive:
            others = [name for name in archive.files if name not in known]
            result = {name: archive[name] for name in archive.files if name in known}
    if others:
        warnings.warn(f"path: {path}: not read: {listed(map(shown, others))}", stacklevel=3)
    return {"names" if name == "client_names" else name: array for name, array in result.items()}


def read_hub_images(path: Path) -> dict[str, np.ndarray]:
    """Reads the columns image (bytes of a PNG), character (0..61) and writer_id. Pixels stay uint8."""
    x, y, writers = [], [], []
    for file, image, character, writer in _columns(path, "image", "character", "writer_id"):
        with reading(file, "images of 28 x 28 pixels"):
            pixels = (
                Image.open(io.BytesIO(one["bytes"] if isinstance(one, dict) else one)).convert("L") for one in image
            )
            x += [np.asarray(one).reshape(28, 28) for one in pixels]
        y.append(character.to_numpy())
        writers.append(writer.astype(str).to_numpy(dtype=np.str_))
    names, client = np.unique(np.concatenate(writers), return_inverse=True)
    return {"x": np.stack(x), "y": np.concatenate(y), "client": client, "names": names}


def read_hub_text(path: Path) -> dict[str, np.ndarray]:
    """Reads the columns character_id (play and role), x (80 characters) and y (the next character)."""
    rows = []
    for file, *columns in _columns(path, "character_id", "x", "y"):
        with reading(file, "texts character_id, x and y"):
            rows += [(role + "", window + "", y + "") for role, window, y in zip(*columns, strict=True)]
    return _joined(rows)


def _columns(path: Path, *columns: str) -> Iterator[tuple[Any, ...]]:
    """Each .parquet file of a folder, or else each .csv file, and its columns, without missing values."""
    for file in files_in(path, ".parquet") or files_in(path, ".csv"):
        with reading(file, f"a table with {', '.join(columns)}"):
            if file.suffix.lower() == ".csv":
                frame = pd.read_csv(file, usecols=list(columns), dtype=str, keep_default_na=False)
            else:
                frame = pd.read_parquet(file, columns=list(columns))
        missing = [name for name in columns if frame[name].isna().any()]
        require(not missing and len(frame) > 0, f"path: {file}: no rows, or rows without {', '.join(missing)}")
        yield (file, *(frame[name] for name in columns))


def _joined(rows: Iterable[tuple[str, str, str]]) -> dict[str, np.ndarray]:
    """Role, window and the character after it: overlapping windows become one text, role after role.

    A window that does not continue its role's last window begins a new piece; non-ASCII characters become "?".
    """
    pieces: dict[str, list[list[str]]] = {}
    expected: dict[str, str] = {}
    for role, window, following in rows:
        of_role = pieces.setdefault(role, [])
        if expected.get(role) == window:
            of_role[-1].append(following)
        else:
            of_role.append([window, following])
        expected[role] = (window + following)[1:]
    owner = [t for t, of_role in enumerate(pieces.values()) for _ in of_role]
    texts = ["".join(parts) for of_role in pieces.values() for parts in of_role]
    codes = [np.frombuffer(text.encode("ascii", "replace"), dtype=np.uint8) for text in texts]
    lengths = [len(code) for code in codes]
    return {
        "text": np.concatenate([*codes, np.empty(0, dtype=np.uint8)]),
        "client": np.repeat(np.array(owner, dtype=np.int32), lengths),
        "piece": np.repeat(np.arange(len(texts), dtype=np.int32), lengths),
        "names": np.array(list(pieces)),
    }
