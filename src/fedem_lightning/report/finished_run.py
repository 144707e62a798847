"""A finished run, and the content of its files: results, rounds, clients, and scores of single test samples."""

import zipfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from fedem_lightning.errors import one_line
from fedem_lightning.records.files import regular
from fedem_lightning.records.measures import HIGHER_IS_BETTER, headline
from fedem_lightning.settings.shipped import implied_adaptation, variant


class SavedSampleScores(NamedTuple):
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


class ScoredClients(NamedTuple):
    """Clients of a run that train and have test samples.

    Args:
        id: their names, str [T].
        row: their rows in clients.parquet, int64 [T].
        n_test: their numbers of test samples, int64 [T]; float64 and NaN if the table lacks them.
        score: their scores in the table's unit, float64 [T].

    """

    id: np.ndarray
    row: np.ndarray
    n_test: np.ndarray
    score: np.ndarray


@dataclass(frozen=True)
class Run:
    """A complete run.

    Args:
        folder: the run's folder.
        results: content of its results.json, see docs/results.md.
        config: the resolved configuration with dotted keys; seed, data_dir and run_dir have neutral values.

    """

    folder: Path
    results: dict[str, Any]
    config: dict[str, Any]

    @property
    def algorithm(self) -> str:
        """The algorithm's name, with "+NAME" for an adaptation after it."""
        name: str = self.results["algorithm"]
        adaptation = self.results.get("adaptation") or str(self.config.get("adaptation._target_", "")).split(".")[-1]
        adaptation = variant("adaptation", str(adaptation).lower(), self.config)
        if adaptation in ("", "none", "noadaptation") or adaptation == implied_adaptation(name):
            return one_line(name)
        return one_line(f"{name}+{adaptation}")

    @property
    def seed(self) -> int:
        """The run's seed."""
        return int(self.results["seed"])

    @property
    def measure(self) -> tuple[str, float]:
        """The score that tables show, and its factor in the tables.

        Of a density it is the loss, also where an older version has saved an accuracy.
        """
        scores = self.results["test"] or self.results["train"]
        if "minimum_loss" in (self.results.get("reference") or {}):
            return "loss", 1.0
        return headline(scores)[:2]

    @property
    def sign(self) -> int:
        """1 if higher values of `measure` are better, else -1."""
        return 1 if HIGHER_IS_BETTER[self.measure[0]] else -1

    @property
    def participation(self) -> float:
        """The fraction of the clients in a round."""
        share = float(self.config.get("algorithm.participation", 1.0))
        return share if share <= 1 else min(1.0, share / self.results["n_clients"])

    @property
    def date(self) -> tuple[str, float]:
        """The date when the run ended, for sorting; runs without a date in results.json count as older."""
        date = self.results["environment"].get("date") if self.results.get("environment") else ""
        return str(date or ""), (self.folder / "results.json").stat().st_mtime

    @cached_property
    def metrics(self) -> pd.DataFrame | None:
        """The content of metrics.csv, numbers or NaN; None if it is missing or unreadable."""
        try:
            table = pd.read_csv(regular(self.folder / "metrics.csv"))
            for name in table.select_dtypes(exclude="number"):  # text among the numbers of a damaged file
                table[name] = pd.to_numeric(table[name], errors="coerce")
            return table
        except Exception:  # whatever pandas meets in a damaged file
            return None

    def curve(self, cost: str) -> pd.DataFrame | None:
        """`metrics` with a column `megabytes`: up and down together, for each client; None without it, or `cost`."""
        return self._costs if self._costs is not None and cost in self._costs else None

    @cached_property
    def _costs(self) -> pd.DataFrame | None:
        metrics = self.metrics
        if metrics is None or not {"round", "up_megabytes", "down_megabytes"} <= set(metrics):
            return None
        total = metrics["up_megabytes"] + metrics["down_megabytes"]
        return metrics.assign(megabytes=total / max(1, self.results["n_clients"]))

    @cached_property
    def clients(self) -> pd.DataFrame | None:
        """The content of clients.parquet; None if it is missing or unreadable."""
        try:
            table = pd.read_parquet(regular(self.folder / "clients.parquet"))
        except Exception:  # whatever pyarrow meets in a damaged file
            return None
        return table if "population" in table and table.columns.is_unique else None

    @cached_property
    def scored(self) -> ScoredClients | None:
        """The clients that train and have test samples, with their scores; None if clients.parquet lacks these."""
        return None if self.clients is None else _scored_clients(self.clients, *self.measure)

    @cached_property
    def samples(self) -> SavedSampleScores | None:
        """The content of test_samples.npz; None if it is missing, unreadable, or does not fit clients.parquet."""
        return None if self.clients is None else _sample_scores(self, len(self.clients))

    def arrays(self, name: str) -> dict[str, np.ndarray]:
        """The arrays of the file NAME.npz, by name; empty if it is missing or unreadable."""
        try:
            with regular(self.folder / f"{name}.npz").open("rb") as raw, np.load(raw, allow_pickle=False) as file:
                return {key: file[key] for key in file.files}
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
            return {}


def _sample_scores(run: Run, n_rows: int) -> SavedSampleScores | None:
    """The content of test_samples.npz; None if it is missing, unreadable, or does not fit `n_rows` clients."""
    try:
        found = run.arrays("test_samples")
        n, values, measure = found["n"], found["values"], str(found["measure"])
    except Exception:  # a zip archive, headers and arrays can each be damaged, with an error of their own
        return None
    counts = n.ndim == 1 and np.issubdtype(n.dtype, np.integer) and len(n) == n_rows and (n >= 0).all()
    scores = values.ndim == 1 and (values.dtype == bool or np.issubdtype(values.dtype, np.floating))
    if not (counts and scores and n.sum() == len(values)):
        return None
    n = n.astype(np.int64)
    end = np.cumsum(n)
    running = np.concatenate([[0], np.cumsum(values, dtype=np.int64 if values.dtype == bool else np.float64)])
    return SavedSampleScores(n, end - n, values, measure, running[end] - running[end - n])


def _scored_clients(clients: pd.DataFrame, measure: str, factor: float) -> ScoredClients | None:
    column = f"test_{measure}"
    if not {"id", "population", column} <= set(clients):
        return None
    score, n_test = _numbers(clients, column), _numbers(clients, "n_test")
    has_samples = n_test > 0 if "n_test" in clients else ~np.isnan(score)
    row = np.flatnonzero((clients["population"] == "seen").to_numpy(dtype=bool) & has_samples)
    names = clients["id"].astype(str).to_numpy(dtype=object)[row]
    if not len(row) or len(set(names)) < len(names):
        return None
    n_test = n_test[row]
    return ScoredClients(names, row, n_test if np.isnan(n_test).any() else n_test.astype(np.int64), factor * score[row])


def _numbers(table: pd.DataFrame, column: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    """A column as float64; NaN for what is no number, and where there is no such column."""
    if column not in table:
        return np.full(len(table), np.nan)
    return pd.to_numeric(table[column], errors="coerce").to_numpy(dtype=np.float64)
