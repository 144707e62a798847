"""LEAF's JSON folders (Caldas et al. 2018, arXiv 1812.01097): {"users", "user_data": {user: {"x", "y"}}}."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fedem_lightning.data.formats.checks import check_file
from fedem_lightning.data.formats.windows import TextJoiner
from fedem_lightning.errors import UserError, require

SUBSETS = ("sampled_data", "rem_user_data", "train", "test")
"""Folders into which LEAF writes parts of `all_data`."""


def read_leaf_images(path: Path) -> dict[str, np.ndarray]:
    """Reads FEMNIST: the 784 floats in [0, 1] of an image become uint8 [28, 28] (255 is the white background).

    Files of a train and a test folder are pooled by user, because a federation makes its own splits.
    """
    x, y, users = [], [], []
    for file, user, data in _users(path):
        try:
            images = np.asarray(data["x"], dtype=np.float64)
            labels = np.asarray(data["y"])
        except (ValueError, TypeError) as error:
            raise UserError(f"path: {file}: user {user}: x or y is no array of numbers ({error})") from error
        require(
            images.ndim == 2 and images.shape[1] == 784 and labels.shape == (len(images),),
            f"path: {file}: user {user}: expected x with 784 numbers an image and a label for each, got shapes "
            f"{images.shape} and {labels.shape}",
        )
        require(bool(((images >= 0) & (images <= 1)).all()), f"path: {file}: user {user}: pixels outside [0, 1]")
        require(labels.dtype.kind in "iu", f"path: {file}: user {user}: labels are no whole numbers")
        x.append(np.round(images * 255).astype(np.uint8).reshape(-1, 28, 28))
        y.append(labels.astype(np.int64))
        users.append(user)
    names, owner = np.unique(users, return_inverse=True)
    client = np.repeat(owner, [len(part) for part in y])
    return {"x": np.concatenate(x), "y": np.concatenate(y), "client": client, "client_names": names}


def read_leaf_text(path: Path) -> dict[str, np.ndarray]:
    """Reads Shakespeare: joins the windows of 80 characters and the next character to the roles' texts."""
    joiner = TextJoiner()
    for file, user, data in _users(path):
        x, y = data["x"], data["y"]
        require(
            all(isinstance(value, str) for value in (*x, *y)) and len(x) == len(y),
            f"path: {file}: user {user}: expected strings x and the character after each, y",
        )
        for window, following in zip(x, y, strict=True):
            joiner.add(user, window, following)
    return joiner.arrays()


def _users(path: Path) -> Iterator[tuple[Path, str, dict[str, Any]]]:
    twice = sorted(name for name in SUBSETS if (path / name).is_dir())
    require(
        not (twice and (path / "all_data").is_dir()),
        f"path: {path} has all_data beside {', '.join(twice)}, the same samples twice; give one of the folders",
    )
    files = [path] if path.is_file() else sorted(path.rglob("*.json"))
    found = False
    for file in filter(Path.is_file, files):
        check_file(file)
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
        except (ValueError, OSError, RecursionError, MemoryError) as error:
            raise UserError(f"path: {file} is no whole JSON file ({error})") from error
        leaf = isinstance(content, dict) and isinstance(content.get("user_data"), dict)
        require(leaf, f"path: {file} is no LEAF file: it has no user_data")
        for user, data in content["user_data"].items():
            have = isinstance(data, dict) and {"x", "y"} <= data.keys()
            require(have, f"path: {file}: user {user} lacks x or y")
            lists = isinstance(data["x"], list) and isinstance(data["y"], list)
            require(lists, f"path: {file}: user {user}: x or y is no list")
            if len(data["x"]):
                found = True
                yield file, user, data
    require(found, f"path: no user with samples in {path}")
