"""Partitions as pure functions from labels and a seed to the client of each sample. All are O(n)."""

import inspect
from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from fedem_lightning.data.partitions.base import Labels, Partition
from fedem_lightning.data.partitions.drawn import dirichlet, iid, quantity_skew, shards
from fedem_lightning.data.partitions.owners import choose_clients, natural
from fedem_lightning.data.partitions.pachinko_allocation import pachinko
from fedem_lightning.errors import UserError, require
from fedem_lightning.settings.check import check_arguments
from fedem_lightning.settings.expected import given

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
    wanted = "partition: expected a function (labels, seed, ...) that returns a Partition"
    try:
        signature = inspect.signature(partition)
        taken = {name: value for name, value in options.items() if name in signature.parameters}
        signature.bind(labels, seed, **taken)
    except (TypeError, ValueError) as error:  # it takes others, or is written in C
        raise UserError(f"{wanted}, got {given(partition)} ({error})") from error
    dealt = partition(labels, seed, **taken)
    require(isinstance(dealt, Partition), f"{wanted}, which returned {given(dealt)}")
    client = np.asarray(dealt.client)
    fits = client.shape == (len(labels.y),) and client.dtype.kind == "i"
    fits = fits and bool(((client >= -1) & (client < len(dealt.names))).all())
    require(fits, f"{wanted}: the client of each sample, {len(labels.y)} numbers from -1 to {len(dealt.names) - 1}")
    return dealt
