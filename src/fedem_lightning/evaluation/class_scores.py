"""Scores of imbalanced classes on the test samples: the majority class, balanced accuracy, AUROC, sensitivity.

Where a model that looks at no feature is often right, accuracy alone says little.
"""

from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from fedem_lightning.data.federation import Federation
from fedem_lightning.evaluation.sample_scores import TestRows
from fedem_lightning.evaluation.summaries import summarize

IMBALANCE = 0.2
"""Classes count as imbalanced above this share of the way from even classes (an accuracy of 1 / Y for the majority
class) to a single class (1): with two classes above 60 %, with ten above 28 %."""

MOST_NUMBERS = 100_000_000
"""With more probabilities of test samples than this, balanced accuracy, AUROC and sensitivity are left out."""

MOST_COUNTS = 10_000_000
"""With more clients times classes than this, the labels of each client are not counted."""


class Majority(NamedTuple):
    """The model that predicts a client's own most frequent class of its training samples (the first of several)."""

    accuracy: np.ndarray  # on each client's test samples, float64 [C]; NaN without any
    imbalanced: bool  # whether its accuracy on all test samples of seen clients is above the threshold
    threshold: float


class ByClass(NamedTuple):
    """Scores of groups of samples: one group for each client, or one for all."""

    recall: np.ndarray  # share of the samples of a class that are predicted to be of it, [G, Y]; NaN without any
    balanced_accuracy: np.ndarray  # mean recall of the classes that occur, [G]
    auroc: np.ndarray  # mean over classes against the rest, of two classes that of class 1; NaN with one class [G]


