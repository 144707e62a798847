"""Partitions as pure functions from labels and a seed to the client of each sample. All are O(n)."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedem_lightning.data.partitions.drawn import dirichlet, iid, pachinko, quantity_skew, shards
from fedem_lightning.data.partitions.natural import Labels, Partition, choose_clients, natural
from fedem_lightning.errors import UserError, require
from fedem_lightning.settings.expected import given
from fedem_lightning.settings.ranges import Count, Positive, PositiveInt, ShareOrNumber

__all__ = [
    "PARTITIONS",
    "Dealing",
    "Labels",
    "Partition",
    "PartitionName",
    "choose_clients",
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


WITHOUT_CLASSES = ("natural", "iid", "quantity_skew")
"""Partitions that do not look at labels."""


@dataclass(frozen=True)
class Dealing:
    """How samples are dealt to clients. The partition is passed those of the other options that it has.

    Args:
        partition: "natural": the clients that the samples came with. "iid", "dirichlet", "pachinko", "shards",
            "quantity_skew", or a function (labels, seed, ...) that returns a `Partition`, deals the samples anew.
        n_clients: T; of "natural": up to 1 the share of the clients to keep, from 2 on their number, None: all.
        alpha: concentration of "dirichlet", "pachinko", "quantity_skew": small means uneven.
        beta: concentration of pachinko's second stage.
        n_label_groups: of "dirichlet": labels are grouped at random, one draw a group; None: one draw a label.
        shards_per_client: of "shards".
        min_samples: of "dirichlet", "quantity_skew": a client's least number of samples.

    Example:
        >>> import numpy as np
        >>> Dealing("iid", n_clients=2).deal(Labels(y=np.zeros(6)), seed=0).client
        array([0, 1, 0, 1, 1, 0])

    """

    partition: PartitionName | Callable[..., Partition] = "natural"
    n_clients: ShareOrNumber | None = None
    alpha: Positive = 0.4
    beta: Positive = 10.0
    n_label_groups: PositiveInt | None = None
    shards_per_client: PositiveInt = 2
    min_samples: Count = 10

    def deal(self, labels: Labels, seed: int) -> Partition:
        """Calls the partition."""
        partition = PARTITIONS[self.partition] if isinstance(self.partition, str) else self.partition
        wanted = "partition: expected a function (labels, seed, ...) that returns a Partition"
        try:
            signature = inspect.signature(partition)
            taken = {k: v for k, v in vars(self).items() if k in signature.parameters and k != "partition"}
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

    def deal_own(self, labels: Labels, seed: int, by_class: bool) -> Partition:
        """Deals a user's own samples; the notes say how, unless all stay with the clients that they came with.

        Args:
            labels: y may be real targets, too.
            seed: of the draw.
            by_class: whether y has classes.

        Raises:
            UserError: the samples came without clients, or without classes, and the partition needs them.

        """
        if self.partition == "natural" and labels.client is not None and self.n_clients is None:
            return Partition(labels.client, labels.names or ())
        has = labels.client is not None or self.partition != "natural"
        others = "partition=iid, dirichlet, shards or quantity_skew deals the samples to clients"
        require(has, f"client: expected the client of each sample; or {others}")
        known = by_class or not isinstance(self.partition, str) or self.partition in WITHOUT_CLASSES
        none = f"partition: {self.partition} deals by class, a regression has none; use iid or quantity_skew"
        require(known, none)
        dealt = self.deal(labels, seed)
        return Partition(dealt.client, dealt.names, {"partition": str(self.partition), **dealt.notes})
