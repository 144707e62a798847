"""LEAF's FEMNIST and Shakespeare (Caldas et al. 2018, arXiv 1812.01097), in two formats.

LEAF's own are JSON folders: {"users", "user_data": {user: {"x", "y"}}}. The Hugging Face hub's are flwrlabs/femnist
(parquet) and flwrlabs/shakespeare (csv or parquet).
"""

import csv
import io
import json
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
from PIL import Image

from fedem_lightning.data.arrays import as_array
from fedem_lightning.data.formats import check_file, files_in, reading
from fedem_lightning.data.formats.plays import TextJoiner
from fedem_lightning.data.names import check_ids, check_unread, shown
from fedem_lightning.errors import UserError, require
from fedem_lightning.settings.check import require_memory

SUBSETS = ("sampled_data", "rem_user_data", "train", "test")
"""Folders into which LEAF writes parts of `all_data`."""
NOT_NEEDED = ("hsf_id",)
"""Columns of the hub's tables that are not read."""


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
    without: dict[str, None] = {}  # samples
    found = set()
    for file in [path] if path.is_file() else files_in(path, ".json"):
        for user, data in _read(file).items():
            have = isinstance(data, dict) and {"x", "y"} <= data.keys()
            require(have, f"path: {file}: user {user} lacks x or y")
            lists = isinstance(data["x"], list) and isinstance(data["y"], list)
            require(lists, f"path: {file}: user {user}: x or y is no list")
            check_unread(f"path: {file}: user {user}", data, ("x", "y", "raw"))
            if data["x"] or data["y"]:
                found.add(user)
                yield file, user, data
            else:
                without[user] = None
    require(bool(found), f"path: no user with samples in {path}")
    left_out = [user for user in without if user not in found]
    if left_out:
        some = ", ".join(left_out[:3]) + ", ..." * (len(left_out) > 3)
        warnings.warn(f"path: {path}: {len(left_out)} users have no samples and are left out: {some}", stacklevel=3)


def _read(file: Path) -> dict[str, Any]:
    """What a file has under `user_data`, if it agrees with its lists of users and their numbers of samples."""
    check_file(file)
    try:
        content = json.loads(file.read_text(encoding="utf-8"), object_pairs_hook=_different)
    except (ValueError, OSError, RecursionError, MemoryError) as error:
        raise UserError(f"path: {file} is no whole JSON file ({error})") from error
    leaf = isinstance(content, dict) and isinstance(content.get("user_data"), dict)
    require(leaf, f"path: {file} is no LEAF file: it has no user_data")
    check_unread(f"path: {file}", content, ("users", "num_samples", "user_data", "hierarchies"))
    data: dict[str, Any] = content["user_data"]
    check_ids(f"path: {file}: users", list(data))
    users, sizes = content.get("users", list(data)), content.get("num_samples")
    same = isinstance(users, list) and sorted(map(str, users)) == sorted(data)
    require(same, f"path: {file}: the list of users has other names than user_data, which has {len(data)}")
    if sizes is not None:
        labels = [data[user].get("y") if isinstance(data[user], dict) else None for user in users]
        held = [len(y) if isinstance(y, list) else None for y in labels]
        require(sizes == held, f"path: {file}: num_samples are not the numbers of samples in user_data")
    return data


def _different(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON; ValueError if it has a name twice, of which Python would keep the last."""
    twice = [name for name, n in Counter(name for name, _ in pairs).items() if n > 1]
    if twice:
        raise ValueError(f"the name {shown(twice[0])} stands there twice")
    return dict(pairs)


def read_hub_images(path: Path) -> dict[str, np.ndarray]:
    """Reads the columns image (bytes of a PNG), character (0..61) and writer_id. Pixels stay uint8."""
    x: list[np.ndarray] = []
    y, writers = [], []
    for batch in _batches(path, ["image", "character", "writer_id"]):
        for image in batch.column("image").to_pylist():
            x.append(_pixels(path, len(x), image))
        y.extend(batch.column("character").to_pylist())
        writers.extend(batch.column("writer_id").to_pylist())
    require(bool(x), f"path: no samples in {path}")
    require(None not in y and None not in writers, f"path: {path}: a character or a writer_id is missing")
    with reading(path, "a character and a writer_id for each image"):
        owners = as_array(f"path: {path}: writer_id", writers)
        require(owners.dtype.kind in "iuU", f"path: {path}: writer_id: expected strings or whole numbers")
        names, client = np.unique(owners.astype(str), return_inverse=True)
        check_ids(f"path: {path}: writer_id", names.tolist())
        return {"x": np.stack(x), "y": np.array(y), "client": client, "client_names": names}


def _pixels(path: Path, number: int, image: Any) -> np.ndarray:
    """The pixels uint8 [28, 28] of a PNG or a JPEG; its size is looked at before it is unpacked."""
    content = image.get("bytes") if isinstance(image, dict) else image
    try:
        opened = Image.open(io.BytesIO(content or b""), formats=("PNG", "JPEG"))
        fits = opened.size == (28, 28)
        require(fits, f"path: {path}: image {number} is {opened.size[0]} x {opened.size[1]}, not 28 x 28")
        return np.asarray(opened.convert("L"))
    except UserError:
        raise
    except Exception as error:  # a broken image fails in many ways
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"path: {path}: sample {number} is no image ({reason})") from error


def read_hub_text(path: Path) -> dict[str, np.ndarray]:
    """Reads the columns character_id (play and role), x (80 characters) and y (the next character)."""
    joiner, found = TextJoiner(), False
    for batch in _batches(path, ["character_id", "x", "y"]):
        for row in zip(*(batch.column(name).to_pylist() for name in ("character_id", "x", "y")), strict=True):
            require(all(isinstance(value, str) for value in row), f"path: {path}: no text in a row of {row[0]}")
            joiner.add(*row)
            found = True
    require(found, f"path: no samples in {path}")
    return joiner.arrays()


def _batches(path: Path, columns: list[str]) -> Iterator[pa.RecordBatch]:
    found = [path] if path.is_file() else files_in(path, ".parquet", ".csv")
    kinds = {file.suffix.lower() for file in found}
    require(len(kinds) < 2, f"path: {path} has .parquet beside .csv files, the same samples twice; give one of them")
    for file in found:
        check_file(file)
        with reading(file, f"a table with {', '.join(columns)}"):
            if file.suffix.lower() == ".parquet":
                table = pa.parquet.ParquetFile(file)
                _check_columns(file, table.schema_arrow.names, columns)
                require_memory(f"path: {file}", 28 * 28 * table.metadata.num_rows, "the table")
                yield from table.iter_batches(columns=columns)
                continue
            with file.open(encoding="utf-8-sig", newline="") as text:
                _check_columns(file, next(csv.reader(text), []), columns)
            parse = pa.csv.ParseOptions(newlines_in_values=True)
            strings = pa.csv.ConvertOptions(include_columns=columns, column_types=dict.fromkeys(columns, pa.string()))
            yield from pa.csv.open_csv(file, parse_options=parse, convert_options=strings)


def _check_columns(file: Path, found: list[str], wanted: list[str]) -> None:
    missing = [name for name in wanted if name not in found]
    require(not missing, f"path: {file} lacks the columns {', '.join(missing)}")
    twice = [name for name, n in Counter(found).items() if n > 1]
    require(not twice, f"path: {file} has several columns of the name {', '.join(twice)}")
    check_unread(f"path: {file}", found, [*wanted, *NOT_NEEDED])
