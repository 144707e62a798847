"""A federation: flat arrays of all samples, and for every split the samples' positions sorted by client.

Shape letters used throughout the package: T clients of the federation, C clients of a block, M components,
n samples (of a block, or of all), B samples of a batch, J local steps, Y classes, K rounds.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedem_lightning.data.splits import SPLITS
from fedem_lightning.errors import require
from fedem_lightning.tasks import Task


@dataclass(frozen=True)
class Block:
    """The samples of one split of C clients, flat: client after client, nothing padded."""

    federation: "Federation"
    clients: Tensor  # int64 [C], ids in the federation
    index: Tensor  # int64 [n], positions in the federation's arrays
    owner: Tensor  # int64 [n], position of the sample's client in `clients`

    def counts(self) -> Tensor:
        """Samples of each client, int64 [C]."""
        return torch.bincount(self.owner, minlength=len(self.clients))

    def x(self, dtype: torch.dtype) -> Tensor:
        """Features [n, ...] as the model takes them."""
        return self.federation.features(self.index, dtype)

    def y(self) -> Tensor:
        """Labels, int64 [n]."""
        return _rows(self.federation.y, self.index)

    def pieces(self) -> Iterator["Block"]:
        """Cuts the samples (not the clients) into parts that stay in a CPU's caches: vectors of 4 MB, or 256 images."""
        sample = self.federation.x[0]
        size = 256 if sample.ndim > 1 else max(256, min(16384, 2**20 // max(1, sample.numel())))
        for start in range(0, max(1, len(self.index)), size):  # one empty piece if there is no sample
            part = slice(start, start + size)
            yield Block(self.federation, self.clients, self.index[part], self.owner[part])


@dataclass(frozen=True)
class Split:
    """Where the samples of one split lie, sorted by client."""

    index: Tensor  # int64 [n], positions in the federation's arrays
    offsets: Tensor  # int64 [T + 1]: client t owns index[offsets[t]:offsets[t + 1]]

    def counts(self) -> Tensor:
        """Samples of each client, int64 [T]."""
        return self.offsets.diff()


class Federation:
    """Samples of T clients, with their splits. Build one with `from_arrays` or through a data module.

    No dataclass: Lightning's precision plugins would copy one, tensor by tensor, every round.

    Args:
        x: features [n, ...]; uint8 stays uint8 until its batch, and then means pixels in [0, 255].
        y: labels, int64 [n].
        splits: "train", "val", "test".
        names: a client's name, [T].
        seen: bool [T]; the unseen clients take no part in training.
        task: loss and label space.
        truth: what a generator knows, per client or component: "pi" [T, M], "theta" [M, d], "group" [T],
            "bayes_accuracy" [T].

    """

    def __init__(
        self,
        x: Tensor,
        y: Tensor,
        splits: dict[str, Split],
        names: Sequence[str],
        seen: Tensor,
        task: Task,
        truth: dict[str, np.ndarray] | None = None,
    ) -> None:
        self.x, self.y, self.splits, self.names = x, y, splits, tuple(names)
        self.seen, self.task, self.truth = seen, task, truth or {}

    @classmethod
    def from_arrays(
        cls,
        x: np.ndarray,
        y: np.ndarray,
        client: np.ndarray,
        split: np.ndarray,
        *,
        task: Task,
        names: Sequence[str],
        seen: np.ndarray | None = None,
        truth: dict[str, np.ndarray] | None = None,
    ) -> "Federation":
        """Sorts positions by (split, client); x and y are neither copied nor reordered.

        Args:
            x: [n, ...]; y: int [n]; client: int [n] in 0..T-1; split: int [n], 0 train, 1 val, 2 test.
            task: loss and label space.
            names: of the T clients.
            seen: bool [T]; default all.
            truth: see `Federation.truth`.

        Raises:
            UserError: a seen client has no training sample.

        """
        n_clients = len(names)
        seen = np.ones(n_clients, dtype=bool) if seen is None else seen
        splits = {}
        for code, name in enumerate(SPLITS):
            index = np.flatnonzero(split == code)
            index = index[np.argsort(client[index], kind="stable")]
            counts = np.bincount(client[index], minlength=n_clients)
            splits[name] = Split(torch.from_numpy(index), torch.from_numpy(np.concatenate([[0], counts.cumsum()])))
        idle = np.flatnonzero(seen & (splits["train"].counts().numpy() == 0))
        shown = ", ".join(names[t] for t in idle[:3]) + (", ..." if len(idle) > 3 else "")
        require(len(idle) == 0, f"client {shown} has no training sample: every client that trains needs at least one")
        return cls(torch.from_numpy(x), torch.from_numpy(y), splits, names, torch.from_numpy(seen), task, truth)

    def __repr__(self) -> str:
        return f"Federation({self.n_clients} clients, {len(self.y)} samples of shape {self.in_shape}, {self.task})"

    @property
    def n_clients(self) -> int:
        """T, the unseen clients included."""
        return len(self.names)

    @property
    def in_shape(self) -> tuple[int, ...]:
        """Shape of one sample as the model takes it (images: channels first)."""
        return tuple(self.features(torch.zeros(1, dtype=torch.int64), torch.float32).shape[1:])

    def clients(self, seen: bool = True) -> Tensor:
        """Ids of the seen (or the unseen) clients, ascending, int64."""
        return torch.nonzero(self.seen == seen).squeeze(1)

    def block(self, clients: Tensor, split: str) -> Block:
        """The samples of `clients` (int64 [C]) in `split`."""
        table = self.splits[split]
        counts = table.counts()[clients]  # [C]
        owner = torch.repeat_interleave(torch.arange(len(clients), device=clients.device), counts)  # [n]
        within = torch.arange(len(owner), device=clients.device) - (counts.cumsum(0) - counts)[owner]
        return Block(self, clients, table.index[table.offsets[clients][owner] + within], owner)

    def features(self, index: Tensor, dtype: torch.dtype) -> Tensor:
        """X at `index` (int64, any shape) as floats; uint8 images become [..., channels, height, width] in [0, 1]."""
        rows = _rows(self.x, index)
        if rows.dtype != torch.uint8:
            return rows.to(dtype)
        image = rows.to(dtype) / 255
        if self.x.ndim == 3:
            return image.unsqueeze(-3)  # [..., h, w] -> [..., 1, h, w]
        return image.movedim(-1, -3) if self.x.ndim == 4 else image  # [..., h, w, c] -> [..., c, h, w]

    def to(self, device: torch.device | str) -> "Federation":
        """The same federation on another device."""
        if self.x.device == torch.device(device):
            return self
        splits = {name: Split(s.index.to(device), s.offsets.to(device)) for name, s in self.splits.items()}
        seen = self.seen.to(device)
        return Federation(self.x.to(device), self.y.to(device), splits, self.names, seen, self.task, self.truth)

    def digest(self) -> str:
        """SHA-256 over who owns which label in which split, and who is seen: equal digests, equal partition."""
        sha = hashlib.sha256()
        for tensor in (self.y, self.seen, *(t for s in self.splits.values() for t in (s.index, s.offsets))):
            sha.update(np.ascontiguousarray(tensor.cpu().numpy()).tobytes())
        return sha.hexdigest()


def _rows(tensor: Tensor, index: Tensor) -> Tensor:
    """tensor[index], as a view (no copy) where `index` is a run of consecutive positions."""
    flat = index.flatten()
    if len(flat) == 0 or index.ndim > 1:
        return tensor.index_select(0, flat).unflatten(0, index.shape)  # faster than tensor[index] on a CPU
    first, last = int(flat[0]), int(flat[-1])
    if last - first + 1 == len(flat) and bool((flat.diff() == 1).all()):
        return tensor[first : last + 1]
    return tensor.index_select(0, flat)
