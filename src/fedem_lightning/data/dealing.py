"""How samples are dealt to clients: by a partition, or to the data's own clients, or a random subset of them."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedem_lightning.data.names import listed
from fedem_lightning.data.partitions import Labels, Partition, dirichlet, iid, pachinko, quantity_skew, shards
from fedem_lightning.data.randomness import Purpose, generator
from fedem_lightning.settings.check import check_arguments
from fedem_lightning.settings.errors import UserError, given, require
from fedem_lightning.settings.ranges import Count, Positive, PositiveInt, ShareOrNumber


def natural(labels: Labels, seed: int, n_clients: ShareOrNumber | None = None) -> Partition:
    """The data's own clients (writers, roles), or a random subset of them, see `choose_clients`."""
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
    """A random subset of client indices, ascending. `n_clients` up to 1 is a fraction, from 2 on a number, None all."""
    if n_clients is None:
        return np.arange(available)
    number = max(1, round(n_clients * available)) if n_clients <= 1 else int(n_clients)
    require(number <= available, f"n_clients: got {number}, but the data has {available} clients")
    return np.sort(generator(seed, Purpose.SUBSAMPLE, 1).permutation(available)[:number])


PartitionName = Literal["natural", "iid", "dirichlet", "pachinko", "shards", "quantity_skew"]
PARTITIONS: dict[str, Callable[..., Partition]] = {
    f.__name__: f for f in (natural, iid, dirichlet, pachinko, shards, quantity_skew)
}


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
        drop_empty: whether clients without a training sample are left out; False: they are an error.

    """

    partition: PartitionName | Callable[..., Partition] = "natural"
    n_clients: ShareOrNumber | None = None
    alpha: Positive = 0.4
    beta: Positive = 10.0
    n_label_groups: PositiveInt | None = None
    shards_per_client: PositiveInt = 2
    min_samples: Count = 10
    drop_empty: bool = False

    def deal(self, labels: Labels, seed: int) -> Partition:
        """Calls the partition, which may be a user's own function."""
        partition = PARTITIONS[self.partition] if isinstance(self.partition, str) else self.partition
        own = Dealing.__dataclass_fields__.keys() & inspect.signature(partition).parameters
        options = {name: getattr(self, name) for name in own}
        check_arguments("", partition, options)
        dealt = partition(labels, seed, **options)
        wanted = "partition: expected a function (labels, seed, ...) that returns a Partition"
        require(isinstance(dealt, Partition), f"{wanted}, got {given(dealt)}")
        return self.without_empty(dealt, np.zeros_like(dealt.client), np.ones(len(dealt.names), dtype=bool))[0]

    def without_empty(self, dealt: Partition, split: np.ndarray, seen: np.ndarray) -> tuple[Partition, np.ndarray]:
        """With `drop_empty` the clients that have a training sample, or are unseen and have any; else all of them.

        `split` int [n] is 0 for training, `seen` bool [T] says who is to train; the new notes say who was left out.
        """
        n_train, n = (np.bincount(dealt.client[rows] + 1, minlength=len(seen) + 1)[1:] for rows in (split == 0, ...))
        kept = np.where(seen, n_train, n) > 0
        if not self.drop_empty or kept.all():
            return dealt, seen
        require(bool(kept.any()), "drop_empty: no client has a training sample")
        new = np.full(len(kept) + 1, -1, dtype=np.int64)  # the last is nobody's
        new[:-1][kept] = np.arange(kept.sum())
        names, notes = np.array(dealt.names, dtype=object), dict(dealt.notes)
        why = f"dataset.drop_empty=true leaves out {listed(names[~kept].tolist(), 3)}, without training samples"
        notes["why"] = f"{notes['why']}; {why}" if "why" in notes else why
        notes["left_out_clients"] = notes.get("left_out_clients", 0) + int((~kept).sum())
        return Partition(new[dealt.client], tuple(names[kept]), notes), seen[kept]

    def deal_own(self, labels: Labels, seed: int, by_class: bool) -> Partition:
        """Deals a user's own samples, and notes how, unless they stay with their clients; `by_class`: y are classes."""
        if self.partition == "natural" and labels.client is not None and self.n_clients is None:
            return Partition(labels.client, labels.names or ())
        has = labels.client is not None or self.partition != "natural"
        others = "partition=iid, dirichlet, shards or quantity_skew deals the samples to clients"
        require(has, f"client: expected the client of each sample; or {others}")
        known = by_class or self.partition not in ("dirichlet", "pachinko", "shards")
        none = f"partition: {self.partition} deals by class, a regression and samples of several labels have none"
        require(known, f"{none}; use iid or quantity_skew")
        dealt = self.deal(labels, seed)
        return Partition(dealt.client, dealt.names, {"partition": str(self.partition), **dealt.notes})
