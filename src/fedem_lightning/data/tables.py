"""A user's own table with a row a sample: its file, what its columns are for, and the federation of its rows."""

import csv
import functools
import re
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd

from fedem_lightning.data.arrays import as_array, checked_names, listed
from fedem_lightning.data.datamodule import FederatedDataModule
from fedem_lightning.data.formats import reading
from fedem_lightning.data.own_data import OwnArrays, OwnOptions, checked_federation
from fedem_lightning.data.table_features import DATE, Fill, TableFeatures, check_values, kind_of, numbers, words
from fedem_lightning.data.tasks import TaskName
from fedem_lightning.settings.check import grouped
from fedem_lightning.settings.errors import meant, require
from fedem_lightning.settings.measures import SPLITS
from fedem_lightning.settings.ranges import Column, Columns

FEW_VALUES = 20
"""Whole numbers with up to as many different values are classes, unless `task` says otherwise."""
OF_TIME = frozenset(("date", "datetime", "timestamp", "day", "week", "month", "year"))
OF_ENTITIES = frozenset(("id", "patient", "subject", "person", "participant", "user", "customer", "device", "session"))
"""Words in the name of a column that holds times, or of one whose values say which rows belong together."""
WHOLE = r"(0|-?[1-9]\d{0,17})"


class TableDataModule(FederatedDataModule):
    """Reads a table whose columns hold the label, the client and the features of each sample.

    Numbers are standardised by the mean and deviation of the training samples of the clients that train; strings,
    booleans and categories become one-hot. `federation.features` keeps this transformation for new rows.

    Args:
        path: the .csv or .parquet file.
        label: name of the label's column.
        client: name of the client's column; None: `partition` deals the rows to clients.
        features: names of the features' columns; default: all other columns.
        categorical: names of the features that are categories although they hold numbers.
        missing: "median": missing numbers become the median of the training samples of the clients that train, and a
            feature says where; missing categories are a category. None: missing values are refused.
        split: name of a column with 0 train, 1 val, 2 test (or these words); default: drawn per client by `fractions`.
        task: "classification" (one logit a class), "binary" (one logit), or "regression". Default: classification if
            the labels are strings, booleans, or whole numbers with at most 20 different values; regression otherwise.
        options: those of `TaskOptions`, `Partitioning` and `OwnSplitting`.

    """

    def __init__(
        self,
        path: str | Path | None,
        label: Column | None,
        client: Column | None = None,
        features: Columns | None = None,
        categorical: Columns = (),
        missing: Fill | None = None,
        split: Column | None = None,
        task: TaskName | None = None,
        **options: Annotated[Any, OwnOptions],
    ) -> None:
        (own,) = grouped(options, OwnOptions)
        require(path is not None, "path: expected a .csv or .parquet file, e.g. path=my.csv")
        frame = read_table(Path(str(path)).expanduser(), () if client is None else (str(client),))
        others = {"client": client, "split": split, "split_by": own.parts[1]}
        roles = _roles(frame, label, others, needs_client=own.partition == "natural")
        names = _features(frame, roles, features)
        known = [_known("categorical", name, names, what="feature") for name in categorical]
        check_values(frame, list(roles.values()))
        check_values(frame, names, missing is not None, "; or missing=median fills and marks them")
        y, task, message = labels_of(frame[roles["label"]], task)
        given: dict[str, Any] = {r: strings_or_whole(frame[roles[r]]) for r in ("client", "split") if r in roles}
        learn = functools.partial(TableFeatures.fit, frame, columns=names, categorical=known, missing=missing)
        given["by"] = frame[roles["split_by"]] if "split_by" in roles else None
        arrays, notes = OwnArrays(frame, y, **given), {"source": str(path), "columns": roles, **message}
        super().__init__(checked_federation(arrays, replace(own, task=task), notes, learn))
        if not {"split", "split_by"} & roles.keys():
            warn_of_random_split(frame, roles)


