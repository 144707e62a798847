"""How samples are dealt to clients: the data's own, evenly (iid), or by label (dirichlet, shards, pachinko).

Partitions are pure functions from labels and a seed to the client of each sample; all are O(n).
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from fedem_lightning.data.randomness import Purpose, generator
from fedem_lightning.settings.check import check_arguments
from fedem_lightning.settings.errors import UserError, given, require
from fedem_lightning.settings.ranges import Count, Positive, PositiveInt, ShareOrNumber


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

    @classmethod
    def numbered(cls, client: np.ndarray, n_clients: int, **notes: Any) -> "Partition":
        """A partition among clients without names: "0", "1", ..."""
        return cls(client, tuple(str(t) for t in range(n_clients)), notes)


def _require_samples(n: int, n_clients: int, each: int = 1) -> None:
    small = f"n_clients: {n} samples are too few for {n_clients} clients"
    require(n_clients * max(1, each) <= n, small + f" with {each} each" * (each > 1))


def natural(labels: Labels, seed: int, n_clients: ShareOrNumber | None = None) -> Partition:
    """The data's own clients (writers, roles), or a random subset of them, see `choose_clients`."""
    if labels.client is None or labels.names is None:
        others = "or partition=iid, dirichlet or shards deals the samples to clients"
        raise UserError(f"client: partition=natural needs the client of each sample; {others}")
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


def iid(labels: Labels, seed: int, n_clients: PositiveInt) -> Partition:
    """Deals shuffled samples to clients of equal size (sizes differ by one at most)."""
    _require_samples(len(labels.y), n_clients)
    client = generator(seed, Purpose.PARTITION).permutation(np.arange(len(labels.y)) % n_clients)
    return Partition.numbered(client, n_clients)


def dirichlet(
    labels: Labels,
    seed: int,
    n_clients: PositiveInt,
    alpha: Positive,
    n_label_groups: PositiveInt | None = None,
    min_samples: Count = 10,
) -> Partition:
    """Deals the samples of each label y to the clients in proportions p_y ~ Dirichlet(alpha, ..., alpha).

    See FedEM, Section 4 (EMNIST, CIFAR10). Every sample is used exactly once. A draw that leaves a client with fewer
    than `min_samples` samples is repeated with the next sub-seed.

    With `n_label_groups` there is one draw for each of so many random groups of labels, as in the public FedEM code.
    UserError if the sizes are impossible, or 1,000 draws have failed.
    """
    _require_samples(len(labels.y), n_clients, min_samples)
    group = labels.y
    if n_label_groups is not None:
        values, codes = np.unique(group, return_inverse=True)
        order = generator(seed, Purpose.PARTITION, 0, 1).permutation(np.arange(len(values)) % n_label_groups)
        group = order[codes]
    by_group = [np.flatnonzero(group == g) for g in np.unique(group)]
    for attempt in range(1000):
        rng = generator(seed, Purpose.PARTITION, attempt)
        client = np.empty(len(labels.y), dtype=np.int64)
        for members in by_group:
            positions = rng.permutation(members)
            counts = rng.multinomial(len(positions), rng.dirichlet(np.full(n_clients, alpha)))
            client[positions] = np.repeat(np.arange(n_clients), counts)
        if np.bincount(client, minlength=n_clients).min() >= min_samples:
            return Partition.numbered(client, n_clients, **({"redraws": attempt} if attempt else {}))
    message = f"n_clients: no Dirichlet({alpha}) partition of {len(labels.y)} samples gave each of {n_clients} clients"
    raise UserError(f"{message} {min_samples} samples in 1,000 draws: use fewer clients or a larger alpha")


