"""LEAF's FEMNIST and Shakespeare (Caldas et al. 2018, arXiv 1812.01097), in two formats; and plays as plain text.

LEAF's own are JSON folders: {"users", "user_data": {user: {"x", "y"}}}. The Hugging Face hub's are flwrlabs/femnist
(parquet) and flwrlabs/shakespeare (csv or parquet).
"""

import io
import json
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from PIL import Image

from fedem_lightning.data.formats import files_in, reading
from fedem_lightning.data.names import check_ids
from fedem_lightning.errors import require

ROLE_NAME = r"[A-Z][A-Za-z'\-]*(?: (?:of|the|to|and|[A-Z][A-Za-z'\-]*)){0,5}"
COLON = re.compile(rf"^\s{{0,4}}(?P<role>{ROLE_NAME}):\s*(?P<text>.*)$")  # Hamlet: To be ...
DIRECTION = re.compile(r"\[[^\]]*\]")
CAPITALS = re.compile(r"^\s{0,4}(?P<role>[A-Z][A-Z' \-]{1,40})\.\s*(?P<text>.*)$")  # HAMLET. To be ...
SUBSETS = ("sampled_data", "rem_user_data", "train", "test")
"""Folders into which LEAF writes parts of `all_data`."""


def read_leaf_images(path: Path) -> dict[str, np.ndarray]:
    """Reads FEMNIST: the 784 floats in [0, 1] of an image become uint8 [28, 28] (255 is the white background).

    Files of a train and a test folder are pooled by user, because a federation makes its own splits.
    """
    x, y, users = [], [], []
    for file, user, data in _users(path):
        with reading(file, f"images of user {user}, 784 numbers in [0, 1] and a label each"):
            images, labels = np.asarray(data["x"], dtype=np.float64).reshape(-1, 28, 28), np.asarray(data["y"])
            require(
                labels.shape == (len(images),),
                f"path: {file}: user {user}: {len(images)} images, but labels of shape {labels.shape}",
            )
            require(bool(((images >= 0) & (images <= 1)).all()), f"path: {file}: user {user}: pixels outside [0, 1]")
            require(labels.dtype.kind in "iu", f"path: {file}: user {user}: labels are no whole numbers")
        x.append(np.round(images * 255).astype(np.uint8))
        y.append(labels.astype(np.int64))
        users.append(user)
    names, owner = np.unique(users, return_inverse=True)
    client = np.repeat(owner, [len(part) for part in y])
    return {"x": np.concatenate(x), "y": np.concatenate(y), "client": client, "client_names": names}


def read_leaf_text(path: Path) -> dict[str, np.ndarray]:
    """Reads Shakespeare: joins the windows of 80 characters and the next character to the roles' texts."""
    joiner = TextJoiner()
    for file, user, data in _users(path):
        with reading(file, f"windows x of user {user} and the character after each, y"):
            for window, following in zip(data["x"], data["y"], strict=True):
                joiner.add(user, window, following)
    return joiner.arrays()


def _users(path: Path) -> Iterator[tuple[Path, str, dict[str, Any]]]:
    """The users with samples, file by file."""
    twice = sorted(name for name in SUBSETS if (path / name).is_dir() and (path / "all_data").is_dir())
    require(not twice, f"path: {path} has all_data beside {', '.join(twice)}, the same samples twice; give one of them")
    without, found = set[str](), set[str]()
    for file in files_in(path, ".json"):
        with reading(file, "LEAF's JSON, with user_data: {user: {x, y}}"):
            users = json.loads(file.read_text(encoding="utf-8"))["user_data"]
            check_ids(f"path: {file}: users", list(users))
            sizes = {user: (len(data["x"]), len(data["y"])) for user, data in users.items()}
        for user, data in users.items():
            (found if any(sizes[user]) else without).add(user)
            if any(sizes[user]):
                yield file, user, data
    require(bool(found), f"path: no user with samples in {path}")
    if without - found:
        some = ", ".join(sorted(without - found)[:3])
        warnings.warn(f"path: {path}: {len(without - found)} users have no samples: {some}, ...", stacklevel=3)


