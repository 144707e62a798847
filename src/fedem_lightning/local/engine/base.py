"""Base class of engines, and `loop`: a local step is written for one learner, an engine runs it for all of a block.

All engines compute the same numbers (up to the order of float sums), whatever the block size and the clients' order.
"""

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from fedem_lightning.aggregate import Models
from fedem_lightning.data.federation import Block, Federation
from fedem_lightning.data.randomness import fold, global_streams
from fedem_lightning.data.samples import Inputs, n_values
from fedem_lightning.local.solver import Batches, Learner, LocalStep
from fedem_lightning.models.components import channels_last
from fedem_lightning.settings.ranges import Positive, PositiveInt
from fedem_lightning.settings.recipes import Recorded


class Engine(Recorded, ABC):
    """Runs local steps over the learners of a block.

    Args:
        block_size: number of clients in a block; None: as many as fit `memory_gb`.
        memory_gb: approximate memory of a block's learners and batches, in 10^9 bytes, without activations; None:
            `default_gb`. Where a GPU's memory does not suffice, its blocks are halved.

    """

    name: str
    reason = "set by the user"  # why this engine was selected
    default_gb: float
    copies: int  # copies of each learner's state that exist at the same time
    halvings = 0  # times that the memory of a GPU did not suffice
    gives_up = False  # whether another engine has taken over, because this one cannot run the backbone

    def __init__(self, block_size: PositiveInt | None = None, memory_gb: Positive | None = None) -> None:
        self.block_size, self.memory_gb = block_size, memory_gb

    def resolve(self, backbone: nn.Module, device: torch.device) -> "Engine":
        """The engine that runs this backbone on this device, prepared for it."""
        return self

    def give_up(self) -> None:
        """Leaves the backbone to another engine, as an earlier process of this run did."""

    @abstractmethod
    def run(
        self, step: LocalStep, learners: Learner, block: Block, batches: Batches, weights: Tensor | None
    ) -> Learner:
        """The states after the local steps of each client, as many as it has batches, for each of its M models.

        Args:
            step: one local step of one learner.
            learners: stacked states, each tensor [C, M, ...]; not changed (it may be an expanded view).
            block: the clients' samples.
            batches: the samples of each step.
            weights: of the samples in each model's loss [n, M], or in each of K losses of a model [n, M, K]; None: 1.

        """

    def blocks(self, federation: Federation, clients: Tensor, learner_bytes: int, batch_size: int) -> Iterator[Block]:
        """Cuts clients (int64 [C], ascending) into blocks; a client's models have `learner_bytes`."""
        size = self.block_size
        if not len(clients):
            return
        if size is None:
            sample = n_values(federation.in_shape) * 4
            batch = min(batch_size, int(federation.splits["train"].counts(clients).max()))
            client = self.copies * learner_bytes + batch * 4 * sample
            size = max(1, int(1e9 * (self.memory_gb or self.default_gb) / client) >> self.halvings)
        for part in clients.split(size):
            yield federation.block(part, "train")


Objective = Callable[..., tuple[Tensor, Models]]
"""Function (params, buffers, x, y, weight, size, key) -> the learners' losses, and their buffers afterwards."""


class Batch(NamedTuple):
    """The samples of a step, for one learner or for a stack: leading axes [], [A] or [A, M]."""

    x: Inputs  # [(A,) B, ...]
    y: Tensor  # [(A,) B, ...]
    weight: Tensor  # [..., B]; 0 for padding
    size: Tensor  # [...], real samples; they come first
    key: Tensor  # [...]

    def part(self, number: int, parts: int) -> "Batch":
        """Every `parts`-th sample from `number` on: the parts of a batch are disjoint."""
        axis = min(self.size.ndim, 1)
        length = self.y.shape[axis]
        columns = torch.arange(min(number, length), length, parts, device=self.y.device)
        x, y = tree_map(lambda t: t.index_select(axis, columns), (self.x, self.y))
        size = ((self.size - number) / parts).ceil().clamp(min=1)
        return Batch(x, y, self.weight.index_select(-1, columns), size, self.key)


def take_step(step: LocalStep, objective: Objective, state: Learner, whole: Batch) -> None:
    """Takes a local step in place, for a learner or a stack; in the sum of losses each learner has its own gradient."""

    def gradient(learner: Learner, part: int = 0, parts: int = 1) -> list[Tensor]:
        batch = whole if parts == 1 else whole.part(part, parts)
        if not batch.weight.shape[-1]:
            return [torch.zeros_like(p) for p in learner["params"].values()]
        with torch.enable_grad():
            params = {name: p.detach().requires_grad_() for name, p in learner["params"].items()}  # leaves, same memory
            losses, buffers = objective(params, learner["buffers"], *batch)
            result = torch.autograd.grad(losses.sum(), list(params.values()), allow_unused=True)
        for name, buffer in buffers.items():
            learner["buffers"][name].copy_(buffer)
        torch.clear_autocast_cache()  # it would keep a low-precision copy of every step's parameters
        return [torch.zeros_like(p) if g is None else g for p, g in zip(params.values(), result, strict=True)]

    step.advance(state, gradient)


class LoopEngine(Engine):
    """Runs learners one by one, each trained in place. Short batches are not padded.

    A network may draw from the global generators of torch, NumPy and Python: each client's training seeds them by the
    seed, the round and the client. Blocks are small by default (64 MB), so that a client's models are still in cache
    when they are aggregated.
    """

    name = "loop"
    default_gb = 0.064
    copies = 2

    def run(
        self, step: LocalStep, learners: Learner, block: Block, batches: Batches, weights: Tensor | None
    ) -> Learner:
        """See `Engine`."""
        trained = tree_map(_own_copy, learners)
        anyone = next(iter(trained["params"].values()))  # [C, M, ...]
        n_components, device = anyone.shape[1], anyone.device
        start, keys = 0, batches.keys.tolist()
        with global_streams(device) as seed:
            for c, (count, last) in enumerate(zip(batches.counts.tolist(), batches.last.tolist(), strict=True)):
                seed(keys[c])  # so that a network's own draws do not depend on the clients before
                models = [tree_map(lambda t, c=c, m=m: t[c, m], trained) for m in range(n_components)]  # views
                met = [*[count] * (len(batches.order) - 1), last] if len(batches.order) else []  # samples of each pass
                parts = (order[start:][:n] for order, n in zip(batches.order, met, strict=True) if n)
                each = (rows for part in parts for rows in part.split(batches.size))
                for s, rows in enumerate(itertools.islice(each, batches.limit)):
                    x, y = block.batch(rows, anyone.dtype)  # [B, ...]
                    size = torch.tensor(len(rows), dtype=anyone.dtype, device=device)
                    for m, model in enumerate(models):
                        weight = torch.ones_like(rows, dtype=anyone.dtype) if weights is None else weights[rows, m]
                        batch = Batch(x, y, weight, size, fold(batches.keys[c], s, m))
                        try:
                            take_step(step, step.objective, model, batch)
                        except Exception as error:
                            error.client = c  # type: ignore[attr-defined]  # whose step it was
                            raise
                start += count
        return trained


def _own_copy(t: Tensor) -> Tensor:
    """A copy to train in place; convolution weights [C, M, out, in, height, width] are in the faster memory order."""
    convolution = t.ndim == 6 and t.device.type == "cpu"
    return channels_last(t) if convolution else t.clone(memory_format=torch.contiguous_format)
