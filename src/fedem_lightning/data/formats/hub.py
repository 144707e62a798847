"""Data sets of the Hugging Face hub: flwrlabs/femnist (parquet) and flwrlabs/shakespeare (csv or parquet)."""

import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
from PIL import Image

from fedem_lightning.data.formats.windows import TextJoiner
from fedem_lightning.errors import UserError, require


def read_hub_images(path: Path) -> dict[str, np.ndarray]:
    """Reads the columns image (bytes of a PNG), character (0..61) and writer_id. Pixels stay uint8."""
    x, y, writers = [], [], []
    for batch in _batches(path, ["image", "character", "writer_id"]):
        for image in batch.column("image").to_pylist():
            png = image.get("bytes") if isinstance(image, dict) else image
            try:
                x.append(np.asarray(Image.open(io.BytesIO(png or b"")).convert("L")))
            except (OSError, TypeError) as error:
                raise UserError(f"dataset.path: {path}: sample {len(x)} is no image ({error})") from error
            require(x[-1].shape == (28, 28), f"dataset.path: {path}: image {len(x) - 1} is {x[-1].shape}, not 28 x 28")
        y.extend(batch.column("character").to_pylist())
        writers.extend(batch.column("writer_id").to_pylist())
    require(bool(x), f"dataset.path: no samples in {path}")
    require(None not in y and None not in writers, f"dataset.path: {path}: a character or a writer_id is missing")
    names, client = np.unique(np.array(writers).astype(str), return_inverse=True)
    return {"x": np.stack(x), "y": np.array(y), "client": client, "client_names": names}


def read_hub_text(path: Path) -> dict[str, np.ndarray]:
    """Reads the columns character_id (play and role), x (80 characters) and y (the next character)."""
    joiner, found = TextJoiner(), False
    for batch in _batches(path, ["character_id", "x", "y"]):
        for row in zip(*(batch.column(name).to_pylist() for name in ("character_id", "x", "y")), strict=True):
            require(all(isinstance(value, str) for value in row), f"dataset.path: {path}: no text in a row of {row[0]}")
            joiner.add(*row)
            found = True
    require(found, f"dataset.path: no samples in {path}")
    return joiner.arrays()


def _batches(path: Path, columns: list[str]) -> Iterator[pa.RecordBatch]:
    files = [path] if path.is_file() else sorted((*path.rglob("*.parquet"), *path.rglob("*.csv")))
    for file in files:
        try:
            if file.suffix == ".parquet":
                table = pa.parquet.ParquetFile(file)
                missing = [name for name in columns if name not in table.schema_arrow.names]
                require(not missing, f"dataset.path: {file} lacks the columns {', '.join(missing)}")
                yield from table.iter_batches(columns=columns)
            else:
                parse = pa.csv.ParseOptions(newlines_in_values=True)
                strings = pa.csv.ConvertOptions(
                    include_columns=columns, column_types=dict.fromkeys(columns, pa.string())
                )
                yield from pa.csv.open_csv(file, parse_options=parse, convert_options=strings)
        except (pa.ArrowException, OSError, KeyError) as error:
            raise UserError(f"dataset.path: cannot read {', '.join(columns)} from {file} ({error})") from error
