"""DATA of the commands: rows of samples and their clients, in the form that a trained model takes."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedem_lightning.data.arrays import check_clients, check_split
from fedem_lightning.data.datamodule import ARRAYS
from fedem_lightning.data.federation import Federation
from fedem_lightning.data.formats import read_npz
from fedem_lightning.data.names import listed
from fedem_lightning.data.samples import Samples
from fedem_lightning.data.schema import Schema
from fedem_lightning.data.table_features import check_values, numbers, words
from fedem_lightning.data.tables import read_table, strings_or_whole
from fedem_lightning.errors import UserError, require


@dataclass(frozen=True)
class ClientRows:
    """n samples of K clients, in the form of training: client int64 [n] in 0..K-1, names [K].

    split: 0 train, 1 val, 2 test, int8 [n]; None: DATA has none. Labels that the caller does not want are zeros.
    """

    samples: Samples
    client: np.ndarray
    names: tuple[str, ...]
    split: np.ndarray | None

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
class RowColumns:
    """The one client of all rows (None: DATA names them), and columns of a table (None: those of training)."""

    client: str | None = None
    client_column: str | None = None
    label_column: str | None = None

    def given(self) -> dict[str, str]:
        """The columns that the user has named, by option."""
        both = {"--client-column": self.client_column, "--label-column": self.label_column}
        return {option: name for option, name in both.items() if name is not None}


def read_rows(path: Path, schema: Schema, columns: RowColumns = RowColumns(), labelled: bool = False) -> ClientRows:
    """Reads DATA, an .npz with x, client and optional y, split, names, or a table; labels only if they are needed.

    UserError if the file is missing or broken, or has another form than the samples of training.
    """
    several = ", ".join(schema.in_shape) if isinstance(schema.in_shape, Mapping) else ""
    python = f"in Python model.client(NAME).predict takes a dictionary of {several}"
    require(not several, f"DATA: the model takes samples of several arrays, the commands one array x; {python}")
    require(schema.vocabulary is None, "DATA: the model is one of texts; the commands take arrays and tables only")
    try:
        found = (_from_npz if path.suffix.lower() == ".npz" else _from_table)(path, schema, columns, labelled)
    except UserError as error:  # the readers call their argument `path`
        raise UserError(re.sub("^path:", "DATA:", str(error))) from error
    require(found["x"].ndim > 0 and len(found["x"]) > 0, f"DATA: {path} has no rows")
    require("y" in found or not labelled, f"DATA: {path} has no labels ({found['label']})")
    if "y" in found:
        fits = found["y"].shape[:1] == found["x"].shape[:1]
        require(fits, f"y: expected labels of {len(found['x'])} samples as x has, got shape {found['y'].shape}")
    n = len(found["x"])
    client, names = _clients(found, columns, schema, n)
    split = None if found.get("split") is None else check_split(found["split"], n)
    samples = schema.samples_of(found["x"], schema.labels(found["y"]) if "y" in found else None)
    return ClientRows(samples, client, names, split)


def _from_npz(path: Path, schema: Schema, columns: RowColumns, labelled: bool) -> dict[str, Any]:
    for option in columns.given():
        raise UserError(f"{option}: only a table has columns; an .npz has x, y, client")
    require(schema.features is None, "DATA: the model trained on a table; expected a .csv, .tsv or .parquet file")
    arrays = read_npz(path, ARRAYS)
    require("x" in arrays, f"DATA: {path} lacks x; expected x, client, optional y, split, names")
    found: dict[str, Any] = {n: arrays[n] for n in ("x", "client", "split", *["y"] * labelled) if n in arrays}
    return {**found, "names": arrays.get("names"), "label": "an array y", "missing": "an array client"}


def _from_table(path: Path, schema: Schema, columns: RowColumns, labelled: bool) -> dict[str, Any]:
    client = columns.client_column or schema.columns.get("client", "client")
    frame = read_table(path, (client,))
    frame.columns = frame.columns.astype(str)
    label = columns.label_column or schema.columns.get("label", "y")
    for option, name in columns.given().items():
        require(name in frame.columns, f"{option}: {path} has no column {name}, only {listed(list(frame.columns))}")
    require(client != label, f"--client-column: the column {client} holds the labels")
    features = [] if schema.features is None else [column["name"] for column in schema.features.columns]
    known = {"client": client, "y": label, "split": schema.columns.get("split", "split")}
    known = {what: name for what, name in known.items() if name in frame.columns and name not in features}
    read = {what: name for what, name in known.items() if what != "y" or labelled}
    check_values(frame, list(read.values()))
    found: dict[str, Any] = {what: strings_or_whole(frame[name]) for what, name in read.items() if what != "y"}
    if "y" in read and schema.classes is None:
        found["y"] = numbers(frame[label])
    elif "y" in read:  # names of classes, as in training
        found["y"] = words(frame[label]).astype(str)
    x = schema.x_of(frame if schema.features is not None else frame.drop(columns=list(known.values())))
    return {**found, "x": x, "names": None, "label": f"a column {label}", "missing": f"a column {client}"}


def _clients(
    found: Mapping[str, Any], columns: RowColumns, schema: Schema, n: int
) -> tuple[np.ndarray, tuple[str, ...]]:
    """The client of each row [n], and the names of the clients that have rows, those of the run first, in its order."""
    if columns.client is not None:
        require(columns.client != "", "--client: expected a name, got none")
        require("client" not in found, "--client: DATA names the clients of its rows; give either")
        return np.zeros(n, dtype=np.int64), (columns.client,)
    if "client" not in found and schema.n_clients == 1:
        return np.zeros(n, dtype=np.int64), (schema.name(0),)
    require("client" in found, f"DATA: no clients ({found['missing']}); or --client NAME, if all rows are one client's")
    codes, names = check_clients(found["client"], found["names"], n)
    places = {t: schema.place(names[t]) for t in np.unique(codes).tolist()}
    present = sorted(places, key=lambda t: (places[t] is None, places[t] or 0))
    position = np.zeros(len(names), dtype=np.int64)
    position[present] = np.arange(len(present))
    return position[codes], tuple(names[t] for t in present)