def majority(federation: Federation, clients: Tensor) -> Majority | None:
    """The majority classes of `clients` (int64 [C]); None if samples have no class of their own, or are not stored."""
    if not _has_classes(federation):
        return None
    n_classes = getattr(federation.task, "n_classes", 0)
    (y, owner), (y_test, owner_test) = (_labels(federation, clients, split) for split in ("train", "test"))
    pairs, counts = np.unique(owner * n_classes + y, return_counts=True)
    order = np.lexsort((pairs, -counts, pairs // n_classes))  # by client; the most frequent class first
    first = order[np.unique(pairs[order] // n_classes, return_index=True)[1]]
    label = np.full(len(clients), -1)
    label[pairs[first] // n_classes] = pairs[first] % n_classes
    n, right = (np.bincount(owner_test, w, len(clients)) for w in (None, (label[owner_test] == y_test).astype(float)))
    seen = federation.seen[clients].cpu().numpy()
    threshold = (1 + IMBALANCE * (n_classes - 1)) / n_classes
    with np.errstate(invalid="ignore"):
        return Majority(right / n, bool(right[seen].sum() > threshold * n[seen].sum()), threshold)


def _has_classes(federation: Federation) -> bool:
    """Whether each sample has a class of its own, and is stored."""
    task = federation.task
    scored = hasattr(task, "n_classes") and "accuracy" in task.measures and task.n_targets == 1
    return scored and hasattr(federation.samples, "y")


def label_counts(federation: Federation, clients: Tensor) -> dict[str, np.ndarray]:
    """The content of label_counts.npz: counts int64 [C, Y], of the training samples of `clients` (int64 [C]) by class.

    Empty if samples have no class of their own, are not stored, or there are more than `MOST_COUNTS` numbers.
    """
    n_classes = getattr(federation.task, "n_classes", 0)
    if not _has_classes(federation) or len(clients) * n_classes > MOST_COUNTS:
        return {}
    y, owner = _labels(federation, clients, "train")
    return {"counts": np.bincount(owner * n_classes + y, minlength=len(clients) * n_classes).reshape(-1, n_classes)}


def _labels(federation: Federation, clients: Tensor, split: str) -> tuple[np.ndarray, np.ndarray]:
    """Labels of a split's samples, client after client, and their clients' positions in `clients`, int64 [n] each."""
    block = federation.block(clients, split)
    return block.y().cpu().numpy(), block.owner.cpu().numpy()


def _numbers(federation: Federation) -> int:
    """Number of probabilities of a sample: of the classes, or in a multi-label task of the labels."""
    return int(getattr(federation.task, "n_classes", federation.task.n_outputs))


class Predictions(TestRows):
    """The probabilities that personal models give to the test samples."""

    def __init__(self, federation: Federation, clients: Tensor) -> None:
        shape = (_numbers(federation),)
        super().__init__(federation.splits["test"].counts(clients), shape, torch.float32, clients.device)
        self.y, self.owner = _labels(federation, clients, "test")

    @classmethod
    def of(cls, federation: Federation, clients: Tensor) -> "Predictions | None":
        """Room for the predictions of `clients`; None if there are more than `MOST_NUMBERS`."""
        n_samples = int(federation.splits["test"].counts(clients).sum())
        fits = n_samples * _numbers(federation) <= MOST_NUMBERS
        return cls(federation, clients) if fits else None

    def by_client(self) -> ByClass:
        """The scores of each client."""
        return by_class(self.values.cpu().numpy(), self.y, self.owner, len(self.n))

    def pooled(self, clients: np.ndarray) -> ByClass:
        """The scores of all samples of some clients together, bool [C]; [1] and [1, Y]."""
        kept = clients[self.owner]
        return by_class(self.values.cpu().numpy()[kept], self.y[kept], np.zeros(int(kept.sum()), dtype=np.int64), 1)


def by_class(p: np.ndarray, y: np.ndarray, group: np.ndarray, n_groups: int) -> ByClass:
    """Scores by class of G groups of samples.

    AUROC is Mann and Whitney's statistic from ranks within a group, in which ties share their mean rank: pandas ranks
    all groups in one call.

    Args:
        p: probabilities [n, Y]; y: labels int64 [n]; group: int64 [n] in 0..G-1.
        n_groups: G.

    """
    shape = (n_groups, p.shape[1])
    place = group * p.shape[1] + y
    known = np.isfinite(p).all(axis=1)
    right = known & (p.argmax(axis=1) == y)
    ranks = pd.DataFrame(np.where(known[:, None], p, np.nan)).groupby(group).rank().to_numpy()  # [n, Y]
    own_rank = np.take_along_axis(ranks, y[:, None], axis=1)[:, 0]  # in the order by the probability of its class
    n, hits, sums = (
        np.bincount(place, w, shape[0] * shape[1]).reshape(shape) for w in (None, right.astype(float), own_rank)
    )
    others = n.sum(axis=1, keepdims=True) - n  # [G, Y]
    with np.errstate(invalid="ignore", divide="ignore"):
        recall = np.where(n > 0, hits / n, np.nan)
        auroc = np.where((n > 0) & (others > 0), (sums - n * (n + 1) / 2) / (n * others), np.nan)
    return ByClass(recall, _mean(recall), auroc[:, 1] if shape[1] == 2 else _mean(auroc))


def _mean(values: np.ndarray) -> np.ndarray:
    """Mean over the classes [G, Y] that have a value, [G]; NaN without any."""
    has = ~np.isnan(values)
    with np.errstate(invalid="ignore"):
        return np.where(has, values, 0.0).sum(axis=1) / has.sum(axis=1)


def class_columns(base: Majority | None, found: Predictions | None) -> dict[str, np.ndarray]:
    """Columns of the clients' table, float64 [C] each."""
    if base is None:
        return {}
    made = {"test_majority_accuracy": base.accuracy}
    if found is not None:
        scores = found.by_client()
        made |= {"test_balanced_accuracy": scores.balanced_accuracy, "test_auroc": scores.auroc}
        made |= {"test_sensitivity": scores.recall[:, 1]} if scores.recall.shape[1] == 2 else {}
    return made


def class_scores(
    table: pd.DataFrame, base: Majority | None, found: Predictions | None, names: list[str] | None
) -> dict[str, Any] | None:
    """What results.json says of the classes, over the seen clients; docs/results.md describes the keys."""
    seen = (table["population"] == "seen").to_numpy()
    if base is None or not table["n_test"][seen].any():
        return None
    has = seen & (table["n_test"] > 0).to_numpy()
    rows, n_train, n_test = table[has], table["n_train"][has].to_numpy(), table["n_test"][has].to_numpy()
    worse = ~(rows["test_accuracy"].to_numpy() >= base.accuracy[has])
    made: dict[str, Any] = {
        "imbalanced": base.imbalanced,
        "threshold": base.threshold,
        "majority_accuracy": summarize(base.accuracy[has], n_train, n_test, higher_is_better=True),
        "worse_than_majority": float(worse.mean()),
    }
    if found is None:
        return made
    pooled = found.pooled(seen)
    for name in ("balanced_accuracy", "auroc"):
        of_clients = rows[f"test_{name}"].dropna()
        mean = float(of_clients.mean()) if len(of_clients) else float("nan")
        made[name] = {"pooled": float(getattr(pooled, name)[0]), "mean": mean, "n_clients": len(of_clients)}
    names = names or [str(y) for y in range(pooled.recall.shape[1])]
    return made | {"sensitivity": dict(zip(names, pooled.recall[0].tolist(), strict=False))}
