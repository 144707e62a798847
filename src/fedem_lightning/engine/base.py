"""Base class of engines: a local step is written for one learner, and an engine runs it for all learners of a block.

All engines compute the same numbers (up to the order of float sums), whatever the block size and the clients' order.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from fedem_lightning.aggregation import Models
from fedem_lightning.data.block import Block
from fedem_lightning.data.federation import Federation
from fedem_lightning.data.samples import Inputs, n_values
from fedem_lightning.local_solver import Batches, Learner, LocalStep
from fedem_lightning.records.recipes import Recorded
from fedem_lightning.settings.ranges import Positive, PositiveInt


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
        self,
        step: LocalStep,
        learners: Learner,
        block: Block,
        batches: Batches,
        weights: Tensor | None = None,
        progress: Callable[[float], None] = lambda clients: None,
    ) -> Learner:
        """Runs the local steps of each client, as many as it has batches, for each of its M models.

        Args:
            step: one local step of one learner.
            learners: stacked states, each tensor [C, M, ...]; not changed (it may be an expanded view).
            block: the clients' samples.
            batches: the samples of each step.
            weights: of the samples in each model's loss [n, M], or in each of K losses of a model [n, M, K]; None: 1.
            progress: called with the number of clients finished since the last call; it may be a fraction.

        Returns:
            The states after the last step, each tensor [C, M, ...].

        """

    def blocks(self, federation: Federation, clients: Tensor, learner_bytes: int, batch_size: int) -> Iterator[Block]:
        """Cuts clients into blocks of training samples.

        Args:
            federation: holds the clients.
            clients: int64 [C], ascending.
            learner_bytes: of a client's M models.
            batch_size: B.

        """
        size = self.block_size
        if size is None:
            sample = n_values(federation.in_shape) * 4
            batch = min(batch_size, int(federation.splits["train"].counts(clients).max())) if len(clients) else 1
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
            found = torch.autograd.grad(losses.sum(), list(params.values()), allow_unused=True)
        for name, buffer in buffers.items():
            learner["buffers"][name].copy_(buffer)
        torch.clear_autocast_cache()  # it would keep a low-precision copy of every step's parameters
        return [torch.zeros_like(p) if g is None else g for p, g in zip(params.values(), found, strict=True)]

    step.advance(state, gradient)
