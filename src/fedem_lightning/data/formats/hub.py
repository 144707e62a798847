"""Data sets of the Hugging Face hub: flwrlabs/femnist (parquet) and flwrlabs/shakespeare (csv or parquet)."""

import csv
import io
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
from fedem_lightning.data.formats.checks import check_file, check_size, files_in, reading
from fedem_lightning.data.formats.windows import TextJoiner
from fedem_lightning.data.names import check_ids
from fedem_lightning.data.unread import check_unread
from fedem_lightning.errors import UserError, require

NOT_NEEDED = ("hsf_id",)
"""Columns of the hub's tables that are not read."""


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
            yield from _parquet(file, columns) if file.suffix.lower() == ".parquet" else _csv(file, columns)


def _parquet(file: Path, columns: list[str]) -> Iterator[pa.RecordBatch]:
    table = pa.parquet.ParquetFile(file)
    missing = [name for name in columns if name not in table.schema_arrow.names]
    require(not missing, f"path: {file} lacks the columns {', '.join(missing)}")
    check_unread(f"path: {file}", table.schema_arrow.names, [*columns, *NOT_NEEDED])
    check_size(file, 28 * 28 * table.metadata.num_rows, "the table")
    yield from table.iter_batches(columns=columns)


def _csv(file: Path, columns: list[str]) -> Iterator[pa.RecordBatch]:
    with file.open(encoding="utf-8-sig", newline="") as text:
        header = next(csv.reader(text), [])
    twice = [name for name, n in Counter(header).items() if n > 1]
    require(not twice, f"path: {file} has several columns of the name {', '.join(twice)}")
    check_unread(f"path: {file}", header, [*columns, *NOT_NEEDED])
    parse = pa.csv.ParseOptions(newlines_in_values=True)
    strings = pa.csv.ConvertOptions(include_columns=columns, column_types=dict.fromkeys(columns, pa.string()))
    yield from pa.csv.open_csv(file, parse_options=parse, convert_options=strings)
