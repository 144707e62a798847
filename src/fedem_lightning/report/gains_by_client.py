"""Paired comparison of two groups of runs: the same clients, the same seeds, the same test samples."""

from typing import NamedTuple

import numpy as np
import pandas as pd

from fedem_lightning.report.finished_run import Run, ScoredClients
from fedem_lightning.report.groups import Group
from fedem_lightning.report.significance import CHANCE_LEVEL, fisher, mcnemar, mean_tests


class Shares(NamedTuple):
    """How many clients have a better model.

    Args:
        better, worse, equal: shares by the sign of the gain.
        gains, loses: shares of the clients whose gain, and loss, is beyond chance; NaN if no client could be tested.
        chance: the share of clients that would come out as gaining (and as losing) if all models were equal, at most.
        n: number of clients, counted once for each seed.

    """

    better: float
    worse: float
    equal: float
    gains: float
    loses: float
    chance: float
    n: int


def compare_clients(a: Group, b: Group) -> pd.DataFrame | None:
    """Compares the clients of two groups, paired by seed and name; None if they have none in common.

    Returns:
        A row for each seed and client that both have: seed, id, n_test, a and b (scores in the table's unit),
        difference (a - b), gain (positive where a is better), p (two-sided, that the client's two models differ, by its
        test samples: McNemar's exact test for right and wrong predictions; for losses the test of the mean difference,
        `mean_tests`. For runs without test_samples.npz, or of different federations, Fisher's exact test of two
        accuracies; NaN where neither is possible).

    """
    measure = a.runs[0].measure
    others = {run.seed: run for run in b.runs}
    pairs = [(run, others[run.seed]) for run in a.runs if run.seed in others]
    found = [part for one, other in pairs if one.measure == other.measure == measure and (part := _pair(one, other))]
    if not found:
        return None
    table = {name: np.concatenate([part[name] for part in found]) for name in found[0]}
    difference = table["a"] - table["b"]
    p = table.pop("p")
    gain = a.runs[0].sign * difference
    return pd.DataFrame({**table, "difference": difference, "gain": gain, "p": p}, copy=False)


def _pair(a: Run, b: Run) -> dict[str, np.ndarray] | None:
    """The columns of two runs of one seed; None if they have no client in common."""
    mine, theirs = a.scored, b.scored
    if mine is None or theirs is None:
        return None
    i, j = _common(mine.id, theirs.id)
    if not len(i):
        return None
    p = _by_samples(a, b, mine.row[i], theirs.row[j])
    if p is None:
        p = _by_scores(a, mine, theirs, i, j)
    named = {"seed": np.full(len(i), a.seed), "id": mine.id[i], "n_test": mine.n_test[i]}
    return {**named, "a": mine.score[i], "b": theirs.score[j], "p": p}


def _common(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The places of the names that both have, in the order of `a`: int64 [T] each."""
    if len(a) == len(b) and (a == b).all():
        return np.arange(len(a)), np.arange(len(a))
    where = pd.Index(b).get_indexer(pd.Index(a))
    return np.flatnonzero(where >= 0), where[where >= 0]


def _by_samples(a: Run, b: Run, rows_a: np.ndarray, rows_b: np.ndarray) -> np.ndarray | None:
    """p-values from the scores of the same samples, [T]; None if the runs do not have these."""
    x, y, digest = a.samples, b.samples, a.results.get("federation_digest")
    if x is None or y is None or digest is None or digest != b.results.get("federation_digest"):
        return None
    n = x.n[rows_a]
    same = x.measure == y.measure and x.values.dtype == y.values.dtype and (n == y.n[rows_b]).all()
    if not same or not n.all():
        return None
    mine, theirs = x.of(rows_a), y.of(rows_b)
    if mine.dtype != bool:
        tested = mean_tests(mine.astype(float) - theirs, np.repeat(np.arange(len(n)), n), len(n))
        return np.maximum(tested.p, np.minimum(1.0, 2.0 ** (1 - n)))  # as few samples as these show nothing
    first = np.cumsum(n) - n  # every client has samples, as `reduceat` needs
    both = np.add.reduceat(mine & theirs, first, dtype=np.int64)
    return mcnemar(x.total[rows_a] - both, y.total[rows_b] - both)


def _by_scores(run: Run, a: ScoredClients, b: ScoredClients, i: np.ndarray, j: np.ndarray) -> np.ndarray:
    """p-values from accuracies and numbers of samples, [T]; NaN where these do not give whole numbers of samples."""
    name, factor = run.measure
    p = np.full(len(i), np.nan)
    if name != "accuracy":
        return p
    n_a, n_b = a.n_test[i].astype(float), b.n_test[j].astype(float)
    right_a, right_b = a.score[i] / factor * n_a, b.score[j] / factor * n_b
    whole = [np.abs(right - np.round(right)) < 0.01 for right in (right_a, right_b)]  # not for sequences
    known = whole[0] & whole[1]  # False for NaN
    p[known] = fisher(np.round(right_a[known]), n_a[known], np.round(right_b[known]), n_b[known])
    return p


def gains_and_losses(table: pd.DataFrame) -> Shares:
    """Counts the clients of `compare_clients` that have a better and a worse model with a than with b."""
    gain, p = table["gain"].to_numpy(), table["p"].to_numpy()
    p = p[~np.isnan(gain)]
    gain = gain[~np.isnan(gain)]
    n, tested = max(1, len(gain)), not np.isnan(p).all()
    beyond = p < CHANCE_LEVEL
    gains, loses = (float((beyond & sign).sum()) / n if tested else np.nan for sign in (gain > 0, gain < 0))
    better, worse, equal = (float(sign.sum()) / n for sign in (gain > 0, gain < 0, gain == 0))
    return Shares(better, worse, equal, gains, loses, CHANCE_LEVEL / 2, len(gain))
