"""A federation: all samples in flat arrays, and for every split their positions, by client; blocks of clients."""

import copy
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedem_lightning.data.arrays import listed
from fedem_lightning.data.samples import Arrays, Domains, Fields, Inputs, InShape, Samples, as_tensor, hash_of
from fedem_lightning.data.splits import Split, ranks, splits_by_client
from fedem_lightning.data.table_features import TableFeatures
from fedem_lightning.data.tasks import Task
from fedem_lightning.settings.errors import UserError, require

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
        """Cuts the samples (not the clients) into parts of `most` samples; one empty part if there are none."""
        size = self.most
        for start in range(0, max(1, len(self.index)), size):
            part = slice(start, start + size)
            yield Block(self.federation, self.clients, self.index[part], self.owner[part])

    @property
    def most(self) -> int:
        """How many samples a model sees at a time in evaluation: 4 MB of vectors, or 256 others, fit a CPU's cache.

        On a GPU up to 4,096 samples, or 16,384 vectors, and inputs of 256 MB. A model has at most `MOST_OUTPUTS`
        outputs for them, but they are one at least.
        """
        shape, task = self.federation.in_shape, self.federation.task
        vectors = isinstance(shape, tuple) and len(shape) == 1 and isinstance(self.federation.samples, Arrays)
        on_cpu, numbers = self.clients.device.type == "cpu", math.prod(shape) if isinstance(shape, tuple) else 1
        most = 16384 if vectors else 256 if on_cpu else 4096
        fits = (2**20 if on_cpu else 2**26) // max(1, numbers) if vectors or not on_cpu else most
        return max(1, min(max(256, min(most, fits)), MOST_OUTPUTS // (task.n_targets * task.n_outputs)))


class Federation:
    """Samples of T clients, with their splits. Build one with `from_arrays` or through a data module.

    No dataclass: Lightning's precision plugins would copy a dataclass, tensor by tensor, every round.
    """

    def __init__(
        self,
        samples: Samples,
        splits: Mapping[str, Split],  # "train", "val", "test"
        names: Sequence[str],  # of the clients [T]
        seen: Tensor,  # bool [T]; the unseen clients take no part in training
        task: Task,
        truth: dict[str, np.ndarray] | None = None,  # of generated data, by client or component, such as "group" [T]
        notes: dict[str, Any] | None = None,  # where samples come from, which were left out; saved in results.json
        domains: Domains | None = None,
        features: TableFeatures | None = None,  # how rows of a table became x, if they did
        keys: Tensor | None = None,  # of the clients' random numbers, int64 [T]; None: their indices
    ) -> None:
        self.samples, self.splits, self.names = samples, splits, names
        self.seen, self.task, self.truth = seen, task, truth or {}
        self.notes, self.domains, self.features, self.keys = notes or {}, domains, features, keys
        self._digest_of_x: str | None = None
        self._clients: dict[bool, Tensor] = {}

    @property
    def released(self) -> tuple[str, ...]:
        """What x or the task tells of all clients' data, because it was computed from them."""
        columns = "the means, deviations, medians and categories of a table's columns; scale them by public numbers"
        targets = "the targets' mean and deviation; scale them by public numbers, and set standardize_targets=false"
        scaled = getattr(self.task, "scale", None) is not None
        reason = ((f"{columns}, and use dataset=npz", self.features is not None), (targets, scaled))
        return tuple(message for message, there in reason if there)

    def in_units_of(self, task: Task) -> "Federation":
        """The same with the shift and scale of real targets that a model has learned, whatever those of these are."""
        learned, own = ((getattr(t, "shift", None), getattr(t, "scale", None)) for t in (task, self.task))
        if type(task) is not type(self.task) or task.n_outputs != self.task.n_outputs or learned == own:
            return self
        return self._with(task=task)

    @classmethod
    def from_samples(
        cls,
        samples: Samples,
        client: np.ndarray,
        split: np.ndarray,
        *,
        position: np.ndarray | None = None,
        task: Task,
        names: Sequence[str],
        seen: np.ndarray | None = None,
        **more: Any,
    ) -> "Federation":
        """Makes a federation: positions are sorted by (split, client), samples are neither copied nor reordered.

        client int [n] is in 0..T-1, or -1 for nobody's sample; split int [n] is 0 train, 1 val, 2 test; position int64
        [n] is that in `samples`, default 0..n-1. Each client that is seen, by default all, needs a training sample.
        """
        seen = np.ones(len(names), dtype=bool) if seen is None else seen
        splits = splits_by_client(client, split, len(names), position)
        idle = [names[t] for t in np.flatnonzero(seen & (splits["train"].counts().numpy() == 0)).tolist()]
        require(
            not idle, f"client {listed(idle, 3)} has no training sample: every client that trains needs at least one"
        )
        return cls(samples, splits, tuple(names), torch.from_numpy(seen), task, **more)

    @classmethod
    def from_arrays(
        cls, x: np.ndarray | Mapping[str, np.ndarray], y: np.ndarray, client: np.ndarray, split: np.ndarray, **more: Any
    ) -> "Federation":
        """Makes a federation as `from_samples` does, from x [n, ...], or several such arrays by name, and y [n]."""
        if isinstance(x, Mapping):
            samples: Samples = Fields({name: as_tensor(part) for name, part in x.items()}, as_tensor(y))
        else:
            samples = Arrays(as_tensor(x), as_tensor(y))
        return cls.from_samples(samples, client, split, **more)

    def __repr__(self) -> str:
        return f"Federation({self})"

    def __str__(self) -> str:
        n = sum(int(split.counts().sum()) for split in self.splits.values())  # of Flower's clients, those to train on
        what = self.notes.get("images") or f"samples of {self.notes.get('sample') or f'shape {self.in_shape}'}"
        task = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", type(self.task).__name__).lower()
        return f"{self.n_clients:,} clients, {n:,} {what}, {task}"

    @property
    def n_clients(self) -> int:
        """T, the unseen clients included."""
        return len(self.names)

    @property
    def in_shape(self) -> InShape:
        """Shape of one sample as the model's input (images: channels first); of several tensors by name."""
        return self.samples.in_shape

    @property
    def device(self) -> torch.device:
        """The device of the samples."""
        return self.samples.device

    def clients(self, seen: bool = True) -> Tensor:
        """Client indices of the seen (or the unseen) clients, ascending, int64."""
        if seen not in self._clients:  # found once: the CPU would wait for a GPU to count them
            self._clients[seen] = torch.nonzero(self.seen == seen).squeeze(1)
        return self._clients[seen]

    def block(self, clients: Tensor, split: str) -> Block:
        """The samples of `clients` (int64 [C]) in `split`."""
        return Block(self, clients, *self.splits[split].positions(clients))

    def to(self, device: torch.device | str) -> "Federation":
        """The same federation on another device."""
        if self.device == torch.device(device):
            return self
        parts: dict[str, Any] = {name: getattr(self, name) for name in ("samples", "seen", "domains", "keys")}
        moved = {name: part.to(device) for name, part in parts.items() if part is not None}
        splits = {name: split.to(device) for name, split in self.splits.items()}
        return self._with(**moved, splits=splits, _digest_of_x=self._digest_of_x)

    def with_part(self, clients: Tensor, fraction: float, seed: int) -> "Federation":
        """The federation in which `clients` have only a subset of their training samples."""
        return self._with(splits={**self.splits, "train": self.splits["train"].thinned(clients, fraction, seed)})

    def _with(self, **changes: Any) -> "Federation":
        """A copy with some attributes replaced; it shares the others."""
        other = copy.copy(self)
        vars(other).update({"_digest_of_x": None} | changes if "samples" in changes else changes, _clients={})
        return other

    def digest(self) -> str:
        """SHA-256 of x, labels, owners, splits, seen clients, groups and domains: equal digests, equal federations.

        x is read once: it must not change after the first call.
        """
        if self._digest_of_x is None:
            self._digest_of_x = hash_of(self.samples.fingerprint()[1:], shapes=True).hexdigest()
        positions = [t for split in self.splits.values() for t in split.fingerprint()]
        group = [torch.as_tensor(self.truth["group"])] if "group" in self.truth else []
        domain = [] if self.domains is None else [self.domains.of_sample]
        sha = hash_of([self.samples.fingerprint()[0], self.seen, *positions, *group, *domain])
        sha.update(self._digest_of_x.encode())
        return sha.hexdigest()
