"""Scores of single test samples: the file test_samples.npz of a run."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from fedem_lightning.records.files import regular


class Samples(NamedTuple):
    """Scores of every test sample of a run.

    Args:
        n: number of samples of each row of clients.parquet, int64 [T].
        start: index in `values` of each row's first sample, int64 [T].
        values: the samples' scores, bool (whether the prediction is right) or float32 [sum n].
        measure: name of the score.
        total: sum of each row's values, [T]; of bool the number of right predictions, int64.

    """

    n: np.ndarray
    start: np.ndarray
    values: np.ndarray
    measure: str
    total: np.ndarray

    def of(self, rows: np.ndarray) -> np.ndarray:
        """The samples of `rows`, int64 [R], one row after the other."""
        n = self.n[rows]
        if len(rows) and (np.diff(rows) == 1).all():  # nothing to copy
            return self.values[self.start[rows[0]] : self.start[rows[-1]] + n[-1]]
        first = np.cumsum(n) - n
        return self.values[np.repeat(self.start[rows] - first, n) + np.arange(n.sum())]


class Scored(NamedTuple):
    """Clients of a run that have samples in a split.

    Args:
        id: their names, str [T].
        row: their rows in clients.parquet, int64 [T].
        n_train, n_scored: their numbers of training samples, and of samples in the split, int64 [T]; float64 and NaN if
            the table lacks them.
        score: their scores in the table's unit, float64 [T].

    """

    id: np.ndarray
    row: np.ndarray
    n_train: np.ndarray
    n_scored: np.ndarray
    score: np.ndarray


def read_samples(folder: Path, n_rows: int) -> Samples | None:
    """The content of test_samples.npz; None if it is missing, unreadable, or does not fit `n_rows` clients."""
    try:
        with regular(folder / "test_samples.npz").open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            n, values, measure = file["n"], file["values"], str(file["measure"])
    except Exception:  # a zip archive, headers and arrays can each be damaged, with an error of their own
        return None
    counts = n.ndim == 1 and np.issubdtype(n.dtype, np.integer) and len(n) == n_rows and (n >= 0).all()
    scores = values.ndim == 1 and (values.dtype == bool or np.issubdtype(values.dtype, np.floating))
    if not (counts and scores and n.sum() == len(values)):
        return None
    n = n.astype(np.int64)
    end = np.cumsum(n)
    running = np.concatenate([[0], np.cumsum(values, dtype=np.int64 if values.dtype == bool else np.float64)])
    return Samples(n, end - n, values, measure, running[end] - running[end - n])


def scored_clients(clients: pd.DataFrame, population: str, split: str, measure: tuple[str, float]) -> Scored | None:
    """The clients of clients.parquet that have samples in a split; None if the table does not give them.

    Args:
        clients: content of clients.parquet.
        population: seen or unseen.
        split: train, val or test.
        measure: name of the score, and its factor in the tables.

    """
    column, size = f"{split}_{measure[0]}", f"n_{split}"
    if not {"id", "population", column} <= set(clients):
        return None
    score, n_train, n_scored = (_numbers(clients, name) for name in (column, "n_train", size))
    has_samples = n_scored > 0 if size in clients else ~np.isnan(score)
    row = np.flatnonzero((clients["population"] == population).to_numpy(dtype=bool) & has_samples)
    names = clients["id"].astype(str).to_numpy(dtype=object)[row]
    if not len(row) or len(set(names)) < len(names):
        return None
    return Scored(names, row, _whole(n_train[row]), _whole(n_scored[row]), measure[1] * score[row])


def _numbers(table: pd.DataFrame, column: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    """A column as float64; NaN for what is no number, and where there is no such column."""
    if column not in table:
        return np.full(len(table), np.nan)
    return pd.to_numeric(table[column], errors="coerce").to_numpy(dtype=np.float64)


def _whole(numbers: np.ndarray) -> np.ndarray:
    return numbers if np.isnan(numbers).any() else numbers.astype(np.int64)
