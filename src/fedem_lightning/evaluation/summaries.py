"""Summaries of scores over clients (FedEM, Sec. 4)."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from fedem_lightning.records.measures import HIGHER_IS_BETTER

MOST_NAMES = 20
"""Of clients whose scores are not finite, as many are named."""


def summarize(
    values: np.ndarray, n_train: np.ndarray, n_scored: np.ndarray, higher_is_better: bool
) -> dict[str, float]:
    """Summarises one value of each client over clients; clients without samples in the split are left out.

    A client whose value is NaN is worse than all others, and counts: means over such clients are NaN.

    Args:
        values: [T]; n_train: numbers of training samples [T]; n_scored: numbers of scored samples [T], NaN
            for a client whose scores have not come: it is left out, too.
        higher_is_better: whether the smallest values are the worst.

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


def summarize_table(table: pd.DataFrame, split: str) -> dict[str, dict[str, float]]:
    """Summary of every measure on `split` over the table's clients, see `summarize`; empty if no client has samples."""
    n_train, n_scored = table["n_train"].to_numpy(), table[f"n_{split}"].to_numpy()
    if not (n_scored > 0).any():
        return {}
    return {
        measure: summarize(table[column].to_numpy(), n_train, n_scored, better)
        for measure, better in HIGHER_IS_BETTER.items()
        if (column := f"{split}_{measure}") in table
    }


def not_finite(table: pd.DataFrame, splits: Sequence[str]) -> dict[str, Any]:
    """The clients of which a score is NaN or infinite although they have samples.

    Args:
        table: see `client_table`.
        splits: the splits that were scored.

    Returns:
        Their number on each split, and under "clients" the names of the first `MOST_NAMES` of them all.

    """
    anywhere, found = np.zeros(len(table), dtype=bool), {}
    for split in splits:
        scores = table[[column for m in HIGHER_IS_BETTER if (column := f"{split}_{m}") in table]].to_numpy(dtype=float)
        bad = ~np.isfinite(scores).all(axis=1) & (table[f"n_{split}"].to_numpy() > 0)
        found[split], anywhere = int(bad.sum()), anywhere | bad
    return {**found, "clients": table["id"][anywhere].astype(str).tolist()[:MOST_NAMES]}
