"""The samples of some clients in one split: what rounds, scores and adaptations see of a federation."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedem_lightning.data.samples import Arrays, Inputs
from fedem_lightning.data.splits import ranks
from fedem_lightning.settings.errors import UserError

if TYPE_CHECKING:
    from fedem_lightning.data.federation import Federation

MOST_OUTPUTS = 2**24
"""Of a model for the samples that it sees at a time in evaluation: 64 MB."""


@dataclass(frozen=True)
class Block:
    """The samples of C clients in one split as flat arrays, client after client, without padding."""

    federation: "Federation"
    clients: Tensor  # int64 [C], client indices in the federation
    index: Tensor  # int64 [n], positions in the federation's samples
    owner: Tensor  # int64 [n], position of the sample's client in `clients`

    @property
    def keys(self) -> Tensor:
        """The clients' keys, from which their random numbers are drawn, int64 [C]."""
        return self.clients if self.federation.keys is None else self.federation.keys[self.clients]

    def counts(self) -> Tensor:
        """Samples of each client, int64 [C]."""
        return torch.bincount(self.owner, minlength=len(self.clients))

    def ranks(self) -> Tensor:
        """Each sample's index among its client's samples, int64 [n]."""
        return ranks(self.owner, self.counts())

    def x(self, dtype: torch.dtype) -> Inputs:
        """Features [n, ...] as the model's input."""
        return self.federation.samples.features(self.index, dtype)

    def vectors(self, dtype: torch.dtype) -> Tensor:
        """Features as vectors [n, d]; UserError for samples of several arrays."""
        x = self.x(dtype)
        if not isinstance(x, Tensor):
            raise UserError(f"dataset: samples of several arrays ({', '.join(x)}) are no vectors, as needed here")
        return x.flatten(1).to(dtype)

    def y(self) -> Tensor:
        """Labels [n, ...]."""
        return self.federation.samples.labels(self.index)

    def domain(self) -> Tensor:
        """The domain of each sample, int64 [n]."""
        assert self.federation.domains is not None  # callers check it in their `prepare`
        return self.federation.domains.of_sample[self.index]

    def batch(self, positions: Tensor, dtype: torch.dtype) -> tuple[Inputs, Tensor]:
        """A training batch x [..., B, *in_shape], y [..., B] or [..., B, targets].

        `positions` are indices into the block's samples, int64 [..., B].
        """
        index = self.index.index_select(0, positions.flatten()).view_as(positions)
        return self.federation.samples.features(index, dtype), self.federation.samples.labels(index)

    def thinned(self, share: float, draws: Tensor) -> "Block":
        """A share of each client's samples, rounded up: those with the lowest draws, int64 [n] in [0, 2^32)."""
        order = torch.argsort((self.owner << 32) | draws, stable=True)
        sizes = (share * self.counts()).ceil()  # [C]
        kept = order[self.ranks() < sizes[self.owner]].sort().values
        return Block(self.federation, self.clients, self.index[kept], self.owner[kept])

    def pieces(self) -> Iterator["Block"]:
        """Cuts the samples (not the clients) into parts: 4 MB of vectors, or 256 others, which fit a CPU's cache.

        On a GPU a part has up to 4,096 samples, or 16,384 vectors, and inputs of 256 MB. A part has at most
        `MOST_OUTPUTS` outputs of a model, but one sample at least.
        """
        shape, task = self.federation.in_shape, self.federation.task
        vectors = isinstance(shape, tuple) and len(shape) == 1 and isinstance(self.federation.samples, Arrays)
        on_cpu, numbers = self.clients.device.type == "cpu", math.prod(shape) if isinstance(shape, tuple) else 1
        most = 16384 if vectors else 256 if on_cpu else 4096
        fits = (2**20 if on_cpu else 2**26) // max(1, numbers) if vectors or not on_cpu else most
        size = max(1, min(max(256, min(most, fits)), MOST_OUTPUTS // (task.n_targets * task.n_outputs)))
        for start in range(0, max(1, len(self.index)), size):  # one empty piece if there are no samples
            part = slice(start, start + size)
            yield Block(self.federation, self.clients, self.index[part], self.owner[part])
