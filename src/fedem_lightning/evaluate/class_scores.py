"""Scores of imbalanced classes, and of several labels, on the test samples.

Where a model that looks at no feature is often right, accuracy alone says little: the majority class, balanced
accuracy, AUROC and sensitivity say more. Several labels have macro F1 and mean average precision (mAP).
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torchmetrics.functional.classification import multilabel_average_precision, multilabel_f1_score

from fedem_lightning.data.federation import Federation
from fedem_lightning.data.tasks import MISSING
from fedem_lightning.evaluate.scores import Predictions
from fedem_lightning.evaluate.summaries import summarize

IMBALANCE = 0.2
"""Classes count as imbalanced above this share of the way from even classes (an accuracy of 1 / Y for the majority
class) to a single class (1): with two classes above 60 %, with ten above 28 %."""


class Majority(NamedTuple):
    """The model that predicts a client's own most frequent class of its training samples (the first of several)."""

    accuracy: np.ndarray  # on each client's test samples, float64 [C]; NaN without any
    imbalanced: bool  # whether its accuracy on all test samples of seen clients is above the threshold
    threshold: float


def majority(federation: Federation, clients: Tensor) -> Majority | None:
    """The majority classes of `clients` (int64 [C]); None if samples have no class of their own, or are not stored."""
    task = federation.task
    scored = "accuracy" in task.measures and task.n_targets == 1 and hasattr(federation.samples, "y")
    if not scored or not (n_classes := getattr(task, "n_classes", 0)):
        return None
    blocks = [federation.block(clients, split) for split in ("train", "test")]
    (y, owner), (y_test, owner_test) = ((b.y().cpu().numpy(), b.owner.cpu().numpy()) for b in blocks)
    counts = pd.DataFrame({"owner": owner, "y": y}).groupby(["owner", "y"]).size().reset_index(name="n")  # in order
    first = counts.sort_values("n", ascending=False, kind="stable").drop_duplicates("owner")
    label = np.full(len(clients), -1)
    label[first["owner"]] = first["y"]
    n, right = (np.bincount(owner_test, w, len(clients)) for w in (None, (label[owner_test] == y_test).astype(float)))
    seen = federation.seen[clients].cpu().numpy()
    threshold = (1 + IMBALANCE * (n_classes - 1)) / n_classes
    with np.errstate(invalid="ignore"):
        return Majority(right / n, bool(right[seen].sum() > threshold * n[seen].sum()), threshold)


class ByClass(NamedTuple):
    """Scores of groups of samples: one group for each client, or one for all."""

    recall: np.ndarray  # share of the samples of a class that are predicted to be of it, [G, Y]; NaN without any
    balanced_accuracy: np.ndarray  # mean recall of the classes that occur, [G]
    auroc: np.ndarray  # mean over classes against the rest, of two classes that of class 1; NaN with one class [G]


