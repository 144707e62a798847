"""What every partition takes and gives."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Labels:
    """The labels and owners of all samples, from which a partition is made."""

    y: np.ndarray  # int [n]
    coarse: np.ndarray | None = None  # superclasses, int [n]
    client: np.ndarray | None = None  # natural owners, int [n]
    names: tuple[str, ...] | None = None  # names of the natural owners


@dataclass(frozen=True)
class Partition:
    """A partition of samples into clients."""

    client: np.ndarray  # int64 [n] in 0..T-1; -1: no client
    names: tuple[str, ...]  # [T]
    notes: dict[str, Any] = field(default_factory=dict)  # samples left out and why, redraws


def numbered(n_clients: int) -> tuple[str, ...]:
    """Names of clients without names: 0, 1, ..."""
    return tuple(str(t) for t in range(n_clients))
