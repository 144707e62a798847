"""Clients of a user's own samples: those that they came with, or those of a partition."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from fedem_lightning.data.partitions import Labels, Partition, PartitionName, deal
from fedem_lightning.errors import require

WITHOUT_CLASSES = ("natural", "iid", "quantity_skew")
"""Partitions that do not look at labels."""


def own_clients(
    y: np.ndarray,
    client: np.ndarray | None,
    names: Sequence[str] | None,
    partition: PartitionName | Callable[..., Partition],
    options: Mapping[str, Any],
    seed: int,
    *,
    by_class: bool,
    coarse: np.ndarray | None = None,
) -> Partition:
    """The client of each sample.

    Args:
        y: classes int64 [n], or real targets.
        client: the client that each sample came with, int64 [n]; None: it came with none.
        names: of these clients, [T].
        partition: "natural": the clients that the samples came with; or see `partitions.deal`.
        options: `n_clients`, `alpha` and the other keys of partitions.
        seed: of the draw.
        by_class: whether y has classes.
        coarse: superclasses, int64 [n]; pachinko needs them.

    Raises:
        UserError: the samples came without clients, or without classes, and the partition needs them.

    """
    if partition == "natural" and client is not None and options.get("n_clients") is None:
        return Partition(client, tuple(names or ()))
    has = client is not None or partition != "natural"
    others = "partition=iid, dirichlet, shards or quantity_skew deals the samples to clients"
    require(has, f"client: expected the client of each sample; or {others}")
    known = by_class or not isinstance(partition, str) or partition in WITHOUT_CLASSES
    require(known, f"partition: {partition} deals by class, a regression has none; use iid or quantity_skew")
    labels = Labels(y, coarse, client, None if names is None else tuple(names))
    dealt = deal(labels, seed, partition, dict(options))
    return Partition(dealt.client, dealt.names, {"partition": str(partition), **dealt.notes})
