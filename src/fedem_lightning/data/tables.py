"""A user's own table with a row a sample: what its columns are for, and the federation of its rows."""

import difflib
import functools
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd

from fedem_lightning.data.arrays import as_array
from fedem_lightning.data.datamodule import FederatedDataModule
from fedem_lightning.data.dealing import Dealing
from fedem_lightning.data.formats.table import read_table
from fedem_lightning.data.names import listed
from fedem_lightning.data.own_data import OwnArrays, TaskOptions, checked_federation
from fedem_lightning.data.own_splits import OwnSplitting, warn_of_random_split
from fedem_lightning.data.table_features import EXACT, Fill, TableFeatures, check_values, kind_of, numbers, words
from fedem_lightning.errors import UserError, require
from fedem_lightning.records import SPLITS
from fedem_lightning.settings.check import grouped
from fedem_lightning.settings.ranges import Column, Columns
from fedem_lightning.tasks import TaskName

FEW_VALUES = 20
"""Whole numbers with up to as many different values are classes, unless `task` says otherwise."""


class TableDataModule(FederatedDataModule):
    """Reads a table whose columns hold the label, the client and the features of each sample.

    Numbers are standardised by the mean and deviation of the training samples of the clients that train; strings,
    booleans and categories become one-hot. `federation.features` keeps this transformation for new rows.

    Args:
        path: the .csv, .tsv or .parquet file.
        label: name of the label's column.
        client: name of the client's column; None: `partition` deals the rows to clients.
        features: names of the features' columns; default: all other columns.
        categorical: names of the features that are categories although they hold numbers.
        missing: "median": missing numbers become the median of the training samples of the clients that train, and a
            feature says where; missing categories are a category. None: missing values are refused.
        split: name of a column with 0 train, 1 val, 2 test (or these words); default: drawn per client by `fractions`.
        task: "classification" (one logit a class), "binary" (one logit), or "regression". Default: classification if
            the labels are strings, booleans, or whole numbers with at most 20 different values; regression otherwise.
        options: those of `TaskOptions`, `Dealing` and `OwnSplitting`.

    Raises:
        UserError: the file is missing or broken, a column is missing or has the wrong values, or a client has no
            training samples.

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
        **options: Annotated[Any, TaskOptions, Dealing, OwnSplitting],
    ) -> None:
        more, dealing, splitting = grouped(options, TaskOptions, Dealing, OwnSplitting)
        require(path is not None, "path: expected a .csv, .tsv or .parquet file, e.g. path=my.csv")
        frame = read_table(Path(str(path)).expanduser(), () if client is None else (str(client),))
        others = {"split": split, "split_by": splitting.parts[1]}
        roles = _roles(frame, label, client, others, needs_client=dealing.partition == "natural")
        names = _features(frame, roles, features)
        known = _listed("categorical", categorical, names, "feature")
        check_values(frame, list(roles.values()))
        check_values(frame, names, missing is not None, "; or missing=median fills and marks them")
        y, task, said = labels_of(frame[roles["label"]], task)
        given: dict[str, Any] = {r: strings_or_whole(frame[roles[r]]) for r in ("client", "split") if r in roles}
        learn = functools.partial(TableFeatures.fit, frame, columns=names, categorical=known, missing=missing)
        notes = {"source": str(path), "columns": roles, **said}
        given["by"] = frame[roles["split_by"]] if "split_by" in roles else None
        own, more = OwnArrays(frame, y, **given), replace(more, task=task)
        super().__init__(checked_federation(own, more, dealing, splitting, notes, learn))
        if not {"split", "split_by"} & roles.keys():
            warn_of_random_split(frame, roles)


def _roles(frame: pd.DataFrame, label: Any, client: Any, others: dict[str, Any], needs_client: bool) -> dict[str, str]:
    """The columns that are the label, the client and, where they are named, others, by role."""
    there = list(frame.columns)
    roles = {"label": _known("label", label, there)}
    if needs_client or client is not None:
        roles["client"] = _known("client", client, there, "; or deal the rows by partition=iid")
    roles |= {role: _known(role, name, there) for role, name in others.items() if name is not None}
    taken = {name: role for role, name in reversed(roles.items())}  # the first role of each column
    for role, name in roles.items():
        require(taken[name] == role, f"{role}: column {name!r} is the {taken[name]} already")
    return roles


def _features(frame: pd.DataFrame, roles: dict[str, str], given: Any) -> list[str]:
    """The columns to learn from; UserError if one of those that nobody has named is hardly a feature, but a split."""
    if given is not None:
        names = _listed("features", given, list(frame.columns))
        for role, name in roles.items():
            require(name not in names or role == "split_by", f"features: column {name!r} is the {role}")
    else:
        names = [name for name in frame.columns if name not in roles.values()]
        for name in names if "split" not in roles else ():
            called_so = "split" in name.lower()
            found = set(frame[name].dropna().map(str)) if called_so or frame[name].dtype == "str" else set()
            odd = (len(found) > 1 and found <= set(SPLITS)) or (called_so and len(found) <= 5)
            way_out = f"split={name} splits by it; features=[...] names what to learn from in its place"
            require(not odd, f"column {name!r} looks like a split ({', '.join(sorted(found))}): {way_out}")
    require(len(names) > 0, f"features: no column is left beside {', '.join(roles)}")
    return names


def _known(key: str, name: Any, there: list[str], otherwise: str = "", what: str = "column") -> str:
    """A name of these; `otherwise` ends the line about one that was not given."""
    require(name is not None, f"{key}: expected the name of a column; there are {listed(there, 20)}{otherwise}")
    if str(name) not in there:
        near = difflib.get_close_matches(str(name), there, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {listed(there, 20)}"
        raise UserError(f"{key}: no {what} {name!r}; {hint}")
    return str(name)


def _listed(key: str, given: Any, there: list[str], what: str = "column") -> list[str]:
    found = [_known(key, name, there, what=what) for name in given]
    twice = [name for name, n in Counter(found).items() if n > 1]
    require(not twice, f"{key}: it names {', '.join(twice)} twice")
    return found


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
        what = "words" if not numeric else "whole numbers" if whole else "numbers"
        notes["task"] = f"{task}, because {column.name} has {n} different {what}"
        if task == "regression":
            return values, task, notes
        odd = f"label: column {column.name!r} has {n} different words in {len(column)} rows, such as {column.iloc[0]!r}"
        many = n > max(FEW_VALUES, len(column) // 5)
        require(not many, f"{odd}; make numbers of them, or say task=classification")
    require(whole, f"task: a {task} needs words or whole numbers; column {column.name!r} holds others")
    require(n > 1, f"label: column {column.name!r} holds one class only, {column.iloc[0]}")
    if not numeric:
        return words(column).astype(str), task, notes
    distinct, codes = np.unique(values, return_inverse=True)
    if distinct[0] < 0 or distinct[-1] >= n:
        notes["classes"] = [str(int(value)) for value in distinct]
        return codes, task, notes
    return values, task, notes


def strings_or_whole(column: pd.Series) -> np.ndarray:
    """A table's column of strings or whole numbers as an array [n]; 1.0 is 1. UserError for anything else."""
    whole = pd.api.types.is_float_dtype(column.dtype) and (column == np.trunc(column)) & (column.abs() < EXACT)
    if np.all(whole):
        return column.to_numpy().astype(np.int64)
    return as_array(f"column {column.name!r}", np.asarray(column))
