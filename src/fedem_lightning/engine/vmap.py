"""Learners stacked and stepped together: fast for small models, and on GPUs."""

import math
import warnings
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._pytree import tree_map

from fedem_lightning.components import dropout_keys
from fedem_lightning.data.federation import Block
from fedem_lightning.engine.base import Engine, gradients
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
        self._padding = 0.0 if any(isinstance(layer, _BatchNorm) for layer in backbone.modules()) else PADDING
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
        progress: Callable[[int], None] = lambda clients: None,
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
        progress: Callable[[int], None],
    ) -> Learner:
        device = block.index.device
        counts, by_size = batches.counts.sort(descending=True, stable=True)
        starts = (batches.counts.cumsum(0) - batches.counts)[by_size].to(device)  # [C]
        by_size = by_size.to(device)
        stack = tree_map(lambda t: t.index_select(0, by_size), learners)  # [C, M, ...], contiguous, trained in place
        keys, n_passed = batches.keys[by_size], (-(-counts // batches.size)).to(device)  # steps of a pass
        draws = bool(dropout_keys(step.backbone)) or block.federation.augmentation is not None
        limit = CACHE // math.prod(block.federation.in_shape) if device.type == "cpu" else 2**62
        for e, order in enumerate(batches.order):
            for j in range(-(-int(counts[0]) // batches.size)):
                sizes = (counts - j * batches.size).clamp(max=batches.size)
                sizes = sizes[: int((sizes > 0).sum())]  # descending; the other clients have finished this pass
                for rows in group_rows(sizes.tolist(), self._padding, limit):
                    column = torch.arange(int(sizes[rows.start]), device=device)
                    real = column < sizes[rows].to(device).unsqueeze(1)  # [A, B]
                    offset = (starts[rows] + j * batches.size).unsqueeze(1) + column
                    offset = offset.clamp(max=len(order) - 1)
                    positions = order.index_select(0, offset.flatten()).view_as(offset)  # [A, B]
                    key = fold(keys[rows], e * n_passed[rows] + j) if draws else keys[rows]
                    state = tree_map(lambda t, rows=rows: t[rows], stack)  # views
                    take_step = self._step_stacked if self._stacked else _step_vmapped
                    take_step(step, state, block, positions, real, weights, key)
        progress(len(counts))
        back = by_size.argsort()
        return tree_map(lambda t: t[back], stack)

    def _step_stacked(
        self,
        step: LocalStep,
        state: Learner,
        block: Block,
        positions: Tensor,
        real: Tensor,
        weights: Tensor | None,
        key: Tensor,
    ) -> None:
        assert self._stacked is not None
        anyone = next(iter(state["params"].values()))  # [A, M, ...]
        n_models = anyone.shape[1]
        x, y = block.batch(positions, key, anyone.dtype)  # [A, B, ...]
        weight = _weights(weights, positions, real.to(anyone.dtype))
        keys = key.unsqueeze(1).expand(-1, n_models)  # [A, M]
        if self._stacked.draws:
            keys = fold(keys, torch.arange(n_models, device=key.device))
        if not self._trusted and keys.numel() > 1:
            if not self._stacked.agrees(step.backbone, state["params"], x, keys):
                raise _Disagrees
            self._trusted = len(keys) > 1  # the models of a single client share its samples: that shows no mixing
        with torch.enable_grad():
            params = {name: p.detach().requires_grad_() for name, p in state["params"].items()}
            outputs = self._stacked(params, x, keys)  # [A M B, ...]
            each_y = y.unsqueeze(1).expand(-1, n_models, *y.shape[1:]).flatten(0, 2)  # [A M B, ...]
            losses = step.task.losses(outputs, each_y).view(-1, n_models, real.shape[1])  # [A, M, B]
            loss = step.mean_loss(losses, weight, real.sum(dim=1, keepdim=True)).sum()
            grads = gradients(loss, list(params.values()))
        step.descend(state, grads)


def _step_vmapped(
    step: LocalStep,
    state: Learner,
    block: Block,
    positions: Tensor,
    real: Tensor,
    weights: Tensor | None,
    key: Tensor,
) -> None:
    """One component after the other: its clients' batches are the same, but copies of them would not fit a cache."""
    anyone = next(iter(state["params"].values()))  # [A, M, ...]
    x, y = block.batch(positions, key, anyone.dtype)  # [A, B, ...]
    size = real.sum(dim=1).to(anyone.dtype)
    weight = _weights(weights, positions, real.to(anyone.dtype))
    for m in range(anyone.shape[1]):
        model = tree_map(lambda t, m=m: t[:, m], state)  # views
        with torch.enable_grad():
            params = {name: p.detach().requires_grad_() for name, p in model["params"].items()}
            w = weight[:, min(m, weight.shape[1] - 1)]
            losses, buffers = vmap(step.objective)(params, model["buffers"], x, y, w, size, fold(key, m))
            grads = gradients(losses.sum(), list(params.values()))
        step.descend(model, grads)
        for name, buffer in buffers.items():
            model["buffers"][name].copy_(buffer)


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
