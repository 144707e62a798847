"""Paired bootstrap over clients: how much a difference between two rows owes to the clients that were drawn."""

import functools
import math
from typing import NamedTuple

import numpy as np
import pandas as pd

from fedem_lightning.report.groups import Group
from fedem_lightning.report.samples import Scored

RESAMPLES = 2000
MOST_CLIENTS = 3000
"""Of more clients a fixed random part is compared, which finds fewer differences, but no wrong ones."""


class Summary(NamedTuple):
    """A column of the table of scores: population, split, and what the clients' scores are weighted by."""

    population: str
    split: str
    kind: str


SUMMARIES = {
    "weighted": Summary("seen", "test", "n_train"),
    "pooled": Summary("seen", "test", "n_scored"),
    "mean": Summary("seen", "test", "mean"),
    "bottom_decile": Summary("seen", "test", "bottom_decile"),
    "train": Summary("seen", "train", "n_train"),
    "val": Summary("seen", "val", "n_train"),
    "unseen": Summary("unseen", "test", "n_train"),
    "unseen_mean": Summary("unseen", "test", "mean"),
    "unseen_train": Summary("unseen", "train", "n_train"),
}
"""The columns for which there is a test."""


class Clients(NamedTuple):
    """Clients that two rows have in common.

    Args:
        a, b: scores with each row, means over the common seeds, float64 [T].
        weight: the clients' weights, float64 [T].

    """

    a: np.ndarray
    b: np.ndarray
    weight: np.ndarray


def resampled_p(a: Group, b: Group, key: str, sign: int) -> float:
    """p-value, two-sided, that row a is better than row b: from 2,000 resamples of their common clients.

    Both rows get the same resamples, which are the same in every call. A client's scores are averaged over the common
    seeds first.

    Args:
        a, b: rows of one table.
        key: a key of SUMMARIES.
        sign: 1 if higher scores are better, else -1.

    Returns:
        2 (1 + the number of resamples in which a is not better) / (1 + 2000), at most 1; NaN without common clients.

    """
    clients = common_clients(a, b, SUMMARIES[key])
    if clients is None:
        return math.nan
    not_better = int((sign * resampled_gains(clients, SUMMARIES[key].kind, sign) <= 0).sum())
    return min(1.0, 2 * (1 + not_better) / (1 + RESAMPLES))


def common_clients(a: Group, b: Group, summary: Summary) -> Clients | None:
    """The clients that two rows have in common in all their common seeds; None if there are none."""
    others = {run.seed: run for run in b.runs}
    pairs = [(run, others[run.seed]) for run in a.runs if run.seed in others]
    tables = [[run.scored(summary.split, summary.population) for run in pair] for pair in pairs]
    known = [(one, other) for one, other in tables if one is not None and other is not None]
    if not known or len(known) < len(tables):
        return None
    index = functools.reduce(_intersection, (pd.Index(table.id) for pair in known for table in pair))
    if len(index) > MOST_CLIENTS:
        index = index[np.sort(np.random.default_rng(len(index)).choice(len(index), MOST_CLIENTS, replace=False))]
    rows = [[pd.Index(table.id).get_indexer(index) for table in pair] for pair in known]
    weight = np.mean([_weight(pair[0], summary.kind)[i] for pair, (i, _) in zip(known, rows, strict=True)], axis=0)
    x, y = (
        np.mean([pair[k].score[places[k]] for pair, places in zip(known, rows, strict=True)], axis=0) for k in (0, 1)
    )
    usable = np.isfinite(x) & np.isfinite(y) & np.isfinite(weight)
    return Clients(x[usable], y[usable], weight[usable]) if weight[usable].any() else None


def _intersection(a: pd.Index, b: pd.Index) -> pd.Index:
    return a if a.equals(b) else a.intersection(b, sort=False)


def _weight(table: Scored, kind: str) -> np.ndarray:
    return table.n_train if kind == "n_train" else table.n_scored if kind == "n_scored" else np.ones(len(table.id))


def resampled_gains(clients: Clients, kind: str, sign: int) -> np.ndarray:
    """Differences of the two rows' summaries, a - b, in each resample of the clients, float64 [2000]."""
    counts = _counts(len(clients.weight))
    if kind == "bottom_decile":
        return _deciles(counts, clients.a, sign) - _deciles(counts, clients.b, sign)
    total = counts @ clients.weight
    difference = counts @ (clients.weight * (clients.a - clients.b))
    return np.divide(difference, total, out=np.zeros_like(total), where=total > 0)


@functools.lru_cache(maxsize=2)
def _counts(n_clients: int) -> np.ndarray:
    """How often each client is in each resample, float64 [2000, T]."""
    drawn = np.random.default_rng(n_clients).integers(n_clients, size=(RESAMPLES, n_clients))
    drawn += n_clients * np.arange(RESAMPLES)[:, None]
    return np.bincount(drawn.ravel(), minlength=RESAMPLES * n_clients).reshape(RESAMPLES, n_clients).astype(float)


def _deciles(counts: np.ndarray, scores: np.ndarray, sign: int) -> np.ndarray:
    """The score of the ceil(T/10)-th worst client in each resample, float64 [2000]."""
    order = np.argsort(sign * scores)
    reached = np.cumsum(counts[:, order], axis=1) >= math.ceil(len(scores) / 10)
    return scores[order][reached.argmax(axis=1)]
