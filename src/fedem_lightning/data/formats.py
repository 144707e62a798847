"""Readers of files of federated data: .npz, LEAF's FEMNIST and Shakespeare, and plays; none executes a file's code.

Each returns named NumPy arrays. Images: x uint8 [n, h, w] or [n, h, w, channels], y [n], and if known client, coarse,
split [n], names [T]. Text: text uint8, client and piece [characters], names [T]; a piece is text without a gap.

LEAF (Caldas et al. 2018, arXiv 1812.01097) has JSON folders: {"users", "user_data": {user: {"x", "y"}}}. The Hugging
Face hub has the same as flwrlabs/femnist (parquet) and flwrlabs/shakespeare (csv or parquet).
"""

import io
import json
import re
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

ROLE_NAME = r"[A-Z][A-Za-z'\-]*(?: (?:of|the|to|and|[A-Z][A-Za-z'\-]*)){0,5}"
COLON = re.compile(rf"^\s{{0,4}}(?P<role>{ROLE_NAME}):\s*(?P<text>.*)$")  # Hamlet: To be ...
CAPITALS = re.compile(r"^\s{0,4}(?P<role>[A-Z][A-Z' \-]{1,40})\.\s*(?P<text>.*)$")  # HAMLET. To be ...
SUBSETS = ("sampled_data", "rem_user_data", "train", "test")
"""Folders into which LEAF writes parts of `all_data`."""


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
        UserError: missing, broken or truncated; an array holds Python objects, or its name has a known one as a word.

    """
    with reading(path, ".npz without Python objects: save strings with .astype(str), numbers with .astype(float)"):
        require(zipfile.is_zipfile(path), f"path: {path} is no .npz file, or only a part of one")
        with np.load(path, allow_pickle=False) as archive:
            others = [name for name in archive.files if name not in known]
            for name in others:
                near = ", ".join(set(re.findall(r"[a-z0-9]+", name.lower())) & set(known))
                hint = "all samples belong into x and y, and split says which are for testing"
                said = f"{shown(name)} is not read, but looks like {near}; rename it, or leave it out; {hint}"
                require(not near, f"path: {path}: {said}")
            found = {name: archive[name] for name in archive.files if name in known}
    if others:
        warnings.warn(f"path: {path}: not read: {listed(map(shown, others))}", stacklevel=3)
    return {"names" if name == "client_names" else name: array for name, array in found.items()}


def read_leaf_images(path: Path) -> dict[str, np.ndarray]:
    """Reads FEMNIST: the 784 floats in [0, 1] of an image become uint8 [28, 28] (255 is the white background).

    Files of a train and a test folder are pooled by user, because a federation makes its own splits.
    """
    x, y, users = [], [], []
    for file, user, data in _users(path):
        with reading(file, f"images of user {user}, 784 numbers in [0, 1] and a label each"):
            images = np.asarray(data["x"], dtype=np.float64).reshape(len(data["y"]), 28, 28)
        require(bool(((images >= 0) & (images <= 1)).all()), f"path: {file}: user {user}: pixels outside [0, 1]")
        x.append(np.round(images * 255).astype(np.uint8))
        y.append(np.asarray(data["y"]))
        users.append(user)
    names, owner = np.unique(users, return_inverse=True)
    client = np.repeat(owner, [len(part) for part in y])
    return {"x": np.concatenate(x), "y": np.concatenate(y), "client": client, "names": names}


def read_leaf_text(path: Path) -> dict[str, np.ndarray]:
    """Reads Shakespeare: joins the windows of 80 characters and the next character to the roles' texts."""
    rows = []
    for file, user, data in _users(path):
        with reading(file, f"windows x of user {user} and the character after each, y"):
            # what is added to a text is a text
            rows += [(user, window + "", y + "") for window, y in zip(data["x"], data["y"], strict=True)]
    return _joined(rows)


def _users(path: Path) -> Iterator[tuple[Path, str, dict[str, Any]]]:
    """The users with samples, file by file."""
    twice = sorted(name for name in SUBSETS if (path / name).is_dir() and (path / "all_data").is_dir())
    require(not twice, f"path: {path} has all_data beside {', '.join(twice)}, the same samples twice; give one of them")
    n_users = 0
    for file in files_in(path, ".json"):
        with reading(file, "LEAF's JSON, with user_data: {user: {x, y}}"):
            users = json.loads(file.read_text(encoding="utf-8"))["user_data"]
            known = {user: data for user, data in users.items() if len(data["x"]) or len(data["y"])}
        n_users += len(known)
        for user, data in known.items():
            yield file, user, data
    require(n_users > 0, f"path: no user with samples in {path}")


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
    rows: list[tuple[str, str, str]] = []
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


def read_plays(path: Path) -> dict[str, np.ndarray]:
    """Reads a .txt file, or a folder of such files; [directions] and lines before the first speech are left out.

    A speech begins with its role and a colon, or in capitals and a full stop. Newlines join the speeches of a role.
    """
    roles: dict[str, list[str]] = {}
    for file in files_in(path, ".txt"):
        with reading(file, "UTF-8 text"):
            lines = file.read_text(encoding="utf-8").splitlines()
        speech: list[str] = []
        for line in lines:
            begins = COLON.match(line) or CAPITALS.match(line)
            if begins:
                speech = roles.setdefault(f"{file.stem}/{begins['role'].strip()}", [])
            text = re.sub(r"\[[^\]]*\]", "", begins["text"] if begins else line).strip()
            speech += [text] if text else []
    roles = {name: speeches for name, speeches in roles.items() if speeches}
    require(bool(roles), f"path: no speeches in {path}; expected lines such as HAMLET. To be ... or Hamlet: To be")
    return _text_arrays(["\n".join(speeches) for speeches in roles.values()], list(range(len(roles))), list(roles))


def _joined(rows: Iterable[tuple[str, str, str]]) -> dict[str, np.ndarray]:
    """Role, window and the character after it: overlapping windows become one text, role after role.

    A window that does not continue its role's last window begins a new piece.
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
    return _text_arrays(["".join(parts) for of_role in pieces.values() for parts in of_role], owner, list(pieces))


def _text_arrays(pieces: list[str], owner: list[int], names: list[str]) -> dict[str, np.ndarray]:
    """Pieces of text and their clients as flat arrays; non-ASCII characters become "?"."""
    codes = [np.frombuffer(piece.encode("ascii", "replace"), dtype=np.uint8) for piece in pieces]
    lengths = [len(code) for code in codes]
    return {
        "text": np.concatenate([*codes, np.empty(0, dtype=np.uint8)]),
        "client": np.repeat(np.array(owner, dtype=np.int32), lengths),
        "piece": np.repeat(np.arange(len(pieces), dtype=np.int32), lengths),
        "names": np.array(names),
    }
