"""Summaries of scores over clients (FedEM, Sec. 4)."""

import math

import numpy as np
import pandas as pd

from fedem_lightning.records.measures import HIGHER_IS_BETTER


def summarize(
    values: np.ndarray, n_train: np.ndarray, n_scored: np.ndarray, higher_is_better: bool
) -> dict[str, float]:
    """Summarises one value of each client over clients; clients without samples in the split are left out.

    Args:
        values: [T]; n_train: numbers of training samples [T]; n_scored: numbers of scored samples [T].
        higher_is_better: whether the smallest values are the worst.

    Returns:
        weighted: mean with weights n_train; pooled: with weights n_scored; mean: without weights; bottom_decile: value
        of the ceil(T/10)-th worst client; worst. Empty if no client has samples.

    """
    has = n_scored > 0
    if not has.any():
        return {}
    values, n_train, n_scored = values[has], n_train[has], n_scored[has]
    from_worst = np.sort(values if higher_is_better else -values)
    sign = 1.0 if higher_is_better else -1.0
    return {
        "weighted": float(np.average(values, weights=n_train)) if n_train.any() else math.nan,
        "pooled": float(np.average(values, weights=n_scored)),
        "mean": float(values.mean()),
        "bottom_decile": float(sign * from_worst[math.ceil(len(values) / 10) - 1]),
        "worst": float(sign * from_worst[0]),
    }


def summarize_table(table: pd.DataFrame, split: str) -> dict[str, dict[str, float]]:
    """Summary of every measure on `split` over the table's clients, see `summarize`; empty if no client has samples."""
    n_train, n_scored = table["n_train"].to_numpy(), table[f"n_{split}"].to_numpy()
    if not n_scored.any():
        return {}
    return {
        measure: summarize(table[column].to_numpy(), n_train, n_scored, better)
        for measure, better in HIGHER_IS_BETTER.items()
        if (column := f"{split}_{measure}") in table
    }
