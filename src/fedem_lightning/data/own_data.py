"""A federation from a user's own arrays: checked, dealt to clients, split; with the task that the user asks for."""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from fedem_lightning.data.arrays import (
    LARGEST_Y,
    as_array,
    as_fields,
    check_clients,
    check_features,
    check_length,
    check_split,
    checked_labels,
    distinct_values,
    has_any,
    is_known,
    listed,
)
from fedem_lightning.data.federation import Federation
from fedem_lightning.data.partitions import Labels, Partitioning
from fedem_lightning.data.samples import Domains, n_rows
from fedem_lightning.data.splits import OwnSplitting
from fedem_lightning.data.table_features import TableFeatures
from fedem_lightning.data.tasks import Regression, Task, TaskName, make_task
from fedem_lightning.settings.errors import require
from fedem_lightning.settings.ranges import TwoOrMore


@dataclass(frozen=True)
class TaskOptions:
    """What is learned from labels.

    Args:
        task: "classification" (one logit a class), "binary" (one logit), "regression" (real y [n] or [n, k]),
            "multilabel" (y [n, k] in {0, 1}), "language" (y [n, positions]).
        n_classes: Y; default: the largest label plus 1; of a table: the number of different labels.
        standardize_targets: whether models learn (y - mean) / deviation of real targets, by the training samples of
            clients that train, and predict in units of y; False: they learn y as it is.

    """

    task: TaskName = "classification"
    n_classes: TwoOrMore | None = None
    standardize_targets: bool = True

    @property
    def by_class(self) -> bool:
        """Whether a sample has one class, by which samples can be dealt and split."""
        return self.task in ("classification", "binary")

    def make(self, y: np.ndarray, train: np.ndarray, n_classes: int) -> Task:
        """The task of y [n, ...], of which those of `train`, bool [n], are trained on."""
        units: Any = (None, None)
        if self.task == "regression" and self.standardize_targets and train.any():
            from sklearn.preprocessing import StandardScaler  # slow, and of use to regressions alone

            with np.errstate(invalid="ignore"):  # of a target that is never known: its deviation is 1
                result = StandardScaler().fit(y[train].reshape(train.sum(), -1).astype(np.float64))
            units = (np.nan_to_num(result.mean_).tolist(), np.nan_to_num(result.scale_, nan=1.0).tolist())
        return make_task(self.task, n_classes, y[0].size, units)

    def notes_of(self, task: Task) -> dict[str, Any]:
        """What a federation's notes say of it, and of the task that it made."""
        if not isinstance(task, Regression) or task.shift is None or task.scale is None:
            return {}
        mean, deviation = (", ".join(f"{value:.4g}" for value in values) for values in (task.shift, task.scale))
        learned = f"networks learn (y - mean) / deviation, mean {mean}, deviation {deviation} of training samples"
        return {"targets": f"{learned}; scores and predictions are in units of y"}


@dataclass(frozen=True)
class OwnOptions(TaskOptions, Partitioning, OwnSplitting):
    """All options of a user's own data."""


class OwnArrays(NamedTuple):
    """A user's arrays, as `FederatedDataModule.from_arrays` has them."""

    x: Any
    y: Any
    client: Any = None
    split: Any = None
    names: Any = None
    domain: Any = None
    by: Any = None  # of a table or an .npz: the times or groups by which it is split
    classes: Any = None  # their names, by number


