"""DATA of the commands: rows of samples and their clients, in the form that a trained model takes."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from fedem_lightning.data.arrays import as_array, check_clients
from fedem_lightning.data.federation import Federation
from fedem_lightning.data.formats.npz import read_npz
from fedem_lightning.data.samples import Samples
from fedem_lightning.data.schema import Schema
from fedem_lightning.data.splits import SPLITS
from fedem_lightning.errors import UserError, require
from fedem_lightning.serving.options import TABLES


@dataclass(frozen=True)
class Rows:
    """n samples of K clients.

    Args:
        samples: in the form of training; without labels, labels are zeros.
        client: the client of each row, int64 [n] in 0..K-1.
        names: of the clients that have rows, [K].
        split: 0 train, 1 val, 2 test, int8 [n]; None: DATA has none.
        labelled: whether DATA has labels.

    """

    samples: Samples
    client: np.ndarray
    names: tuple[str, ...]
    split: np.ndarray | None
    labelled: bool

    def __len__(self) -> int:
        return len(self.client)

    def codes(self) -> np.ndarray:
        """The split of each row, int8 [n]; without splits all rows are for training."""
        return np.zeros(len(self), dtype=np.int8) if self.split is None else self.split

    def federation(self, schema: Schema, codes: np.ndarray) -> Federation:
        """The K clients with their samples, split by `codes` (int [n]; -1: left out); none of them trains."""
        seen = np.zeros(len(self.names), dtype=bool)
        return Federation.from_samples(self.samples, self.client, codes, task=schema.task, names=self.names, seen=seen)


@dataclass(frozen=True)
class Columns:
    """Where DATA has what.

    Args:
        client: the one client of all rows; None: DATA names them.
        client_column, label_column: columns of a table; None: those of training, else "client" and "y".

    """

    client: str | None = None
    client_column: str | None = None
    label_column: str | None = None


def read_rows(path: Path, schema: Schema, columns: Columns = Columns(), labelled: bool = False) -> Rows:
    """Reads DATA.

    Args:
        path: an .npz with x, client and optional y, split, names, or a table.
        schema: of the model.
        columns: where DATA has what.
        labelled: whether labels must be there.

    Raises:
        UserError: the file is missing or broken, or has another form than the samples of training.

    """
    require(schema.vocabulary is None, "DATA: the model is one of texts; the commands take arrays and tables only")
    found = _from_npz(path, columns) if path.suffix.lower() == ".npz" else _from_table(path, schema, columns)
    x, y = found["x"], found.get("y")
    require(x.ndim > 0 and len(x) > 0, f"DATA: {path} has no rows")
    require(y is not None or not labelled, f"DATA: {path} has no labels ({found['label']})")
    client, names = _clients(found, columns, schema, len(x))
    split = None if found.get("split") is None else _split(found["split"], len(x))
    labels = None if y is None else _labels(y, schema, len(x))
    return Rows(schema.samples_of(_in_form(x, schema), labels), client, names, split, y is not None)


def _from_npz(path: Path, columns: Columns) -> dict[str, Any]:
    for option, given in (("--client-column", columns.client_column), ("--label-column", columns.label_column)):
        require(given is None, f"{option}: only a table has columns; an .npz has x, y, client")
    try:
        arrays = read_npz(path)
    except UserError as error:
        raise UserError(str(error).replace("dataset.path:", "DATA:")) from error
    require("x" in arrays, f"DATA: {path} lacks x; expected x, client, optional y, split, names")
    wanted: dict[str, Any] = {name: arrays[name] for name in ("x", "y", "client", "split") if name in arrays}
    names = arrays.get("client_names", arrays.get("names"))
    return {**wanted, "names": names, "label": "an array y", "missing": "an array client"}


def _from_table(path: Path, schema: Schema, columns: Columns) -> dict[str, Any]:
    frame = _read_table(path)
    client = columns.client_column or schema.columns.get("client", "client")
    label = columns.label_column or schema.columns.get("label", "y")
    for option, given in (("--client-column", columns.client_column), ("--label-column", columns.label_column)):
        there = f"{option}: {path} has no column {given}, only {_some(list(frame.columns))}"
        require(given is None or given in frame.columns, there)
    require(client != label, f"--client-column: the column {client} holds the labels")
    known = {"client": client, "y": label, "split": schema.columns.get("split", "split")}
    found = {what: as_array(name, _plain(frame[name])) for what, name in known.items() if name in frame.columns}
    x = _features(frame.drop(columns=[name for name in known.values() if name in frame.columns]), schema, frame)
    return {**found, "x": x, "names": None, "label": f"a column {label}", "missing": f"a column {client}"}


def _read_table(path: Path) -> pd.DataFrame:
    kind = path.suffix.lower()
    require(kind in TABLES, f"DATA: expected a file that ends in .npz, {', '.join(TABLES)}, got {path.name}")
    require(path.is_file(), f"DATA: no file {path}")
    try:
        if kind == ".parquet":
            frame = pd.read_parquet(path)
        else:
            frame = pd.read_csv(path, sep="," if kind == ".csv" else "\t", encoding="utf-8-sig", index_col=False)
    except (ValueError, OSError, pa.ArrowException) as error:
        raise UserError(f"DATA: cannot read {path} as {kind} ({error})") from error
    frame.columns = frame.columns.astype(str)
    twice = frame.columns[frame.columns.duplicated()].tolist()
    require(not twice, f"DATA: {path} has several columns of the name {', '.join(twice[:3])}")
    require(len(frame) > 0, f"DATA: {path} has no rows")
    return frame


def _plain(column: pd.Series) -> Any:
    """A column as an array; strings and categories are objects."""
    missing = int(column.isna().sum())
    require(missing == 0, f"DATA: {missing} of {len(column)} rows have no value in the column {column.name}")
    if pd.api.types.is_numeric_dtype(column):
        return np.array(column)  # a copy: pandas' own arrays are read-only, which torch warns of
    return column.to_numpy(dtype=object)


def _features(others: pd.DataFrame, schema: Schema, frame: pd.DataFrame) -> np.ndarray:
    """x [n, d] of a table: the model's own features of it, or its other columns in their order."""
    if schema.features is not None:
        return schema.features.transform(frame)
    shape = ", ".join(map(str, schema.raw_shape))
    require(len(schema.raw_shape) == 1, f"DATA: samples of shape [{shape}] are in no table; expected an .npz")
    n, names = schema.raw_shape[0], [str(name) for name in others.columns]
    require(len(names) == n, f"DATA: expected {n} columns of features as in training, got {len(names)}: {_some(names)}")
    words = [name for name in names if not pd.api.types.is_numeric_dtype(others[name])]
    require(not words, f"DATA: expected numbers in the columns of features, not in {_some(words)}")
    return np.array(others.to_numpy(dtype=np.float64, na_value=np.nan))  # a copy, see `_plain`


