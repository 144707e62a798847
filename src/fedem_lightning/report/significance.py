"""Tests of two models on the same clients or seeds, and which rows of a table are best beyond chance.

Tests of clients are made for many clients at once; all p-values are two-sided.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from scipy import special, stats

CHANCE_LEVEL = 0.05
"""Level of every test: a difference with p below it is called beyond chance."""
ENOUGH_SEEDS = 5
"""Number of common seeds from which rows are tested."""


def mcnemar(only_a: np.ndarray, only_b: np.ndarray) -> np.ndarray:
    """McNemar's exact test for each client, float64 [T].

    Args:
        only_a, only_b: numbers of samples that only the one model, and only the other one, predicts well, int64 [T].

    Source: scipy.stats.binomtest(only_a, only_a + only_b), here for all clients at once.

    """
    return np.minimum(1.0, 2 * special.bdtr(np.minimum(only_a, only_b), only_a + only_b, 0.5))


def t_test(differences: Sequence[float] | np.ndarray) -> float:
    """Student's paired t-test of differences over seeds; NaN for fewer than two.

    Source: scipy.stats.ttest_1samp; but where all differences are equal, p is 1 if they are 0, and else that of the
    sign test, because so few values do not show that there is no variance.
    """
    d = np.asarray(differences, dtype=float)
    if len(d) < 2 or not np.isfinite(d).all():
        return math.nan
    if np.ptp(d) <= 1e-12 * np.abs(d).max():
        return 2.0 ** (1 - len(d)) if d.any() else 1.0
    return float(stats.ttest_1samp(d, 0).pvalue)


def t_interval(differences: np.ndarray) -> tuple[float, float]:
    """Student's 95 % interval of a mean difference over two seeds or more, which are assumed normal."""
    reach = stats.t.ppf(1 - CHANCE_LEVEL / 2, len(differences) - 1) * stats.sem(differences)
    return float(differences.mean() - reach), float(differences.mean() + reach)


def said_p(p: float) -> str:
    """A p-value within a sentence."""
    return "no p" if math.isnan(p) else "p < 0.0001" if p < 1e-4 else f"p = {p:.2g}"


def leaders(columns: Mapping[str, pd.DataFrame], sign: int) -> tuple[dict[str, str], list[str]]:
    """The rows that are best beyond chance.

    The best row of a column is compared with every other row by Student's paired test over the seeds that all rows
    share; the largest p-value is the column's, because the best row has to be better than all others. Holm's procedure
    then holds the columns of a table together.

    Args:
        columns: for each column of the table the scores by seed and label; sign: 1 if higher ones are better, else -1.

    Returns:
        For each column at most one label, and a note if the rows share fewer than five seeds.

    """
    several = {key: sign * scores for key, scores in columns.items() if scores.shape[1] > 1}
    n_shared = max((len(scores.dropna()) for scores in several.values()), default=ENOUGH_SEEDS)
    if n_shared < ENOUGH_SEEDS:
        return {}, [
            f"no row is bold: that takes a test over {ENOUGH_SEEDS} seeds that all rows share; these share {n_shared}"
        ]
    tested = sorted(((key, *_best(scores)) for key, scores in several.items()), key=lambda found: found[2])
    bold = {}
    for i, (key, label, p) in enumerate(tested):
        if p * (len(tested) - i) >= CHANCE_LEVEL:
            break
        bold[key] = label
    return bold, []


def _best(scores: pd.DataFrame) -> tuple[str, float]:
    """The row with the best mean over its own seeds, and the largest p-value against another row; 1 without a test."""
    best = str(scores.mean().idxmax())
    shared = scores.dropna()
    gains = [(shared[best] - shared[other]).to_numpy() for other in scores if other != best]
    enough = len(shared) >= ENOUGH_SEEDS
    return best, max(t_test(gain) if enough and gain.mean() > 0 else 1.0 for gain in gains)
