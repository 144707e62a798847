"""Class names of torch data sets: labels of one name are one class, whatever number a data set gives them."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch.utils.data import ConcatDataset, Subset

from fedem_lightning.data.names import listed
from fedem_lightning.errors import require


def class_names(where: str, data: Any, labels: Sequence[str | int]) -> tuple[str, ...] | None:
    """The names of a data set's classes, by their numbers; None: it says none, or changes its labels afterwards.

    It says them by `class_to_idx` or `classes` (torchvision's `ImageFolder`), or as a `ClassLabel` (Hugging Face) of
    one of the columns `labels`. Of a `Subset` or a `ConcatDataset` the data sets beneath it count; UserError, which
    begins with `where`, if these have other names.
    """
    if isinstance(data, Subset):
        return class_names(where, data.dataset, labels)
    if isinstance(data, ConcatDataset):
        first, *others = (class_names(where, one, labels) for one in data.datasets)
        same = all(other == first for other in others)
        require(same, f"{where}: the data sets of a ConcatDataset number their classes differently; give them singly")
        return first
    features = getattr(data, "features", None)
    if isinstance(features, Mapping):
        found = next((features[name] for name in labels if name in features), None)
        return _texts(getattr(found, "names", None))
    if getattr(data, "target_transform", None) is not None:
        return None
    numbers = getattr(data, "class_to_idx", None)
    if isinstance(numbers, Mapping) and sorted(numbers.values()) == list(range(len(numbers))):
        return _texts(sorted(numbers, key=lambda name: numbers[name]))
    return _texts(getattr(data, "classes", None))


def _texts(names: Any) -> tuple[str, ...] | None:
    """Names as texts; some of ImageNet's are tuples of synonyms."""
    if not names or not isinstance(names, list | tuple) or not all(isinstance(name, str | tuple) for name in names):
        return None
    return tuple(name if isinstance(name, str) else ", ".join(map(str, name)) for name in names)


def joined_by_name(
    parts: Sequence[tuple[str, np.ndarray, tuple[str, ...] | None]],
) -> tuple[list[np.ndarray], tuple[str, ...] | None]:
    """Labels by one numbering of the classes: that of all parts, or, where they differ, by alphabet.

    Of each part it gets whose samples they are, the labels, and the names of the classes. It returns the labels of each
    (those that are no whole numbers [n] as they are), and the names of all classes, if they have any. UserError: some
    parts have names and others have none; or a label has no name.
    """
    ys, named = [y for _, y, _ in parts], [(where, y, names) for where, y, names in parts if names is not None]
    if not named or any(y.ndim != 1 or y.dtype.kind not in "iu" for y in ys):
        return ys, None
    some, _, first = named[0]
    for where, _, names in parts:
        told = f"{where}: its data set does not name its classes, but that of {some} does ({listed(first, 3)})"
        require(names is not None, f"{told}; all need names, or none")
    for where, y, names in named:
        wrong = int(np.argmax((y < 0) | (y >= len(names))))
        said = f"{where}: label {y[wrong]} at sample {wrong}, but its data set names {len(names)} classes"
        require(0 <= y[wrong] < len(names), f"{said} ({listed(names, 3)})")
    if all(names == first for _, _, names in named):
        return ys, first
    every = sorted({name for _, _, names in named for name in names})
    return [np.searchsorted(every, names)[y] for _, y, names in named], tuple(every)