def read_hub_images(path: Path) -> dict[str, np.ndarray]:
    """Reads the columns image (bytes of a PNG), character (0..61) and writer_id. Pixels stay uint8."""
    x, y, writers = [], [], []
    for file, image, character, writer in _columns(path, "image", "character", "writer_id"):
        with reading(file, "images of 28 x 28 pixels"):
            x += [_pixels(one) for one in image]
        y.append(character.to_numpy())
        writers.append(writer.astype(str).to_numpy(dtype=np.str_))
    names, client = np.unique(np.concatenate(writers), return_inverse=True)
    check_ids(f"path: {path}: writer_id", names.tolist())
    return {"x": np.stack(x), "y": np.concatenate(y), "client": client, "client_names": names}


def _pixels(image: Any) -> np.ndarray:
    """The pixels uint8 [28, 28] of a PNG or a JPEG."""
    opened = Image.open(io.BytesIO(image["bytes"] if isinstance(image, dict) else image), formats=("PNG", "JPEG"))
    if opened.size != (28, 28):  # before it is unpacked
        raise ValueError(f"one is {opened.size[0]} x {opened.size[1]}")
    return np.asarray(opened.convert("L"))


def read_hub_text(path: Path) -> dict[str, np.ndarray]:
    """Reads the columns character_id (play and role), x (80 characters) and y (the next character)."""
    joiner = TextJoiner()
    for file, role, x, y in _columns(path, "character_id", "x", "y"):
        with reading(file, "texts character_id, x and y"):
            for row in zip(role, x, y, strict=True):
                joiner.add(*row)
    return joiner.arrays()


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
    """Reads a .txt file, or a folder of such files.

    A speech begins with its role, followed by a colon, or in capitals followed by a full stop; it ends where the next
    begins. Lines before the first speech and [directions] are left out. The speeches of a role are joined by newlines.

    Raises:
        UserError: there is no text, it is not UTF-8, or it has no speech.

    """
    roles: dict[str, list[str]] = {}
    for file in files_in(path, ".txt"):
        with reading(file, "UTF-8 text"):
            lines = file.read_text(encoding="utf-8").splitlines()
        speech: list[str] | None = None
        for line in lines:
            begins = COLON.match(line) or CAPITALS.match(line)
            text = DIRECTION.sub("", begins["text"] if begins else line).strip()
            if begins:
                speech = roles.setdefault(f"{file.stem}/{begins['role'].strip()}", [])
            if speech is not None and text:
                speech.append(text)
    roles = {name: speeches for name, speeches in roles.items() if speeches}
    require(bool(roles), f"path: no speeches in {path}; expected lines such as HAMLET. To be ... or Hamlet: To be")
    return text_arrays(["\n".join(speeches) for speeches in roles.values()], list(range(len(roles))), list(roles))


class TextJoiner:
    """Joins overlapping windows to one text, instead of storing the text 80 times.

    A window that does not continue its role's last window begins a new piece.
    """

    def __init__(self) -> None:
        self._pieces: dict[str, list[list[str]]] = {}
        self._expected: dict[str, str] = {}

    def add(self, role: str, window: str, following: str) -> None:
        """Adds a window of the role's text, and the character after it."""
        pieces = self._pieces.setdefault(role, [])
        if self._expected.get(role) == window:
            pieces[-1].append(following)
        else:
            pieces.append([window, following])
        self._expected[role] = (window + following)[1:]

    def arrays(self) -> dict[str, np.ndarray]:
        """All texts as flat arrays, role after role."""
        owner = [t for t, pieces in enumerate(self._pieces.values()) for _ in pieces]
        texts = ["".join(parts) for pieces in self._pieces.values() for parts in pieces]
        return text_arrays(texts, owner, list(self._pieces))


def text_arrays(pieces: list[str], owner: list[int], names: list[str]) -> dict[str, np.ndarray]:
    """Pieces of text and their clients as flat arrays; non-ASCII characters become "?"."""
    check_ids("path: the clients' names", names)
    codes = [np.frombuffer(piece.encode("ascii", "replace"), dtype=np.uint8) for piece in pieces]
    lengths = [len(code) for code in codes]
    return {
        "text": np.concatenate([*codes, np.empty(0, dtype=np.uint8)]),
        "client": np.repeat(np.array(owner, dtype=np.int32), lengths),
        "piece": np.repeat(np.arange(len(pieces), dtype=np.int32), lengths),
        "client_names": np.array(names),
    }