def _roles(frame: pd.DataFrame, label: Any, others: dict[str, Any], needs_client: bool) -> dict[str, str]:
    """The columns that are the label and, where they are named or needed, others, by role."""
    there, roles = list(frame.columns), {"label": _known("label", label, list(frame.columns))}
    for role, name in others.items():
        if name is not None or (needs_client and role == "client"):
            name = _known(role, name, there, otherwise="; or deal the rows by partition=iid" * (role == "client"))
            taken = next((other for other, one in roles.items() if one == name), None)
            require(taken is None, f"{role}: column {name!r} is the {taken} already")
            roles[role] = name
    return roles


def _features(frame: pd.DataFrame, roles: dict[str, str], given: Any) -> list[str]:
    """The columns to learn from; UserError if one of those that nobody has named is hardly a feature, but a split."""
    if given is not None:
        names = [_known("features", name, list(frame.columns)) for name in given]
        require(len(set(names)) == len(names), f"features: it names a column twice, got {', '.join(names)}")
        for role, name in roles.items():
            require(name not in names or role == "split_by", f"features: column {name!r} is the {role}")
    else:
        names = [name for name in frame.columns if name not in roles.values()]
        for name in names if "split" not in roles else ():
            odd = "split" in name.lower() and frame[name].nunique() <= 5
            odd = odd or (frame[name].dtype == "str" and set(frame[name].dropna()) in ({*SPLITS}, {"train", "test"}))
            way_out = f"split={name} splits by it; features=[...] names what to learn from in its place"
            require(not odd, f"column {name!r} looks like a split: {way_out}")
    require(len(names) > 0, f"features: no column is left beside {', '.join(roles)}")
    return names


def _known(key: str, name: Any, there: list[str], otherwise: str = "", what: str = "column") -> str:
    """A name of these; `otherwise` ends the line about one that was not given."""
    some = f"there are {listed(there, 20)}"
    require(name is not None, f"{key}: expected the name of a column; {some}{otherwise}")
    require(str(name) in there, f"{key}: no {what} {str(name)!r}{meant(name, there) or f'; {some}'}")
    return str(name)


def warn_of_random_split(frame: pd.DataFrame, taken: Mapping[str, str]) -> None:
    """Warns of columns (but those `taken`, by role) that seem to be times, or to say whose rows they are."""
    for name in frame.columns.difference(list(taken.values()), sort=False):
        words = set(re.split(r"[^a-z]+", re.sub(r"([a-z])([A-Z])", r"\1 \2", str(name)).lower()))
        column = frame[name].dropna()
        text, numeric = pd.api.types.is_string_dtype(column), pd.api.types.is_numeric_dtype(column)
        dates = text and bool(column.iloc[:1000].str.fullmatch(DATE).all())
        times = dates or pd.api.types.is_datetime64_any_dtype(column) or (numeric and bool(words & OF_TIME))
        n = column.nunique() if text or numeric else 0
        if times and n > 1:
            message = "looks like a time: a random split trains on rows that are later than those it tests on; "
            message += f"split_by=time:{name} tests on each client's last rows"
        elif words & OF_ENTITIES and 5 <= n <= len(column) / 2:
            message = f"looks like an identifier, with {n} values in {len(column)} rows: a random split "
            message += f"puts rows of one into training and test; split_by=group:{name} keeps them together"
        else:
            continue
        warnings.warn(f"column {name!r} {message}", stacklevel=4)


