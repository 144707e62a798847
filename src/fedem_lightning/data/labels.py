"""Labels of samples that have several: their form, those that are missing, and samples without any that is known."""

from typing import Any

import numpy as np

from fedem_lightning.data.arrays import check_labels, check_targets, whole_numbers
from fedem_lightning.errors import UserError, require
from fedem_lightning.tasks import MISSING, LanguageModel, MultiLabel, Task, TaskName

SHAPES = {"multilabel": "[n, labels]", "language": "[n, positions]"}
"""The form of the labels of the tasks in which some may be missing, besides a regression with several targets."""


def checked_labels(task: TaskName, y: np.ndarray, n_classes: int | None, n: int) -> tuple[np.ndarray, int]:
    """Labels of a task, checked: int64 [n, ...] with `MISSING`, or real targets [n] or [n, k] with NaN; and Y, or 0.

    Missing labels are -100 or NaN, of real targets NaN; only a sample of several labels may miss some.
    """
    if task in ("classification", "binary"):
        return check_labels(y, n_classes, n)
    if task == "regression":
        missing = np.isnan(y) if y.ndim == 2 and y.shape[1] > 1 and y.dtype.kind == "f" else np.zeros(0)
        filled = check_targets(np.where(missing, 0, y) if missing.any() else y, n)
        return (np.where(missing, np.nan, filled).astype(filled.dtype) if missing.any() else filled), 0
    fits = y.ndim == 2 and len(y) == n and y.size > 0
    require(fits, f"y: {task} expects labels {SHAPES[task]} of {n} samples, got shape {list(y.shape)}")
    y = whole_numbers("y", np.where(np.isnan(y), MISSING, y) if y.dtype.kind == "f" else y)
    if task == "multilabel":
        require(n_classes is None, "n_classes: a multilabel task has as many labels as y has columns")
        _require_all((y == MISSING) | (y == 0) | (y == 1), y, "is none of 0, 1 and -100 (missing)")
        return y, 0
    if n_classes is None:
        n_classes = max(2, int(y.max()) + 1)
    inside = (y == MISSING) | ((y >= 0) & (y < n_classes))
    _require_all(inside, y, f"is outside the {n_classes} classes 0..{n_classes - 1}, and not -100 (missing)")
    return y, n_classes


def labels_of_task(task: Task, y: np.ndarray, n: int) -> np.ndarray:
    """New labels of the task of a model, checked: those of the tasks that `SHAPES` names, or real targets."""
    name: TaskName = "multilabel" if isinstance(task, MultiLabel) else "language" if has_several(task) else "regression"
    found, _ = checked_labels(name, y, getattr(task, "n_classes", None), n)
    size = found[0].size if n else task.n_targets
    fits = name == "regression" or size == task.n_targets
    require(fits, f"y: expected {task.n_targets} labels for each sample as in training, got {size}")
    _require_all(has_any(found), np.arange(n), "has no label that is known", "sample ")
    return found


def has_several(task: Task) -> bool:
    """Whether a sample has several labels, of which some may be missing: it is of no class of its own."""
    return isinstance(task, MultiLabel | LanguageModel)


def _require_all(right: Any, values: np.ndarray, wrong: str, what: str = "label ") -> None:
    """Raises UserError that names the first value of which `right` is not true."""
    if not right.all():
        first = np.unravel_index(int(right.argmin()), right.shape)
        where = "" if right.ndim == 1 else f" at sample {first[0]}"
        raise UserError(f"y: {what}{values[first]}{where} {wrong}")


def is_known(y: np.ndarray) -> np.ndarray:
    """Which labels are known, bool of the shape of y: see `fedem_lightning.tasks.known`."""
    return ~np.isnan(y) if y.dtype.kind == "f" else y != MISSING


def has_any(y: np.ndarray) -> np.ndarray:
    """Which samples have a label that is known: y [n, ...] -> bool [n]."""
    found: np.ndarray = np.asarray(is_known(y).reshape(len(y), -1).any(axis=1))
    return found