def checked_federation(
    arrays: OwnArrays,
    options: OwnOptions,
    notes: dict[str, Any] | None = None,
    learn: Callable[[np.ndarray], TableFeatures] | None = None,
) -> Federation:
    """The federation of a user's arrays, which are checked here; see `FederatedDataModule.from_arrays`.

    `learn` gets the rows that are trained on, bool [n], where x is a table, and returns how it becomes features.
    """
    several, made, owner, own_names = isinstance(arrays.x, Mapping), None, None, None
    x: Any = as_fields("x", arrays.x) if several else arrays.x if learn else as_array("x", arrays.x)
    require((several or x.ndim > 0) and n_rows(x) > 0, "x: expected at least one sample, got none")
    features = several or (x.ndim > 1 and x.size > 0)
    require(features, f"x: expected features [n, ...], at least one, got shape {np.shape(x)}")
    arrays, n_classes, message = _labelled(arrays._replace(x=x), options)
    x, y, notes = arrays.x, arrays.y, (notes or {}) | message
    n = n_rows(x)
    if arrays.client is not None:
        owner, own_names = check_clients(as_array("client", arrays.client), arrays.names, n)
    if several:
        x = {name: check_features(part, owner, own_names, f"x: {name}") for name, part in x.items()}
        notes["sample"] = ", ".join(f"{name} {list(part.shape[1:])}" for name, part in x.items())
    elif learn is None:
        x = check_features(x, owner, own_names)
        if x.dtype != np.uint8 and x.ndim in (3, 4) and x.min() >= 0 and 64 < x.max() <= 255:
            warnings.warn("x: numbers in 0..255 look like pixels; give them as uint8, or divide by 255", stacklevel=3)
        if x.dtype == np.uint8 and x.ndim in (3, 4):
            x, notes["images"] = to_channels_last(x)
    divided = options.divide_own(Labels(y, None, owner, own_names), options.seed, options.by_class)
    given = None if arrays.split is None else check_split(as_array("split", arrays.split), n)
    codes, seen = options.split_own(divided.client, arrays.by, given), options.seen(divided.names)
    train = (codes == 0) & (divided.client >= 0) & seen[divided.client]
    if learn is not None:
        require(bool(train.any()), "split: no client that trains has a training sample")
        made = learn(train)
        x, notes["features"] = made.transform(x), made.summary()
    domains = None
    if arrays.domain is not None:
        check_length("domain", domain := as_array("domain", arrays.domain), n)
        of_sample, names = distinct_values("domain", domain)
        domains = Domains(tuple(names), torch.from_numpy(of_sample))
    task = options.make(y, train, n_classes)
    return Federation.from_arrays(
        x,
        y,
        divided.client,
        codes,
        task=task,
        names=divided.names,
        seen=seen,
        domains=domains,
        notes={**notes, **options.notes_of(task), **divided.notes},
        features=made,
    )


def _labelled(arrays: OwnArrays, options: TaskOptions) -> tuple[OwnArrays, int, dict[str, Any]]:
    """The samples with labels checked; the number of classes; and notes of what is missing."""
    x, y, n, n_classes = arrays.x, as_array("y", arrays.y), n_rows(arrays.x), options.n_classes
    notes: dict[str, Any] = {}
    if options.by_class and y.ndim == 1 and y.dtype.kind in "iuU":
        if y.dtype.kind == "U":
            y, notes["classes"] = distinct_values("y", y)  # in alphabetical order; the notes keep the strings
        elif arrays.classes:
            notes["classes"] = list(arrays.classes)
            message = f"n_classes: the data name {len(arrays.classes)} classes ({listed(arrays.classes, 3)})"
            require(n_classes in (None, len(arrays.classes)), f"{message}, got {n_classes}")
            n_classes = len(arrays.classes)
    y, result = checked_labels(options.task, y, n_classes, n)
    tokens = x.get("input_ids") if isinstance(x, dict) else x
    if options.task == "language" and tokens is not None and tokens.dtype.kind in "iu":
        require(int(tokens.min()) >= 0, f"x: expected codes of 0 or more, got {tokens.min()}; only labels may be -100")
        if n_classes is None:
            result = max(result, int(tokens.max()) + 1)  # the last tokens may be in no label
        if tokens.dtype == np.uint8 and not isinstance(x, dict):
            arrays = arrays._replace(x=tokens.astype(np.int16))  # bytes would be pixels
    require(result <= LARGEST_Y, f"n_classes: expected at most {LARGEST_Y}, got {result}; number labels from 0 on")
    kept = has_any(y)
    if missing := int((~is_known(y)).sum()):
        notes["missing_labels"] = f"{missing} of {y.size}, left out of losses and scores"
    require(bool(kept.all()), f"y: no label is known of {int((~kept).sum())} of {n} samples; leave them out")
    return arrays._replace(y=y), result, notes


def to_channels_last(x: np.ndarray) -> tuple[np.ndarray, str]:
    """Images of bytes [n, height, width, channels], a view of x; and a line that says how they were read.

    The channels are the first or the last axis of an image, whichever has 1 or 3 entries, else the last axis.
    """
    first, last = (x.ndim == 4 and x.shape[axis] in (1, 3) for axis in (1, -1))
    both = f"x: axes 1 and 3 of uint8 images {list(x.shape)} may both be the channels"
    require(not (first and last), f"{both}; give floats in [0, 1] of shape [n, channels, height, width]")
    x = np.moveaxis(x, 1, 3) if first else x
    channels = x.shape[3] if x.ndim == 4 else 1
    return x, f"images {x.shape[1]} x {x.shape[2]} with {channels} channel{'s' * (channels != 1)}"
