"""Weights of classes in the training loss."""

from collections.abc import Sequence
from typing import Annotated, Literal

import numpy as np

from fedem_lightning.errors import require
from fedem_lightning.settings.ranges import Positive

ClassWeights = Annotated[Literal["balanced"] | Sequence[Positive], "balanced, or a list with a number above 0 a class"]


def class_weights(given: ClassWeights | None, y: np.ndarray, n_classes: int) -> tuple[float, ...] | None:
    """The weight of each class, [Y]; None: all alike.

    "balanced" is n / (K n_y) for the n_y samples of class y, where K classes occur (King and Zeng 2001): every class
    has the same sum of weights, and the mean weight of a sample is 1. A class that does not occur has weight 1.

    Args:
        given: "balanced", or a list.
        y: labels of the training samples of the clients that train, int64 [n].
        n_classes: Y; 0: y has no classes.

    Raises:
        UserError: there are no classes, or not as many weights.

    Example:
        >>> class_weights("balanced", np.array([0, 0, 0, 1]), n_classes=2)
        (0.6666666666666666, 2.0)

    """
    if given is None:
        return None
    require(n_classes > 0, "class_weights: a regression has no classes")
    said = f"class_weights: expected balanced or {n_classes} numbers, one for each class"
    if not isinstance(given, str):
        require(len(given) == n_classes, f"{said}, got {len(given)}")
        return tuple(float(weight) for weight in given)
    require(given == "balanced", f"{said}, got {given!r}")
    counts = np.bincount(y, minlength=n_classes)  # [Y]
    balanced = len(y) / (np.count_nonzero(counts) * np.maximum(counts, 1))
    return tuple(np.where(counts > 0, balanced, 1.0).tolist())
