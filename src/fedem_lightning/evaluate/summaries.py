"""Summaries of scores over clients (FedEM, Sec. 4), and tests of whether means are 0."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy import special

from fedem_lightning.settings.measures import HIGHER_IS_BETTER

MOST_NAMES = 20
"""Of clients whose scores are not finite, as many are named."""


def summarize(
    values: np.ndarray, n_train: np.ndarray, n_scored: np.ndarray, higher_is_better: bool
) -> dict[str, float]:
    """Summarises one value of each client [T] over clients; those without samples in the split are left out.

    A client whose value is NaN is worse than all others, and counts: means over such clients are NaN. `n_train` and
    `n_scored` [T] are numbers of samples; of a client whose scores have not come n_scored is NaN: it is left out, too.

    Returns:
        weighted: mean with weights n_train; pooled: with weights n_scored; mean: without weights; bottom_decile: value
        of the ceil(T/10)-th worst client; worst. NaN: not finite. Empty if no client has samples.

    """
    has = n_scored > 0
    if not has.any():
        return {}
    values, n_train, n_scored = values[has], n_train[has], n_scored[has]
    unknown, known = values[np.isnan(values)], values[~np.isnan(values)]
    from_worst = np.concatenate([unknown, np.sort(known if higher_is_better else -known)])
    sign = 1.0 if higher_is_better else -1.0
    return {
        "weighted": float(np.average(values, weights=n_train)) if n_train.any() else math.nan,
        "pooled": float(np.average(values, weights=n_scored)),
        "mean": float(values.mean()),
        "bottom_decile": float(sign * from_worst[math.ceil(len(values) / 10) - 1]),
        "worst": float(sign * from_worst[0]),
    }


def summarize_table(table: pd.DataFrame, split: str, weights: np.ndarray | None = None) -> dict[str, dict[str, float]]:
    """Summary of every measure on `split` over the table's clients, see `summarize`; empty if no client has samples.

    `weights` [T] take the place of the column n_train.
    """
    n_train, n_scored = table["n_train"].to_numpy() if weights is None else weights, table[f"n_{split}"].to_numpy()
    if not (n_scored > 0).any():
        return {}
    return {
        measure: summarize(table[column].to_numpy(), n_train, n_scored, better)
        for measure, better in HIGHER_IS_BETTER.items()
        if (column := f"{split}_{measure}") in table
    }


def not_finite(table: pd.DataFrame, splits: Sequence[str]) -> dict[str, Any]:
    """The numbers of clients with samples of which a score is not finite, by split; "clients": names of the first."""
    anywhere, result = np.zeros(len(table), dtype=bool), {}
    for split in splits:
        scores = table[[column for m in HIGHER_IS_BETTER if (column := f"{split}_{m}") in table]].to_numpy(dtype=float)
        bad = ~np.isfinite(scores).all(axis=1) & (table[f"n_{split}"].to_numpy() > 0)
        result[split], anywhere = int(bad.sum()), anywhere | bad
    return {**result, "clients": table["id"][anywhere].astype(str).tolist()[:MOST_NAMES]}


class MeanTests(NamedTuple):
    """Tests of whether means are 0, and 95 % intervals, float64 [T] each; NaN for fewer than two values."""

    p: np.ndarray  # two-sided
    low: np.ndarray
    high: np.ndarray


def mean_tests(values: np.ndarray, owner: np.ndarray, n_owners: int) -> MeanTests:
    """Student's test and Hall's, which corrects it for skewness: an interval reaches to the outer ends of both.

    p is the larger one; it is below 0.05 where the interval leaves out 0. Equal values have the p of the sign
    test, and no interval but themselves. `owner` is each value's client, int64 [n]; values that are not finite do not
    count.

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
    small = n < 2
    return MeanTests(*(np.where(small, np.nan, x) for x in (p, low, high)))