def _in_form(x: np.ndarray, schema: Schema) -> np.ndarray:
    """Numbers of the same kind as in training: bytes are pixels only where they were then."""
    require(x.dtype.kind in "fiub", f"x: expected numbers, got dtype {x.dtype}")
    if schema.pixels is None:
        return x.astype(np.float32) if x.dtype == np.uint8 else x
    bytes_ = x.astype(np.uint8) if np.isfinite(x).all() else None
    require(bytes_ is not None and np.array_equal(bytes_, x), "x: expected images in 0..255 as in training")
    return x.astype(np.uint8)


def _clients(found: Mapping[str, Any], columns: Columns, schema: Schema, n: int) -> tuple[np.ndarray, tuple[str, ...]]:
    """The client of each row [n], and the names of the clients that have rows.

    Clients of the run come first and in its order, in which means over clients have the run's bits.
    """
    if columns.client is not None:
        require(columns.client != "", "--client: expected a name, got none")
        require("client" not in found, "--client: DATA names the clients of its rows; give either")
        return np.zeros(n, dtype=np.int64), (columns.client,)
    require("client" in found, f"DATA: no clients ({found['missing']}); or --client NAME, if all rows are one client's")
    codes, names = check_clients(found["client"], found["names"], n)
    present = np.unique(codes).tolist()
    places = {t: schema.place(names[t]) for t in present}
    present.sort(key=lambda t: (places[t] is None, places[t] or 0))
    own = tuple(names[t] for t in present)
    require(len(set(own)) == len(own), "names: two clients have the same name")
    position = np.zeros(len(names), dtype=np.int64)
    position[present] = np.arange(len(present))
    return position[codes], own


def _split(split: np.ndarray, n: int) -> np.ndarray:
    require(split.shape == (n,), f"split: expected shape ({n},) as x has, got {split.shape}")
    if split.dtype.kind in "SUO":
        words = split.astype(str)
        require(bool(np.isin(words, SPLITS).all()), f"split: expected the words {', '.join(SPLITS)}")
        return np.select([words == name for name in SPLITS], range(3)).astype(np.int8)
    right = split.dtype.kind in "iu" and bool(np.isin(split, (0, 1, 2)).all())
    require(right, "split: expected 0 train, 1 val, 2 test, or these words")
    return split.astype(np.int8)


def _labels(y: np.ndarray, schema: Schema, n: int) -> np.ndarray:
    """Labels as the task has them."""
    if hasattr(schema.task, "n_classes"):
        return schema.labels(y)
    size = schema.task.n_outputs
    shapes = [(n,), (n, 1)] if size == 1 else [(n, size)]
    numbers = y.dtype.kind in "fiub" and y.shape in shapes
    require(numbers, f"y: expected {size} number{'s' * (size > 1)} for each of {n} rows, got {y.dtype} {y.shape}")
    require(bool(np.isfinite(y).all()), "y: NaN or infinity")
    return y if y.dtype in (np.float32, np.float64) else y.astype(np.float32)


def _some(names: list[str]) -> str:
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
