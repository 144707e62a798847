"""Scores of a multi-label task on the test samples, by torchmetrics: macro F1 and mean average precision (mAP)."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torchmetrics.functional.classification import multilabel_average_precision, multilabel_f1_score

from fedem_lightning.evaluation.class_scores import Predictions
from fedem_lightning.tasks import MISSING

NAMES = ("macro_f1", "mean_average_precision")


class LabelScores(NamedTuple):
    """Means over the labels for which a score is defined; NaN without any."""

    macro_f1: float  # of labels that occur or are predicted (p > 0.5)
    mean_average_precision: float  # of labels that occur


def label_scores(p: Tensor, y: Tensor) -> LabelScores:
    """Scores of known labels; those that are missing are in none.

    F1 of a label that neither occurs nor is predicted, and the average precision of one that does not occur, are 0 / 0:
    such labels are left out of the means, as with `zero_division=nan` of scikit-learn. A prediction that is NaN counts
    as wrong.

    Args:
        p: probabilities p(y_k = 1 | x), [n, K].
        y: int64 [n, K] in {0, 1}, or `MISSING`.

    """
    is_known = y != MISSING
    p = torch.where(p.isnan(), 1.0 - y, p).clamp(0, 1)
    occurs = ((y == 1) & is_known).any(dim=0)  # [K]
    predicted = ((p > 0.5) & is_known).any(dim=0)
    parts = ((multilabel_f1_score, occurs | predicted), (multilabel_average_precision, occurs))
    return LabelScores(*(_mean(score, p[:, defined], y[:, defined]) for score, defined in parts))


def _mean(score: Callable[..., Tensor], p: Tensor, y: Tensor) -> float:
    """The mean over labels of a function of torchmetrics; NaN without a label."""
    if not y.shape[1]:
        return math.nan
    found = score(p, y, y.shape[1], average="none", ignore_index=MISSING, validate_args=False)
    return float(found.double().mean())


def label_columns(found: Predictions) -> dict[str, np.ndarray]:
    """Columns of the clients' table, float64 [C] each; NaN without test samples."""
    values, y, counts = found.values.cpu(), torch.as_tensor(found.y), found.n.cpu().tolist()
    nothing = LabelScores(math.nan, math.nan)
    parts = zip(values.split(counts), y.split(counts), strict=True)
    rows = [label_scores(p, labels) if len(labels) else nothing for p, labels in parts]
    return {f"test_{name}": np.array([getattr(row, name) for row in rows], dtype=float) for name in NAMES}


def pooled_label_scores(table: pd.DataFrame, found: Predictions) -> dict[str, Any] | None:
    """What results.json says of the labels, over the seen clients; docs/results.md describes the keys."""
    seen = (table["population"] == "seen").to_numpy()
    kept = torch.as_tensor(seen[found.owner])
    if not kept.any():
        return None
    pooled, made = label_scores(found.values.cpu()[kept], torch.as_tensor(found.y)[kept]), {}
    for name in NAMES:
        of_clients = table.loc[seen, f"test_{name}"].dropna()
        mean = float(of_clients.mean()) if len(of_clients) else math.nan
        made[name] = {"pooled": getattr(pooled, name), "mean": mean, "n_clients": len(of_clients)}
    return made