def labels_of(column: pd.Series, task: TaskName | None) -> tuple[np.ndarray, TaskName, dict[str, Any]]:
    """The labels [n], their task, found by the rule of `TableDataModule` if it is None, and notes of both."""
    one = "task: a table has one label a row, expected classification, binary or regression"
    require(task in (None, "classification", "binary", "regression"), f"{one}, got {task}")
    if task == "regression":
        return numbers(column), task, {}
    kind, n = kind_of(column, as_category=task is not None, label=True), column.nunique()
    numeric = pd.api.types.infer_dtype(np.asarray(column)) not in ("string", "boolean")
    values = numbers(column) if numeric else np.empty(0)
    whole = bool((values == np.trunc(values)).all())
    notes: dict[str, Any] = {}
    if task is None:
        task = "classification" if kind == "category" or (whole and n <= FEW_VALUES) else "regression"
        notes["task"] = f"{task}, because {column.name} has {n} different {'numbers' if numeric else 'words'}"
        if task == "regression":
            return values, task, notes
    require(whole, f"task: a {task} needs words or whole numbers; column {column.name!r} holds others")
    require(n > 1, f"label: column {column.name!r} holds one class only, {column.iloc[0]}")
    if not numeric:
        return words(column).astype(str), task, notes
    distinct, codes = np.unique(values, return_inverse=True)
    if distinct[0] >= 0 and distinct[-1] < n:
        return values, task, notes
    return codes, task, {**notes, "classes": [str(int(value)) for value in distinct]}


def strings_or_whole(column: pd.Series) -> np.ndarray:
    """A table's column of strings or whole numbers as an array [n]; 1.0 is 1. UserError for anything else."""
    if pd.api.types.is_float_dtype(column.dtype) and (column == np.trunc(column)).all():
        return column.to_numpy().astype(np.int64)
    return as_array(f"column {column.name!r}", np.asarray(column))


def read_table(path: Path, ids: Sequence[str] = ()) -> pd.DataFrame:
    """The table, with the types that its values or the file say; UTF-8, and the first line has the columns' names.

    In .csv an empty field, NA, NaN, null and None are missing values, and columns `ids` of clients are read as
    text, unless all are whole numbers: 01 and 1 are two clients.
    """
    suffix = path.suffix.lower()
    require(suffix in (".csv", ".parquet"), f"path: expected a .csv or .parquet file, got {path.name}")
    with reading(path, suffix if suffix == ".parquet" else f"{suffix} in UTF-8"):
        if suffix == ".parquet":
            frame = pd.read_parquet(path)
            frame = frame if frame.index.names == [None] else frame.reset_index()
            _check_names(path, [str(name) for name in frame.columns])
        else:
            frame = _read_csv(path, ids)
    require(len(frame) > 0, f"path: {path} has no rows")
    return frame


def _read_csv(path: Path, ids: Sequence[str]) -> pd.DataFrame:
    with path.open(encoding="utf-8-sig", newline="") as file:
        header = next(filter(None, csv.reader(file, skipinitialspace=True)), [])
    require(bool(header), f"path: {path} is empty")
    other = next((sign for sign in ";\t|" if len(header) == 1 and sign in header[0]), None)
    how = "save it with commas, and decimal points"
    require(other is None, f"path: {path} seems to be separated by {other!r}; {how}")
    _check_names(path, header)
    more: dict[str, Any] = {"skipinitialspace": True, "index_col": False, "low_memory": False, "encoding": "utf-8-sig"}
    with warnings.catch_warnings():
        warnings.simplefilter("error", pd.errors.ParserWarning)  # a row with more values than there are columns
        frame: pd.DataFrame = pd.read_csv(path, dtype=dict.fromkeys(ids, str), **more)
    return frame.assign(**{name: _whole_if_written_so(frame[name]) for name in ids if name in frame})


def _whole_if_written_so(column: pd.Series) -> pd.Series:
    """Texts as whole numbers if all are written so; else as they are."""
    return column.astype(np.int64) if column.str.fullmatch(WHOLE).eq(True).all() else column


def _check_names(path: Path, names: list[str]) -> None:
    twice = [name for name, n in Counter(names).items() if n > 1 and name]
    require(not twice, f"path: {path} has several columns of the name {', '.join(twice)}")
    hint = "pandas writes its index so, unless told index=False"
    require("" not in names, f"path: {path}: column {names.index('') + 1 if '' in names else 0} has no name; {hint}")
    checked_names(f"path: {path}: columns", names)