def by_class(p: np.ndarray, y: np.ndarray, group: np.ndarray, n_groups: int) -> ByClass:
    """Scores of G groups: probabilities [n, Y], labels int64 [n], `group` int64 [n] in 0..G-1.

    AUROC is Mann and Whitney's statistic from ranks within a group, in which ties share their mean rank: pandas ranks
    all groups in one call, and in float64. torchmetrics would take a call for each client, and counts in float32.
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
        recall = pd.DataFrame(hits / n)
        auroc = pd.DataFrame((sums - n * (n + 1) / 2) / (n * others))
    one = auroc[1] if shape[1] == 2 else auroc.mean(axis=1)
    return ByClass(recall.to_numpy(), recall.mean(axis=1).to_numpy(), one.to_numpy())


def by_label(p: Tensor, y: Tensor) -> dict[str, float]:
    """macro_f1 and mean_average_precision of known labels; those that are missing are in none.

    F1 of a label that neither occurs nor is predicted (p > 0.5), and the average precision of one that does not occur,
    are 0 / 0: such labels are left out of the means, as with `zero_division=nan` of scikit-learn. A prediction that is
    NaN counts as wrong. NaN: no label has a score. `p` are p(y_k = 1 | x), [n, K], `y` int64 [n, K] in {0, 1}, or
    `MISSING`.
    """
    is_known = y != MISSING
    p = torch.where(p.isnan(), 1.0 - y, p).clamp(0, 1)
    occurs = ((y == 1) & is_known).any(dim=0)  # [K]
    predicted = ((p > 0.5) & is_known).any(dim=0)

    def mean(score: Callable[..., Tensor], defined: Tensor) -> float:
        if not (n_labels := int(defined.sum())):
            return float("nan")
        options: dict[str, Any] = {"average": "none", "ignore_index": MISSING, "validate_args": False}
        return float(score(p[:, defined], y[:, defined], n_labels, **options).double().mean())

    f1, precision = mean(multilabel_f1_score, occurs | predicted), mean(multilabel_average_precision, occurs)
    return {"macro_f1": f1, "mean_average_precision": precision}


def columns(found: Predictions, several: bool) -> dict[str, np.ndarray]:
    """Columns of the clients' table, float64 [C] each; NaN without test samples. `several`: samples have labels."""
    values, counts = found.values.cpu(), found.n.cpu().tolist()
    if several:
        rows = [by_label(*part) for part in zip(values.split(counts), found.y.split(counts), strict=True)]
        return {f"test_{name}": np.array([row[name] for row in rows]) for name in rows[0]}
    scores = by_class(values.numpy(), found.y.numpy(), found.owner.numpy(), len(counts))
    made = {"test_balanced_accuracy": scores.balanced_accuracy, "test_auroc": scores.auroc}
    return made | ({"test_sensitivity": scores.recall[:, 1]} if scores.recall.shape[1] == 2 else {})


def label_scores(table: pd.DataFrame, found: Predictions) -> dict[str, Any] | None:
    """What results.json says of several labels, over the seen clients; docs/results.md describes the keys."""
    kept = _of_seen(table, found)
    return _pooled_and_mean(table, by_label(found.values.cpu()[kept], found.y[kept])) if kept.any() else None


def class_scores(
    table: pd.DataFrame, base: Majority, found: Predictions | None, names: list[str] | None
) -> dict[str, Any] | None:
    """What results.json says of the classes, over the seen clients; docs/results.md describes the keys."""
    has = ((table["population"] == "seen") & (table["n_test"] > 0)).to_numpy()
    if not has.any():
        return None
    rows, accuracy = table[has], base.accuracy[has]
    made: dict[str, Any] = {
        "imbalanced": base.imbalanced,
        "threshold": base.threshold,
        "majority_accuracy": summarize(accuracy, rows["n_train"].to_numpy(), rows["n_test"].to_numpy(), True),
        "worse_than_majority": float((~(rows["test_accuracy"].to_numpy() >= accuracy)).mean()),
    }
    if found is None:
        return made
    kept = _of_seen(table, found)
    p, y = found.values.cpu()[kept].numpy(), found.y[kept].numpy()
    both = of_all(p, y, names or [str(y) for y in range(p.shape[1])])
    sensitivity = both.pop("sensitivity")
    return made | _pooled_and_mean(table, both) | {"sensitivity": sensitivity}


def of_all(p: np.ndarray, y: np.ndarray, names: list[str]) -> dict[str, Any]:
    """The scores by class of all samples together: balanced_accuracy, auroc and sensitivity, by the classes' names."""
    found = by_class(p, y, np.zeros_like(y), 1)
    both = {"balanced_accuracy": float(found.balanced_accuracy[0]), "auroc": float(found.auroc[0])}
    return both | {"sensitivity": dict(zip(names, found.recall[0].tolist(), strict=False))}


def _of_seen(table: pd.DataFrame, found: Predictions) -> Tensor:
    """Which samples are those of seen clients, bool [n]."""
    return torch.from_numpy((table["population"] == "seen").to_numpy()[found.owner.numpy()])


def _pooled_and_mean(table: pd.DataFrame, pooled: Mapping[str, float]) -> dict[str, Any]:
    """Scores of all samples together, and the means over the seen clients that have one."""
    own = {name: table.loc[table["population"] == "seen", f"test_{name}"].dropna() for name in pooled}
    return {n: {"pooled": pooled[n], "mean": float(v.mean()), "n_clients": len(v)} for n, v in own.items()}
