"""What every partition takes and gives; and the partition by the data's own clients, or a random subset of them."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedem_lightning.errors import UserError, require
from fedem_lightning.randomness import Purpose, generator
from fedem_lightning.settings.check import check_arguments
from fedem_lightning.settings.ranges import ShareOrNumber


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


def natural(labels: Labels, seed: int, n_clients: ShareOrNumber | None = None) -> Partition:
    """The data's own clients (writers, roles), or a random subset of them.

    Args:
        labels: with natural owners.
        seed: of the random subset.
        n_clients: up to 1: the fraction of the owners to keep; from 2 on: their number; None: all.

    Raises:
        UserError: the data has no owners, or fewer than `n_clients`.

    Example:
        >>> labels = Labels(y=np.array([0, 1, 1, 0]), client=np.array([0, 1, 1, 2]), names=("Ann", "Bob", "Cem"))
        >>> natural(labels, seed=0).names
        ('Ann', 'Bob', 'Cem')
        >>> some = natural(labels, seed=0, n_clients=2)  # two of the three; -1: no client has the sample
        >>> some.names, some.client
        (('Bob', 'Cem'), array([-1,  0,  0,  1]))

    """
    if labels.client is None or labels.names is None:
        raise UserError("partition: natural needs data with a client for each sample; this data has none")
    owners = np.flatnonzero(np.bincount(labels.client, minlength=len(labels.names)))  # owners with samples
    kept = owners[choose_clients(len(owners), n_clients, seed)]
    new = np.full(len(labels.names), -1, dtype=np.int64)
    new[kept] = np.arange(len(kept))
    client = new[labels.client]
    notes = {"left_out_clients": len(owners) - len(kept), "left_out_samples": int((client < 0).sum())}
    why = {"why": f"dataset.n_clients={n_clients} (null: all)"} if notes["left_out_clients"] else {}
    return Partition(client, tuple(labels.names[t] for t in kept), {**notes, **why})


def choose_clients(available: int, n_clients: ShareOrNumber | None, seed: int) -> np.ndarray:
    """A random subset of client indices, ascending. `n_clients` up to 1 is a fraction, from 2 on a number, None all.

    Example:
        >>> choose_clients(10, 0.3, seed=0), choose_clients(10, 3, seed=0)
        (array([3, 6, 9]), array([3, 6, 9]))

    """
    check_arguments("", choose_clients, locals())
    if n_clients is None:
        return np.arange(available)
    number = max(1, round(n_clients * available)) if n_clients <= 1 else int(n_clients)
    require(number <= available, f"n_clients: {number} asked for, but the data has {available} clients")
    return np.sort(generator(seed, Purpose.SUBSAMPLE, 1).permutation(available)[:number])
