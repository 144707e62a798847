"""Tests of two models on the same clients or seeds, for many clients at once; all p-values are two-sided."""

import math
from collections.abc import Sequence

import numpy as np
from scipy import special

TERMS = 12
"""Standard deviations of the hypergeometric distribution over which its tail is summed."""


def mcnemar(only_a: np.ndarray, only_b: np.ndarray) -> np.ndarray:
    """McNemar's exact test for each client, float64 [T].

    Args:
        only_a, only_b: numbers of samples that only the one model, and only the other one, predicts well, int64 [T].

    Source: scipy.stats.binomtest(only_a, only_a + only_b), here for all clients at once.

    """
    return np.minimum(1.0, 2 * special.bdtr(np.minimum(only_a, only_b), only_a + only_b, 0.5))


def signed_ranks(differences: np.ndarray, owner: np.ndarray, n_clients: int) -> np.ndarray:
    """Wilcoxon's signed-rank test for each client, float64 [T]; by the normal distribution, corrected for continuity.

    Args:
        differences: differences of the samples' scores, float [n]; equal scores do not count.
        owner: index of each sample's client, int64 [n].
        n_clients: T.

    Source: scipy.stats.wilcoxon with correction, here for all clients at once. For few samples p is at least the
    smallest value of the exact test, 2^(1 - n).

    """
    kept = np.nan_to_num(differences) != 0
    differences, owner = differences[kept], owner[kept]
    order = np.lexsort((np.abs(differences), owner))
    sizes, owner, positive = np.abs(differences)[order], owner[order], differences[order] > 0
    n = np.bincount(owner, minlength=n_clients).astype(float)
    is_first = np.ones(len(sizes), dtype=bool)  # of samples of one client with equal differences
    is_first[1:] = (sizes[1:] != sizes[:-1]) | (owner[1:] != owner[:-1])
    first = np.flatnonzero(is_first)
    ties = np.diff(np.append(first, len(sizes)))
    before = (np.cumsum(n) - n)[owner[first]]  # samples of earlier clients
    ranks = np.repeat(first - before + (ties + 1) / 2, ties)
    total = np.bincount(owner, ranks * positive, minlength=n_clients)
    variance = n * (n + 1) * (2 * n + 1) / 24
    variance -= np.bincount(owner[first], (ties**3.0 - ties) / 48, minlength=n_clients)
    away = np.abs(total - n * (n + 1) / 4)
    z = np.maximum(away - 0.5, 0) / np.sqrt(np.maximum(variance, 1e-300))
    return np.clip(np.maximum(2 * special.ndtr(-z), 2.0 ** (1 - n)), None, 1.0)


def fisher(right_a: np.ndarray, n_a: np.ndarray, right_b: np.ndarray, n_b: np.ndarray) -> np.ndarray:
    """Fisher's exact test for each client, if samples are not known one by one, float64 [T]: twice the smaller tail.

    Args:
        right_a, right_b: numbers of samples that each model predicts well, int64 [T].
        n_a, n_b: numbers of samples, int64 [T].

    Source: scipy.stats.fisher_exact, to which it is equal for n_a = n_b. The tail is a sum of probabilities, each from
    the one before it: P(k - 1) / P(k) = k (n_b - K + k) / ((K - k + 1) (n_a - k + 1)), with K right ones of both.

    """
    swap = right_a * n_b > right_b * n_a
    k, n, other = np.where(swap, right_b, right_a), np.where(swap, n_b, n_a), np.where(swap, n_a, n_b)
    both = right_a + right_b
    share = both / np.maximum(n + other, 1)
    widest = float(np.sqrt(np.max(n * share * (1 - share), initial=0.0)))
    k_, n_, other_, both_ = (x[:, None] - 0.0 for x in (k, n, other, both))
    k_ = k_ - np.arange(math.ceil(TERMS * widest) + TERMS)
    ratio = k_ * (other_ - both_ + k_) / ((both_ - k_ + 1) * (n_ - k_ + 1))
    tail = 1 + np.cumprod(np.maximum(ratio, 0), axis=1).sum(axis=1)  # the first ratio outside the range is 0
    return np.minimum(
        1.0, 2 * tail * np.exp(_log_choose(n, k) + _log_choose(other, both - k) - _log_choose(n + other, both))
    )


def _log_choose(n: np.ndarray, k: np.ndarray) -> np.ndarray:
    return special.gammaln(n + 1) - special.gammaln(k + 1) - special.gammaln(n - k + 1)


def t_test(differences: Sequence[float]) -> float:
    """Student's paired t-test of differences over seeds; NaN for fewer than two.

    Source: scipy.stats.ttest_1samp; but where all differences are equal, p is 1 if they are 0, and else 0.
    """
    d = np.asarray(differences, dtype=float)
    if len(d) < 2 or not np.isfinite(d).all():
        return math.nan
    error = d.std(ddof=1) / math.sqrt(len(d))
    if error <= 1e-12 * abs(d.mean()):
        return float(d.mean() == 0)
    return float(2 * special.stdtr(len(d) - 1, -abs(d.mean()) / error))


def all_beyond_chance(p: Sequence[float], level: float = 0.05) -> bool:
    """Whether Holm's procedure rejects all hypotheses; not if any p-value is NaN."""
    ordered = np.sort(np.asarray(p, dtype=float))
    return bool((ordered * np.arange(len(ordered), 0, -1) < level).all())
