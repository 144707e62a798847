"""DATA of the commands: rows of samples and their clients, in the form that a trained model takes."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedem_lightning.data.arrays import check_clients, check_split
from fedem_lightning.data.datamodule import ARRAYS
from fedem_lightning.data.formats import read_npz
from fedem_lightning.data.samples import Samples
from fedem_lightning.data.schema import Schema
from fedem_lightning.data.table_features import check_values, numbers, words
from fedem_lightning.data.tables import read_table, strings_or_whole
from fedem_lightning.settings.errors import UserError, require


@dataclass(frozen=True)
class ClientRows:
    """n samples of K clients, in the form of training: client int64 [n] in 0..K-1, names [K].

    split: 0 train, 1 val, 2 test, int8 [n]; None: DATA has none. Samples have the labels that the caller wants.
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


def read_rows(path: Path, schema: Schema, labelled: bool | Literal["if there"] = False) -> ClientRows:
    """Reads DATA, an .npz with x, client and optional y, split, names, or a table; labels only if they are wanted.

    UserError if the file is missing or broken, or has another form than the samples of training.
    """
    one_array = schema.vocabulary is None and not isinstance(schema.in_shape, Mapping)
    python = "in Python model.client(NAME).predict takes what the model takes"
    require(one_array, f"DATA: the model takes texts or several arrays, the commands one array x or a table; {python}")
    try:
        result = _from_npz(path, schema) if path.suffix.lower() == ".npz" else _from_table(path, schema, labelled)
    except UserError as error:  # the readers call their argument `path`
        raise UserError(re.sub("^path:", "DATA:", str(error))) from error
    n = len(result["x"]) if result["x"].ndim else 0
    require(n > 0, f"DATA: {path} has no rows")
    labels = None
    if labelled is True or (labelled and "y" in result):
        require("y" in result, f"DATA: {path} has no labels ({schema.columns.get('label', 'y')})")
        shape = result["y"].shape
        require(shape[:1] == (n,), f"y: expected labels of {n} samples as x has, got shape {shape}")
        labels = schema.labels(result["y"])
    owner, names = _clients(result, schema, n)
    split = check_split(result["split"], n) if "split" in result else None
    return ClientRows(schema.samples_of(result["x"], labels), owner, names, split)


def _from_npz(path: Path, schema: Schema) -> dict[str, np.ndarray]:
    require(schema.features is None, "DATA: the model trained on a table; expected a .csv or .parquet file")
    arrays = read_npz(path, ARRAYS)
    require("x" in arrays, f"DATA: {path} lacks x; expected x, client, optional y, split, names")
    return arrays


def _from_table(path: Path, schema: Schema, labelled: bool | str) -> dict[str, Any]:
    """x, and of the columns of training y, client and split those that are there and are no features."""
    roles = {"client": "client", "y": "label", "split": "split"}
    named = {what: schema.columns.get(role, what) for what, role in roles.items() if what != "y" or labelled}
    frame = read_table(path, (named["client"],))
    frame.columns = frame.columns.astype(str)
    features = [] if schema.features is None else [column["name"] for column in schema.features.columns]
    read = {what: name for what, name in named.items() if name in frame.columns and name not in features}
    check_values(frame, list(read.values()))
    result: dict[str, Any] = {what: strings_or_whole(frame[name]) for what, name in read.items() if what != "y"}
    if "y" in read:  # names of classes, as in training
        result["y"] = numbers(frame[read["y"]]) if schema.classes is None else words(frame[read["y"]]).astype(str)
    return {**result, "x": schema.x_of(frame)}


def _clients(result: Mapping[str, Any], schema: Schema, n: int) -> tuple[np.ndarray, tuple[str, ...]]:
    """The client of each row [n], and the names of the clients that have rows, those of the run first, in its order."""
    if "client" not in result and schema.n_clients == 1:
        return np.zeros(n, dtype=np.int64), (schema.name(0),)
    column = schema.columns.get("client", "client")
    require("client" in result, f"DATA: no clients ({column})")
    codes, names = check_clients(result["client"], result.get("names"), n)
    places = {t: schema.place(names[t]) for t in np.unique(codes).tolist()}
    present = sorted(places, key=lambda t: (places[t] is None, places[t] or 0))
    position = np.zeros(len(names), dtype=np.int64)
    position[present] = np.arange(len(present))
    return position[codes], tuple(names[t] for t in present)
