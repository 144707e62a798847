"""Learners stacked and stepped together: fast for small models, and on GPUs."""

import functools
import math
import warnings
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._pytree import tree_map

from fedem_lightning.backbones.batch_norm import is_frozen_norm
from fedem_lightning.data.federation import Block
from fedem_lightning.engine.base import Engine, take_step
from fedem_lightning.engine.loop import LoopEngine
from fedem_lightning.engine.stacked import StackedBackbone
from fedem_lightning.local_solver import Batches, Learner, LocalStep
from fedem_lightning.randomness import fold

PADDING = 0.1
"""Padded samples computed for each real one, at most."""

CACHE = 2**21
"""Numbers in the features stacked at once on a CPU: 8 MB stay in cache between the forward and the backward pass."""


class _Disagrees(Exception):
    """A stacked backbone gives a learner something else than the backbone alone."""


class VmapEngine(Engine):
    """All clients of a block and all their components at once.

    Clients are sorted by their number of samples, so that those still at work are always the first rows and no step is
    computed for a client that has finished its pass. Rows with batches of about equal size are stepped together, the
    shorter ones padded and masked; with BatchNorm, whose statistics padding would enter, rows of equal size only.
    Linear networks run as batched matrix products (`StackedBackbone`), others through `torch.func.vmap`. A backbone
    that cannot be stacked at all is left to `loop`, with one warning.
    """

    name = "vmap"
    default_gb = 2.0
    copies = 4

    def resolve(self, backbone: nn.Module, device: torch.device) -> Engine:
        """Itself, knowing the backbone."""
        moving = (isinstance(layer, _BatchNorm) and not is_frozen_norm(layer) for layer in backbone.modules())
        self._padding = 0.0 if any(moving) else PADDING
        self._stacked, self._trusted = StackedBackbone.of(backbone), False
        self._loop: LoopEngine | None = None
        return self

    def run(
        self,
        step: LocalStep,
        learners: Learner,
        block: Block,
        batches: Batches,
        weights: Tensor | None = None,
        progress: Callable[[float], None] = lambda clients: None,
    ) -> Learner:
        """See `Engine.run`."""
        if self._loop is None:
            try:
                return self._run_stacked(step, learners, block, batches, weights, progress)
            except _Disagrees:  # a forward that mixes the samples of a batch must not see padding either
                self._stacked, self._padding = None, 0.0
                return self.run(step, learners, block, batches, weights, progress)
            except torch.OutOfMemoryError:
                raise
            except RuntimeError as error:  # what torch.func raises for an operation without a rule
                reason = str(error).strip().splitlines()[0]
                warnings.warn(f"engine: vmap cannot stack this backbone, loop takes over ({reason})", stacklevel=2)
                self._loop, self.name = LoopEngine(self.block_size, self.memory_gb), "loop"
                self.reason = "vmap cannot stack this backbone"
        return self._loop.run(step, learners, block, batches, weights, progress)

    def _run_stacked(
        self,
        step: LocalStep,
        learners: Learner,
        block: Block,
        batches: Batches,
        weights: Tensor | None,
        progress: Callable[[float], None],
    ) -> Learner:
        device, dtype = block.index.device, next(iter(learners["params"].values())).dtype
        counts, by_size = batches.counts.sort(descending=True, stable=True)
        starts = (batches.counts.cumsum(0) - batches.counts)[by_size].to(device)  # [C]
        by_size = by_size.to(device)
        stack = tree_map(lambda t: t.index_select(0, by_size), learners)  # [C, M, ...], contiguous, trained in place
        passes = -(-counts // batches.size)  # steps of a pass, descending
        keys, n_passed = batches.keys[by_size], passes.to(device)
        draws = bool(step.key_names) or block.federation.augmentation is not None
        limit = CACHE // math.prod(block.federation.in_shape) if device.type == "cpu" else 2**62
        reported = 0.0  # clients
        for e, order in enumerate(batches.order):
            for j in range(-(-int(counts[0]) // batches.size)):
                sizes = (counts - j * batches.size).clamp(max=batches.size)
                sizes = sizes[: int((sizes > 0).sum())]  # descending; the other clients have finished this pass
                done = int((e * passes[: len(sizes)] + j >= batches.limit).sum())  # the first rows take most steps
                for group in group_rows(sizes[done:].tolist(), self._padding, limit):
                    rows = slice(done + group.start, done + group.stop)
                    column = torch.arange(int(sizes[rows.start]), device=device)
                    real = column < sizes[rows].to(device).unsqueeze(1)  # [A, B]
                    offset = (starts[rows] + j * batches.size).unsqueeze(1) + column
                    offset = offset.clamp(max=len(order) - 1)
                    positions = order.index_select(0, offset.flatten()).view_as(offset)  # [A, B]
                    key = fold(keys[rows], e * n_passed[rows] + j) if draws else keys[rows]
                    state = tree_map(lambda t, rows=rows: t[rows], stack)  # views
                    x, y = block.batch(positions, key, dtype)
                    weight = _weights(weights, positions, real.to(dtype))
                    self._step(step, state, _Batch(x, y, weight, real.sum(dim=1).to(dtype), key))
                share = float(sizes[done:].sum()) / max(1, batches.order.numel()) * len(counts)
                reported += share
                progress(share)
        progress(len(counts) - reported)
        back = by_size.argsort()
        return tree_map(lambda t: t[back], stack)

    def _step(self, step: LocalStep, state: Learner, batch: "_Batch") -> None:
        n_models = next(iter(state["params"].values())).shape[1]
        if self._stacked is None:  # one component after the other: copies of the batch for each would not fit a cache
            for m in range(n_models):
                model = tree_map(lambda t, m=m: t[:, m], state)  # views
                weight = batch.weight[:, min(m, batch.weight.shape[1] - 1)]
                key = fold(batch.key, m)
                take_step(step, vmap(step.objective), model, batch.x, batch.y, weight, batch.size, key)
            return
        keys = batch.key.unsqueeze(1).expand(-1, n_models)  # [A, M]
        if self._stacked.draws:
            keys = fold(keys, torch.arange(n_models, device=keys.device))
        if not self._trusted and keys.numel() > 1:
            if not self._stacked.agrees(step.backbone, state["params"], batch.x, keys):
                raise _Disagrees
            self._trusted = len(keys) > 1  # the models of a single client share its samples: that shows no mixing
        objective = functools.partial(self._stacked.objective, step)
        take_step(step, objective, state, batch.x, batch.y, batch.weight, batch.size.unsqueeze(1), keys)


class _Batch(NamedTuple):
    """The batches of A clients, padded to B samples."""

    x: Tensor  # [A, B, ...]
    y: Tensor  # [A, B, ...]
    weight: Tensor  # [A, M, B], or [A, 1, B] if they are all alike; 0 for padding
    size: Tensor  # [A], real samples
    key: Tensor  # [A]


def _weights(weights: Tensor | None, positions: Tensor, real: Tensor) -> Tensor:
    """Of the samples in each model's loss, 0 for padding: [A, M, B], or [A, 1, B] if they are all alike."""
    if weights is None:
        return real.unsqueeze(1)
    each = weights.T.index_select(1, positions.flatten()).unflatten(1, positions.shape)  # [M, A, B]
    return each.transpose(0, 1) * real.unsqueeze(1)


def group_rows(sizes: list[int], padding: float, limit: int) -> list[slice]:
    """Cuts rows with batches of `sizes` (descending) into runs that are stepped together, each padded to its first row.

    At most `padding` of all real samples are added, and a run has at most `limit` samples unless it is a single row.
    """
    spare = padding * sum(sizes)
    groups, start, waste = [], 0, 0
    for row, size in enumerate(sizes):
        added = sizes[start] - size
        if row > start and (waste + added > spare / 2 or sizes[start] * (row - start + 1) > limit):
            groups.append(slice(start, row))
            spare -= waste
            start, waste, added = row, 0, 0
        waste += added
    return [*groups, slice(start, len(sizes))] if sizes else []
