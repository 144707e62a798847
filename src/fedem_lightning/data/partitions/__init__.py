"""Partitions as pure functions from labels and a seed to the client of each sample. All are O(n)."""

import inspect
from collections.abc import Callable
from typing import Any, Literal

from fedem_lightning.data.partitions.base import Labels, Partition
from fedem_lightning.data.partitions.drawn import dirichlet, iid, quantity_skew, shards
from fedem_lightning.data.partitions.owners import choose_clients, natural
from fedem_lightning.data.partitions.pachinko_allocation import pachinko
from fedem_lightning.settings.check import check_arguments

__all__ = [
    "PARTITIONS",
    "Labels",
    "Partition",
    "PartitionName",
    "choose_clients",
    "deal",
    "dirichlet",
    "iid",
    "natural",
    "pachinko",
    "quantity_skew",
    "shards",
]

PartitionName = Literal["natural", "iid", "dirichlet", "pachinko", "shards", "quantity_skew"]
PARTITIONS: dict[str, Callable[..., Partition]] = {
    f.__name__: f for f in (natural, iid, dirichlet, pachinko, shards, quantity_skew)
}


def deal(
    labels: Labels, seed: int, partition: PartitionName | Callable[..., Partition], options: dict[str, Any]
) -> Partition:
    """Calls a partition, given by name or as a function, with those of `options` that it accepts.

    Example:
        >>> import numpy as np
        >>> deal(Labels(y=np.zeros(6)), 0, "iid", {"n_clients": 2, "alpha": 0.4}).client
        array([0, 1, 0, 1, 1, 0])

    """
    check_arguments("", deal, locals())
    if isinstance(partition, str):
        partition = PARTITIONS[partition]
    known = inspect.signature(partition).parameters
    return partition(labels, seed, **{name: value for name, value in options.items() if name in known})
