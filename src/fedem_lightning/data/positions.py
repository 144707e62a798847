"""Positions of the samples of a split, client by client."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from fedem_lightning.randomness import Purpose, fold


class Positions(Protocol):
    """Positions of the samples of one split. `len` is the number of samples."""

    def __len__(self) -> int: ...

    def counts(self, clients: Tensor | None = None) -> Tensor:
        """Samples of each of `clients` (default: of all T), int64."""

    def positions(self, clients: Tensor) -> tuple[Tensor, Tensor]:
        """Positions of the samples of `clients` (int64 [C]), and each owner's index in `clients`: int64 [n] each."""

    def to(self, device: torch.device | str) -> "Positions":
        """The same split on another device."""

    def fingerprint(self) -> list[Tensor]:
        """The tensors that a digest must include."""


def ranks(owner: Tensor, counts: Tensor) -> Tensor:
    """Each sample's index among its owner's samples: owner int64 [n], ascending; counts [C] -> int64 [n]."""
    return torch.arange(len(owner), device=owner.device) - (counts.cumsum(0) - counts)[owner]


@dataclass(frozen=True)
class Split:
    """`Positions` as an array, sorted by client."""

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
