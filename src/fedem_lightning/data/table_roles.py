"""What the columns of a table are for: label, client, split and features; and the task that the labels are for."""

import difflib
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from fedem_lightning.data.arrays import LARGEST_Y, check_labels, check_targets
from fedem_lightning.data.names import looks_like_split
from fedem_lightning.data.table_columns import kind_of, numbers, words
from fedem_lightning.errors import UserError, require
from fedem_lightning.records.measures import SPLITS

FEW_VALUES = 20
"""Whole numbers with up to as many different values are classes, unless `task` says otherwise."""


class TableColumns(NamedTuple):
    """Names of the columns, checked."""

    label: str
    client: str | None
    split: str | None
    features: list[str]
    categorical: list[str]

    @classmethod
    def of(
        cls,
        frame: pd.DataFrame,
        label: Any,
        client: Any,
        split: Any,
        features: Any,
        categorical: Any,
        needs_client: bool,
    ) -> "TableColumns":
        """Checks the names that the user gives, against the table."""
        there = [str(name) for name in frame.columns]
        roles = {"label": _known("label", label, there)}
        if needs_client or client is not None:
            roles["client"] = _known("client", client, there, "; or deal the rows by partition=iid")
        if split is not None:
            roles["split"] = _known("split", split, there)
        taken = {name: role for role, name in reversed(roles.items())}  # the first role of each column
        for role, name in roles.items():
            require(taken[name] == role, f"{role}: column {name!r} is the {taken[name]} already")
        if features is None:
            features = [name for name in there if name not in taken]
            for name in features if split is None else ():
                _check_no_split(name, frame[name])
        else:
            features = _listed("features", features, there)
        for name in features:
            require(name not in taken, f"features: column {name!r} is the {taken.get(name)}")
        require(len(features) > 0, f"features: no column is left beside {', '.join(roles)}")
        categorical = _listed("categorical", categorical, there)
        for name in categorical:
            require(name in features, f"categorical: column {name!r} is no feature")
        return cls(roles["label"], roles.get("client"), roles.get("split"), features, categorical)

    def roles(self) -> dict[str, str]:
        """Which columns are the label, the client and the split."""
        named = {"label": self.label, "client": self.client, "split": self.split}
        return {role: name for role, name in named.items() if name is not None}

    def samples(self) -> list[str]:
        """Those that say of a sample what no feature does."""
        return [name for name in (self.label, self.client, self.split) if name is not None]


def _check_no_split(name: str, column: pd.Series) -> None:
    """Raises UserError if a column is called split, or holds names of splits, and so is hardly a feature."""
    key = f"split={name}"
    way_out = f"{key} splits by it; features=[...] names what to learn from in its place"
    called = looks_like_split(name) and len(set(column.dropna().map(str))) <= 5  # more are numbers to learn from
    require(not called, f"column {name!r} looks like a split: {way_out}")
    found = set(column.dropna().map(str)) if column.dtype.kind not in "biuf" else set()  # lists have no hash
    if len(found) > 1 and found <= set(SPLITS):
        raise UserError(f"column {name!r} holds {', '.join(sorted(found))}: {way_out}")


def _known(key: str, name: Any, there: list[str], otherwise: str = "") -> str:
    """The name of a column that the file has; `otherwise` ends the line about one that was not given."""
    listed = ", ".join(there[:20]) + ", ..." * (len(there) > 20)
    require(name is not None, f"{key}: expected the name of a column; there are {listed}{otherwise}")
    if str(name) not in there:
        near = difflib.get_close_matches(str(name), there, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {listed}"
        raise UserError(f"{key}: no column {name!r}; {hint}")
    return str(name)


def _listed(key: str, given: Any, there: list[str]) -> list[str]:
    listed = isinstance(given, Sequence) and not isinstance(given, str)
    require(listed, f"{key}: expected a list of columns such as [a,b], got {given!r}")
    found = [_known(key, name, there) for name in given]
    twice = [name for name, n in Counter(found).items() if n > 1]
    require(not twice, f"{key}: it names {', '.join(twice)} twice")
    return found


class TableLabels(NamedTuple):
    """y [n], and what it is."""

    y: np.ndarray
    task: str
    n_classes: int
    notes: dict[str, Any]


def labels_of(column: pd.Series, task: str | None, n_classes: int | None) -> TableLabels:
    """The labels of a task, which is found by the rule of `TableDataModule` if it is None."""
    one = "task: a table has one label a row, expected classification, binary or regression"
    require(task in (None, "classification", "binary", "regression"), f"{one}, got {task}")
    if task == "regression":
        return TableLabels(check_targets(numbers(column), len(column)), task, 0, {})
    kind = kind_of(column, as_category=task is not None, label=True)
    numeric = pd.api.types.infer_dtype(np.asarray(column)) not in ("string", "boolean")
    values = numbers(column) if numeric else np.empty(0)
    whole = bool((values == np.trunc(values)).all())
    notes: dict[str, Any] = {}
    if task is None:
        n_distinct = column.nunique()
        task = "classification" if kind == "category" or (whole and n_distinct <= FEW_VALUES) else "regression"
        what = "words" if not numeric else "whole numbers" if whole else "numbers"
        notes["task"] = f"{task}, because {column.name} has {n_distinct} different {what}"
        if task == "regression":
            return TableLabels(check_targets(values, len(column)), task, 0, notes)
        many = n_distinct > max(FEW_VALUES, len(column) // 5)
        odd = f"label: column {column.name!r} has {n_distinct} different words in {len(column)} rows, such as"
        require(not many, f"{odd} {column.iloc[0]!r}; make numbers of them, or say task=classification")
    require(whole, f"task: a {task} needs words or whole numbers; column {column.name!r} holds others")
    codes, distinct = words(column)
    require(len(distinct) > 1, f"label: column {column.name!r} holds one class only, {distinct[0]}")
    if n_classes is not None:
        require(n_classes <= LARGEST_Y, f"n_classes: expected at most {LARGEST_Y}, got {n_classes}")
    limit = len(distinct) if n_classes is None else n_classes
    if not numeric or values.min() < 0 or values.max() >= limit:
        values, notes["classes"] = codes, distinct
    y, n_classes = check_labels(values, limit, len(column), f"column {column.name!r}")
    return TableLabels(y, task, n_classes, notes)
