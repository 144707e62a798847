"""Learners stacked and stepped together with `torch.func.vmap`: fast for small models, and on GPUs."""

import warnings
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._pytree import tree_map

from fedem_lightning.data.federation import Block
from fedem_lightning.engine.base import Engine
from fedem_lightning.engine.loop import LoopEngine
from fedem_lightning.local_solver import Batches, Learner, LocalStep
from fedem_lightning.randomness import fold


class VmapEngine(Engine):
    """All clients of a block at once, one component after the other (a client's components share its batch).

    Clients are sorted by their number of steps, so that those still at work are always the first rows and no step is
    computed for a client that has finished. Short batches are padded and masked; with BatchNorm, whose statistics
    padding would enter, clients with batches of equal size are stacked instead. A backbone that torch.func cannot stack
    is left to `loop`, with one warning.
    """

    name = "vmap"
    copies = 6

    def resolve(self, backbone: nn.Module, device: torch.device) -> Engine:
        """Itself, knowing whether the backbone mixes the samples of a batch."""
        self._may_pad = not any(isinstance(layer, _BatchNorm) for layer in backbone.modules())
        self._loop: LoopEngine | None = None
        return self

    def run(
        self,
        step: LocalStep,
        learners: Learner,
        block: Block,
        batches: Batches,
        weights: Tensor | None = None,
        progress: Callable[[int], None] = lambda clients: None,
    ) -> Learner:
        """See `Engine.run`."""
        if self._loop is None:
            try:
                return self._run_stacked(vmap(step), learners, block, batches, weights, progress)
            except torch.OutOfMemoryError:
                raise
            except RuntimeError as error:  # what torch.func raises for an operation without a rule
                reason = str(error).strip().splitlines()[0]
                warnings.warn(f"engine: vmap cannot stack this backbone, loop takes over ({reason})", stacklevel=2)
                self._loop, self.name = LoopEngine(self.block_size, self.memory_gb), "loop"
        return self._loop.run(step, learners, block, batches, weights, progress)

    def _run_stacked(
        self,
        stacked_step: LocalStep,
        learners: Learner,
        block: Block,
        batches: Batches,
        weights: Tensor | None,
        progress: Callable[[int], None],
    ) -> Learner:
        device = block.index.device
        anyone = next(iter(learners["params"].values()))  # [C, M, ...]
        n_components, dtype = anyone.shape[1], anyone.dtype
        n_steps, order = batches.n_steps.sort(descending=True, stable=True)
        order = order.to(device)
        states = [tree_map(lambda t, m=m: t[order, m], learners) for m in range(n_components)]  # M x [C, ...]
        finished: list[list[Learner]] = [[] for _ in states]
        active = len(order)
        for j in range(int(n_steps[0])):
            still = int((n_steps > j).sum())
            if still < active:
                for m, state in enumerate(states):
                    finished[m].append(tree_map(lambda t, still=still: t[still:], state))
                    states[m] = tree_map(lambda t, still=still: t[:still], state)
                active = still
            for rows in self._groups(batches.positions[order[:active], j]):
                clients = order[:active][rows]
                positions = batches.positions[clients, j]  # [A, B]
                real = positions >= 0
                size = real.sum(dim=1)  # [A]
                width = int(size.max())
                positions, real = positions[:, :width].clamp(min=0), real[:, :width].to(dtype)
                x, y = block.batch(positions, fold(batches.keys[clients], j), dtype)  # [A, B, ...]
                for m in range(n_components):
                    weight = real if weights is None else weights[:, m][positions] * real  # [A, B]
                    key = fold(batches.keys[clients], j, m)
                    stepped = stacked_step(_take(states[m], rows), x, y, weight, size.to(dtype), key)
                    states[m] = _put(states[m], rows, stepped)
        back = order.argsort()
        components = []
        for m, state in enumerate(states):
            parts = [state, *reversed(finished[m])]  # still-active first, then those that finished last
            components.append(tree_map(lambda *rows: torch.cat(rows)[back], *parts))
        progress(len(order))
        return tree_map(lambda *models: torch.stack(models, dim=1), *components)

    def _groups(self, positions: Tensor) -> list[Tensor | slice]:
        """Rows that are stacked together: all, or those with batches of equal size."""
        if self._may_pad:
            return [slice(None)]
        size = (positions >= 0).sum(dim=1)
        if int(size.min()) == int(size.max()):
            return [slice(None)]
        return [torch.nonzero(size == s).squeeze(1) for s in size.unique()]


def _take(state: Learner, rows: Tensor | slice) -> Learner:
    return state if isinstance(rows, slice) else tree_map(lambda t: t[rows], state)


def _put(state: Learner, rows: Tensor | slice, stepped: Learner) -> Learner:
    return stepped if isinstance(rows, slice) else tree_map(lambda t, new: t.index_copy(0, rows, new), state, stepped)
