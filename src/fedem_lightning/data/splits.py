"""Splits of each client's samples into train, validation and test, and of clients into seen and unseen.

Below them are the positions of a split's samples, client by client.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedem_lightning.data.arrays import listed
from fedem_lightning.data.randomness import Purpose, fold, generator
from fedem_lightning.settings.errors import meant, require
from fedem_lightning.settings.measures import SPLITS as SPLITS
from fedem_lightning.settings.ranges import BelowOne, Fractions, Names, Seed


@dataclass(frozen=True)
class HoldOut:
    """Which clients take no part in training.

    Args:
        unseen_fraction: their share.
        unseen: their names, in place of a share.
        seed: of everything drawn.

    """

    unseen_fraction: BelowOne = 0.0
    unseen: Names = ()
    seed: Seed = 0

    def seen(self, names: Sequence[str]) -> np.ndarray:
        """Whether each of T clients is seen in training, bool [T]: not those in `unseen`, nor a random share."""
        n, share, wanted = len(names), self.unseen_fraction, {str(name) for name in self.unseen}
        if not wanted:
            n_unseen, seen = round(share * n), np.ones(n, dtype=bool)
            require(n_unseen < n, f"unseen_fraction: {share} of {n} leaves nobody to train")
            seen[generator(self.seed, Purpose.UNSEEN).permutation(n)[:n_unseen]] = False
            return seen
        require(share == 0, f"unseen: it names clients, and unseen_fraction={share} draws some; give one of them")
        for name in wanted.difference(names):
            near = meant(name, names[:10_000])  # in a million it would take a minute
            require(False, f"unseen: no client is named {name}{near or f'; there are {listed(names, 3)}'}")
        require(len(wanted) < n, f"unseen: it names all {n} clients, which leaves nobody to train")
        return np.array([name not in wanted for name in names])


@dataclass(frozen=True)
class Splitting(HoldOut):
    """How each client's samples are split, and which clients take no part in training.

    Args:
        unseen_fraction, unseen, seed: see `HoldOut`.
        fractions: of each client's samples for train, val, test, where the data have no split.

    """

    fractions: Fractions = (0.6, 0.2, 0.2)

    def split(self, client: np.ndarray) -> np.ndarray:
        """Splits each client's samples (int [n]; -1: no client's) at random: int8 [n], 0 train, 1 val, 2 test.

        A client's draw does not depend on which clients are seen.
        """
        return self.by_rank(client, generator(self.seed, Purpose.SPLIT).random(len(client)))

    def by_rank(self, client: np.ndarray, draw: np.ndarray) -> np.ndarray:
        """The same split by numbers [n]: a client's lowest are for test, those above for validation.

        n_val and n_test are floor(fraction * n_t).
        """
        order = np.lexsort((draw, client))  # by client, each client's samples in order; samples of no client first
        counts = np.bincount(client + 1)
        rank = np.empty(len(client), dtype=np.int64)  # index of a sample in its client's ordered list
        rank[order] = np.arange(len(client)) - np.repeat(counts.cumsum() - counts, counts)
        shares = self.fractions[1:]
        n_val, n_test = (np.floor(counts * share + 1e-9).astype(np.int64)[client + 1] for share in shares)
        return np.where(rank < n_test, 2, np.where(rank < n_test + n_val, 1, 0)).astype(np.int8)


def ranks(owner: Tensor, counts: Tensor) -> Tensor:
    """Each sample's index among its owner's samples: owner int64 [n], ascending; counts [C] -> int64 [n]."""
    return torch.arange(len(owner), device=owner.device) - (counts.cumsum(0) - counts)[owner]


@dataclass(frozen=True)
class Split:
    """Positions of the samples of one split, sorted by client."""

    index: Tensor  # int64 [n], positions in the federation's arrays
    offsets: Tensor  # int64 [T + 1]: client t owns index[offsets[t]:offsets[t + 1]]

    def __len__(self) -> int:
        return len(self.index)

    def counts(self, clients: Tensor | None = None) -> Tensor:
        """Samples of each of `clients` (default: of all T), int64."""
        if clients is None:
            return self.offsets.diff()
        return self.offsets[clients + 1] - self.offsets[clients]

    def positions(self, clients: Tensor) -> tuple[Tensor, Tensor]:
        """Positions of the samples of `clients` (int64 [C]), and each owner's index in `clients`: int64 [n] each."""
        counts = self.counts(clients)  # [C]
        owner = torch.repeat_interleave(torch.arange(len(clients), device=clients.device), counts)  # [n]
        return self.index[self.offsets[clients][owner] + ranks(owner, counts)], owner

    def thinned(self, clients: Tensor, fraction: float, seed: int) -> "Split":
        """The split with a random subset of the samples of `clients`: round(fraction n_t) of each."""
        counts = self.offsets.diff()  # [T]
        owner = torch.repeat_interleave(torch.arange(len(counts), device=counts.device), counts)  # [n]
        order = torch.argsort((owner << 32) | fold(seed, Purpose.THINNED, self.index), stable=True)
        sizes = counts.clone()
        sizes[clients] = (fraction * counts[clients]).round().long()
        kept = order[torch.arange(len(owner), device=owner.device) - self.offsets[owner] < sizes[owner]]
        return Split(self.index[kept.sort().values], torch.cat([sizes.new_zeros(1), sizes.cumsum(0)]))

    def to(self, device: torch.device | str) -> "Split":
        """The same split on another device."""
        return Split(self.index.to(device), self.offsets.to(device))

    def fingerprint(self) -> list[Tensor]:
        """The tensors that a digest must include."""
        return [self.index, self.offsets]


def splits_by_client(
    client: np.ndarray, split: np.ndarray, n_clients: int, position: np.ndarray | None = None
) -> dict[str, Split]:
    """The three splits by name, each sorted by client: see `Federation.from_samples`."""
    splits = {}
    for code, name in enumerate(SPLITS):
        index = np.flatnonzero((split == code) & (client >= 0))
        index = index[np.argsort(client[index], kind="stable")]
        counts = np.bincount(client[index], minlength=n_clients)
        where = torch.from_numpy(index if position is None else position[index])
        splits[name] = Split(where, torch.from_numpy(np.concatenate([[0], counts.cumsum()])))
    return splits
