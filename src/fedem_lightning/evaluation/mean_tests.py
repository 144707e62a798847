"""Tests of whether means are 0, for many groups of values at once."""

from typing import NamedTuple

import numpy as np
from scipy import special


class MeanTests(NamedTuple):
    """Tests of whether means are 0, and 95 % intervals.

    Args:
        p: p-values, two-sided; NaN for fewer than two values, float64 [T].
        low, high: the ends of the intervals, float64 [T]; NaN likewise.

    """

    p: np.ndarray
    low: np.ndarray
    high: np.ndarray


def mean_tests(values: np.ndarray, owner: np.ndarray, n_owners: int) -> MeanTests:
    """Student's test and Hall's, which corrects it for skewness: an interval reaches to the outer ends of both.

    p is the larger one; it is below 0.05 where the interval leaves out 0. Equal values have the p of the sign
    test, and no interval but themselves.

    Args:
        values: e.g. differences of scores, float [n]; those that are not finite do not count.
        owner: each value's client, int64 [n].
        n_owners: T.

    Source: P. Hall, On the removal of skewness by transformation, J. R. Statist. Soc. B 54 (1992), 221-228: with S the
    mean over the standard deviation and k the skewness, S + k S^2 / 3 + k^2 S^3 / 27 + k / (6 n) takes the place of S.

    """
    finite = np.isfinite(values)
    values, owner = values[finite], owner[finite]
    n = np.bincount(owner, minlength=n_owners).astype(float)
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = np.bincount(owner, values, minlength=n_owners) / n
        away = values - mean[owner]
        deviation = np.sqrt(np.bincount(owner, away**2, minlength=n_owners) / (n - 1))
        deviation[deviation <= 1e-12 * np.abs(mean)] = 0  # equal values differ in their last bits
        skewness = np.bincount(owner, away**3, minlength=n_owners) * n / ((n - 1) * (n - 2) * deviation**3)
        k = np.where(np.isfinite(skewness) & (np.abs(skewness) > 1e-6), skewness, 1e-6)
        student = mean / deviation
        hall = student + k * student**2 / 3 + k**2 * student**3 / 27 + k / (6 * n)
        least = np.where(student * hall > 0, np.minimum(np.abs(student), np.abs(hall)), 0)
        p = np.where(deviation > 0, 2 * special.stdtr(n - 1, -np.sqrt(n) * least), np.where(mean == 0, 1, 2 ** (1 - n)))
        quantile = special.stdtrit(n - 1, 0.975) / np.sqrt(n)
        low, high = (
            mean - deviation * outer(q, (np.cbrt(1 + k * (q - k / (6 * n))) - 1) * 3 / k)
            for outer, q in ((np.maximum, quantile), (np.minimum, -quantile))
        )
    few = n < 2
    return MeanTests(*(np.where(few, np.nan, x) for x in (p, low, high)))
