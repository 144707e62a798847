"""What a model knows of the federation it was trained on: its clients' names and the form of a sample, without data."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from fedem_lightning.data.arrays import (
    as_fields,
    as_rows,
    check_features,
    check_labels,
    has_several,
    labels_of_task,
    listed,
)
from fedem_lightning.data.federation import Federation
from fedem_lightning.data.samples import MASK, Arrays, Fields, InShape, Samples, Windows, as_tensor
from fedem_lightning.data.table_features import TableFeatures, check_values, numbers
from fedem_lightning.data.tasks import Task
from fedem_lightning.settings.errors import UserError, require
from fedem_lightning.settings.recipes import recipe
from fedem_lightning.settings.remaking import LAST, make


@dataclass(frozen=True)
class Schema:
    """Facts about a federation that a model keeps for later clients and samples."""

    task: Task
    in_shape: InShape  # of one sample as the model's input; of several arrays by name
    raw_shape: InShape  # of one sample as a user gives it (uint8 images: [h, w] or [h, w, channels])
    seen: Tensor  # bool [T], the clients that trained
    n_train: Tensor  # their numbers of training samples, int64 [T]; 0 for the others
    names: tuple[str, ...] | None = None  # of the clients [T]; None: "0", "1", ...
    classes: tuple[str, ...] | None = None  # their names, if the labels had names
    pixels: dict[str, Any] | None = None  # how images are normalised: "mean", "std", "invert"; None: no images
    vocabulary: str | None = None  # characters of a text, by code
    features: TableFeatures | None = None  # how the columns of a table become features; None: samples came as arrays
    columns: dict[str, str] = field(default_factory=dict)  # names of the table's columns "label" and "client"
    domains: tuple[str, ...] | None = None  # names of the samples' domains, if they are known
    whole: dict[str, int] = field(default_factory=dict)  # array of whole numbers (one alone is "x") -> largest plus 1

    @classmethod
    def of(cls, federation: Federation) -> "Schema":
        """The facts of a federation."""
        samples: Samples = getattr(federation.samples, "raw", federation.samples)  # beneath features of a frozen body
        notes, pixels, raw = federation.notes, None, samples.in_shape
        if isinstance(samples, Arrays) and samples.x.dtype == torch.uint8:
            raw = tuple(samples.x.shape[1:])
            mean, std = (None if v is None else [float(one) for one in v] for v in (samples.mean, samples.std))
            pixels = {"mean": mean, "std": std, "invert": samples.invert}
        arrays = samples.x if isinstance(samples, Fields) else {"x": samples.x} if isinstance(samples, Arrays) else {}
        whole = {name: x for name, x in arrays.items() if not x.dtype.is_floating_point and x.dtype != torch.uint8}
        seen, counts = federation.seen.cpu(), federation.splits["train"].counts().cpu()
        return cls(
            task=federation.task,
            in_shape=samples.in_shape,
            raw_shape=raw,
            seen=seen,
            n_train=torch.where(seen, counts, 0),
            names=federation.names if isinstance(federation.names, tuple) else None,
            classes=tuple(notes["classes"]) if "classes" in notes else None,
            pixels=pixels,
            vocabulary=notes.get("vocabulary") if isinstance(samples, Windows) else None,
            features=federation.features,
            columns=dict(notes.get("columns", {})),
            domains=None if federation.domains is None else federation.domains.names,
            whole={name: int(x.max()) + 1 if x.numel() else 1 for name, x in whole.items()},
        )

    @property
    def n_clients(self) -> int:
        """T, the unseen clients included."""
        return len(self.seen)

    @property
    def takes_codes(self) -> bool:
        """Whether the model takes whole numbers int64 [n, ...]: characters of a text, tokens, counts."""
        return bool(self.whole) or self.vocabulary is not None

    @cached_property
    def _places(self) -> dict[str, int]:
        return {name: t for t, name in enumerate(self.names or map(str, range(self.n_clients)))}

    @property
    def class_names(self) -> list[str] | None:
        """The names of the classes, "0", "1", ... where they have none; None in a regression."""
        n = getattr(self.task, "n_classes", None)
        return None if n is None else list(self.classes or map(str, range(n)))

    def name(self, client: int) -> str:
        """The name of a client."""
        return str(client) if self.names is None else self.names[client]

    def place(self, name: str) -> int | None:
        """The index of a client; None for a name that the federation did not have."""
        return self._places.get(str(name))

    def trained(self, name: str) -> int:
        """The index of a client that trained; UserError for any other."""
        t = self.place(name)
        if t is None:
            some = ", ".join(self.name(i) for i in torch.nonzero(self.seen)[:3, 0].tolist())
            raise UserError(f"client: {name} is none of the {int(self.seen.sum())} clients that trained ({some}, ...)")
        require(bool(self.seen[t]), f"client: {name} took no part in training; personalize(x, y) gives it a model")
        return t

    def x_of(self, rows: Any) -> Any:
        """The x of an array, or of rows with names; warns of categories that training did not know.

        These are a DataFrame, or a dictionary of one row. A model of vectors takes the columns in their order, less
        those of clients, labels and splits.
        """
        if isinstance(self.in_shape, Mapping):
            return as_fields("x", rows, tuple(self.in_shape))
        rows = pd.DataFrame([rows]) if isinstance(rows, Mapping) else rows
        if self.features is None:
            return self._of_table(rows) if isinstance(rows, pd.DataFrame) else as_rows("x", rows)
        columns = listed(column["name"] for column in self.features.columns)
        wanted = "x: expected a DataFrame, or a dictionary of one row, with the columns of the training table"
        require(isinstance(rows, pd.DataFrame), f"{wanted} ({columns})")
        x = self.features.transform(rows)
        for line in self.features.unknown(rows):
            warnings.warn(line, stacklevel=3)
        return x

    def _of_table(self, frame: pd.DataFrame) -> np.ndarray:
        """x [n, d] of a table for a model of arrays: its columns of numbers in their order."""
        if (len(frame.columns),) != self.raw_shape:
            roles = [self.columns.get(*role) for role in (("client", "client"), ("label", "y"), ("split", "split"))]
            frame = frame.drop(columns=roles, errors="ignore")
        check_values(frame, list(frame.columns))
        return np.stack([numbers(frame[name]) for name in frame.columns], axis=1)

    def labels(self, y: Any) -> np.ndarray:
        """Labels as the task has them: whole numbers [n], or [n, ...] where a sample has several; or real targets."""
        y = as_rows("y", y)
        if self.vocabulary is not None:
            return y
        if has_several(self.task) or not hasattr(self.task, "n_classes"):
            return labels_of_task(self.task, y) if len(y) else y
        if self.classes is not None and (y.dtype.kind in "SUO" or bool(np.isin(y.astype(str), self.classes).all())):
            codes = {name: code for code, name in enumerate(self.classes)}
            wrong = sorted(set(y.astype(str).tolist()) - codes.keys())
            require(not wrong, f"y: {listed(wrong)} is none of the classes {', '.join(self.classes)}")
            return np.array([codes[name] for name in y.astype(str)], dtype=np.int64)
        return check_labels(y, self.task.n_classes, len(y))[0] if len(y) else y.astype(np.int64)

    def samples_of(self, x: Any, y: np.ndarray | None = None) -> Samples:
        """Samples of this form, of x [n, *raw_shape] and what `labels` returns; None: there are no labels.

        Images may also have the channels first. What a mask pads may be longer or shorter than in training.
        """
        if isinstance(self.raw_shape, Mapping):
            return self._fields(x, y)
        last = tuple(self.raw_shape)
        first = (last[-1], *last[:-1]) if self.pixels is not None and len(last) == 3 else last
        expected = " or ".join(f"[n, {', '.join(map(str, shape))}]" for shape in dict.fromkeys((last, first)))
        fits = x.ndim > 0 and x.shape[1:] in (last, first)
        require(fits, f"x: expected shape {expected} as in training, got {list(x.shape)}")
        x = check_features(x if x.shape[1:] == last else np.moveaxis(x, 1, 3))
        labels = torch.zeros(0, dtype=torch.int64) if y is None else as_tensor(y)
        if self.takes_codes or self.pixels is not None:
            kind, what = (np.int64, "codes, whole numbers") if self.takes_codes else (np.uint8, "images in 0..255")
            with np.errstate(invalid="ignore"):
                made = x.astype(kind)
            require(np.array_equal(made, x), f"x: expected {what} as in training, got {x.dtype}")
        else:
            images = x.dtype == np.uint8 and x.ndim > 2
            require(not images, "x: expected floats as in training, got uint8 images")
            made = x.astype(np.float32) if x.dtype.kind in "iu" else x
        return Arrays(as_tensor(made), labels, **(self.pixels or {}))

    def _fields(self, x: Mapping[str, np.ndarray], y: np.ndarray | None) -> Fields:
        """Samples of several arrays."""
        padded = self.raw_shape.get(MASK)
        for name, shape in self.raw_shape.items():
            result, free = tuple(x[name].shape[1:]), padded is not None and shape == padded
            fits = len(result) == len(shape) and (free or result == shape)
            expected = f"[n, {', '.join('*' if free else str(size) for size in shape)}]"
            require(fits, f"x: {name}: expected shape {expected} as in training, got {list(x[name].shape)}")
            whole = x[name].dtype.kind in "iub"
            require(whole or name not in self.whole, f"x: {name}: expected whole numbers, got {x[name].dtype}")
        labels = torch.zeros(0, dtype=torch.int64) if y is None else as_tensor(y)
        return Fields({name: as_tensor(part) for name, part in x.items()}, labels)

    def state(self) -> dict[str, Any]:
        """The facts as plain values and tensors, for a checkpoint."""
        result = {name: getattr(self, name) for name in self.__dataclass_fields__}
        features = None if self.features is None else self.features.state()
        return result | {"task": recipe(self.task), "features": features}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "Schema":
        """The schema of a checkpoint."""
        tuples = {name: None if state[name] is None else tuple(state[name]) for name in ("names", "classes", "domains")}
        shapes = {name: _shape(state[name]) for name in ("in_shape", "raw_shape")}
        features = None if state["features"] is None else TableFeatures.from_state(state["features"])
        message = f"augmentation: the file has one, which commit {LAST} has and later ones do not"
        require(not state.get("augmentation"), message)
        known = {name: value for name, value in state.items() if name in cls.__dataclass_fields__}
        made = {"task": make(state["task"], key="task"), "features": features}
        return cls(**{**known, **tuples, **shapes, **made})


def _shape(shape: Any) -> InShape:
    """A shape of a file, as lists or tuples."""
    return {name: tuple(s) for name, s in shape.items()} if isinstance(shape, Mapping) else tuple(shape)
