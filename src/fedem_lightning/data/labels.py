"""The labels of a table, and the task that they are for."""

from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from fedem_lightning.data.arrays import LARGEST_Y, check_labels, check_targets
from fedem_lightning.data.columns import kind_of, numbers, words
from fedem_lightning.errors import require

FEW = 20
"""Whole numbers with up to as many different values are classes, unless `task` says otherwise."""


class TableLabels(NamedTuple):
    """y [n], and what it is."""

    y: np.ndarray
    task: str
    n_classes: int
    notes: dict[str, Any]


def labels_of(column: pd.Series, task: str | None, n_classes: int | None) -> TableLabels:
    """The labels of a task, which is found by the rule of `TableDataModule` if it is None."""
    if task == "regression":
        return TableLabels(check_targets(numbers(column), len(column)), task, 0, {})
    kind = kind_of(column, as_category=task is not None, label=True)
    numeric = pd.api.types.infer_dtype(np.asarray(column)) not in ("string", "boolean")
    values = numbers(column) if numeric else np.empty(0)
    whole = bool((values == np.trunc(values)).all())
    notes: dict[str, Any] = {}
    if task is None:
        n_distinct = column.nunique()
        task = "classification" if kind == "category" or (whole and n_distinct <= FEW) else "regression"
        what = "words" if not numeric else "whole numbers" if whole else "numbers"
        notes["task"] = f"{task}, because {column.name} has {n_distinct} different {what}"
        if task == "regression":
            return TableLabels(check_targets(values, len(column)), task, 0, notes)
        many = n_distinct > max(FEW, len(column) // 5)
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