def shards(labels: Labels, seed: int, n_clients: PositiveInt, shards_per_client: PositiveInt = 2) -> Partition:
    """Cuts samples sorted by label into shards of equal size, a few for each client: the pathological partition.

    See McMahan et al. 2017. Sizes differ by `shards_per_client` at most.
    """
    n_shards = n_clients * shards_per_client
    require(n_shards <= len(labels.y), f"n_clients: {n_shards} shards of {len(labels.y)} samples")
    rng = generator(seed, Purpose.PARTITION)
    order = np.lexsort((rng.random(len(labels.y)), labels.y))
    owner = rng.permutation(np.arange(n_shards) % n_clients)  # owner of each shard
    client = np.empty(len(labels.y), dtype=np.int64)
    client[order] = owner[np.arange(len(order)) * n_shards // len(order)]
    return Partition.numbered(client, n_clients)


def pachinko(labels: Labels, seed: int, n_clients: PositiveInt, alpha: Positive, beta: Positive) -> Partition:
    """Pachinko allocation in two stages (CIFAR100; steps of Reddi et al. 2021, arXiv 2003.00295).

    A client draws its shares of the coarse labels from Dirichlet(alpha), its shares of the fine labels in each from
    Dirichlet(beta), and then n / T samples one by one without replacement. A label without samples is removed for all
    clients; the current client's shares are then normalised (drawn again if all of them are 0). The remainder of n / T
    is not used.
    """
    if labels.coarse is None:
        raise UserError("partition: pachinko needs data with coarse labels, as cifar100 has them")
    _require_samples(len(labels.y), n_clients)
    rng = generator(seed, Purpose.PARTITION)
    coarse = np.unique(labels.coarse, return_inverse=True)[1]
    stock = []  # positions, by coarse and by fine label
    for c in range(coarse.max() + 1):
        members = [np.flatnonzero((labels.y == y) & (coarse == c)) for y in np.unique(labels.y[coarse == c])]
        stock.append([list(rng.permutation(positions)) for positions in members])
    client = np.full(len(labels.y), -1, dtype=np.int64)

    def drawn(concentration: float, alive: list[bool]) -> np.ndarray:
        """Shares of the labels that still have samples."""
        shares = np.zeros(len(alive))
        for _ in range(100 if any(alive) else 0):  # tiny concentrations may underflow to zeros
            shares[alive] = rng.dirichlet(np.full(sum(alive), concentration))
            if shares.sum() > 0:
                return shares
        require(not any(alive), f"alpha, beta: no Dirichlet draw is possible with {concentration:g}")
        return shares

    def picked(shares: np.ndarray) -> int:
        total = shares.cumsum()
        return int(np.searchsorted(total, rng.random() * total[-1], side="right"))

    for t in range(n_clients):
        fine = [drawn(beta, [bool(left) for left in of_coarse]) for of_coarse in stock]
        main = drawn(alpha, [any(of_coarse) for of_coarse in stock])
        for _ in range(len(labels.y) // n_clients):
            c = picked(main)
            y = picked(fine[c])
            client[stock[c][y].pop()] = t
            if not stock[c][y]:
                fine[c][y] = 0.0
                fine[c] = fine[c] if fine[c].any() else drawn(beta, [bool(left) for left in stock[c]])
            if not any(stock[c]):
                main[c] = 0.0
                main = main if main.any() else drawn(alpha, [any(left) for left in stock])
    left_out = int((client < 0).sum())
    notes = {"left_out_samples": left_out, "why": f"n is no multiple of {n_clients} clients"} if left_out else {}
    return Partition.numbered(client, n_clients, **notes)


PartitionName = Literal["natural", "iid", "dirichlet", "pachinko", "shards"]
PARTITIONS: dict[str, Callable[..., Partition]] = {f.__name__: f for f in (natural, iid, dirichlet, pachinko, shards)}


@dataclass(frozen=True)
class Partitioning:
    """How samples are dealt to clients. The partition is passed those of the other options that it has.

    Args:
        partition: "natural": the clients that the samples came with. "iid", "dirichlet", "pachinko", "shards", or a
            function (labels, seed, ...) that returns a `Partition`, deals the samples anew.
        n_clients: T; of "natural": up to 1 the share of the clients to keep, from 2 on their number, None: all.
        alpha: concentration of "dirichlet" and "pachinko": small means uneven.
        beta: concentration of pachinko's second stage.
        n_label_groups: of "dirichlet": labels are grouped at random, one draw a group; None: one draw a label.
        shards_per_client: of "shards".
        min_samples: of "dirichlet": a client's least number of samples.

    """

    partition: PartitionName | Callable[..., Partition] = "natural"
    n_clients: ShareOrNumber | None = None
    alpha: Positive = 0.4
    beta: Positive = 10.0
    n_label_groups: PositiveInt | None = None
    shards_per_client: PositiveInt = 2
    min_samples: Count = 10

    def divide(self, labels: Labels, seed: int) -> Partition:
        """Calls the partition, which may be a user's own function."""
        partition = PARTITIONS[self.partition] if isinstance(self.partition, str) else self.partition
        own = Partitioning.__dataclass_fields__.keys() & inspect.signature(partition).parameters
        options = {name: getattr(self, name) for name in own}
        check_arguments("", partition, options)
        divided = partition(labels, seed, **options)
        wanted = "partition: expected a function (labels, seed, ...) that returns a Partition"
        require(isinstance(divided, Partition), f"{wanted}, got {given(divided)}")
        return divided

    def divide_own(self, labels: Labels, seed: int, by_class: bool) -> Partition:
        """Deals a user's own samples, and notes how, unless they stay with their clients; `by_class`: y are classes."""
        if self.partition == "natural" and labels.client is not None and self.n_clients is None:
            return Partition(labels.client, labels.names or ())
        known = by_class or self.partition not in ("dirichlet", "pachinko", "shards")
        none = f"partition: {self.partition} deals by class, a regression and samples of several labels have none"
        require(known, f"{none}; use iid")
        divided = self.divide(labels, seed)
        return Partition(divided.client, divided.names, {"partition": str(self.partition), **divided.notes})
