"""The vmap engine steps all learners of a block together: it is fast for small models, and on GPUs."""

import functools
import warnings

import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._pytree import tree_map

from fedem_lightning.data.federation import Block
from fedem_lightning.data.randomness import draws_globally, fold
from fedem_lightning.data.samples import Inputs, n_values
from fedem_lightning.local.engine.base import Batch, Engine, LoopEngine, take_step
from fedem_lightning.local.solver import Batches, Learner, LocalStep
from fedem_lightning.models.backbones.layers import is_frozen_norm, padded_norms, padding
from fedem_lightning.models.stacked import PADDING, StackedBackbone, StackedMixture, group_rows
from fedem_lightning.models.tensors import Models, call_with

CACHE = 2**21
"""Largest number of stacked features on a CPU: 8 MB stay in the cache between forward and backward pass."""


class _Disagrees(Exception):
    """The outputs of a stacked backbone differ from those of the backbone alone."""


class VmapEngine(Engine):
    """Runs all clients of a block, and all their components, at once.

    Clients are sorted by their number of samples, so that unfinished clients are always the first rows, and no step is
    computed for a client that has finished its pass. Rows with batches of about equal size are stepped together; the
    shorter ones are padded and masked, and BatchNorm takes the statistics of the real samples. Linear networks run as
    batched matrix products (`StackedBackbone`), others through `torch.func.vmap`. The `loop` engine runs a backbone
    that cannot be stacked at all, with one warning.
    """

    name = "vmap"
    default_gb = 2.0
    copies = 4

    def resolve(self, backbone: nn.Module, device: torch.device) -> Engine:
        """Prepares the engine for the backbone and returns it."""
        moving = {n for n, m in backbone.named_modules() if isinstance(m, _BatchNorm) and not is_frozen_norm(m)}
        self._padding = PADDING if moving <= padded_norms(backbone).keys() else 0.0  # else it would see padding
        self._stacked = StackedBackbone.of(backbone)
        self._trusted: set[int] = set()  # numbers of models with which its outputs were found right
        self._checked = False  # whether the backbone draws random numbers of its own
        self._loop: LoopEngine | None = None
        self.name, self.gives_up = type(self).name, False
        return self

    def give_up(self) -> None:
        """Leaves the backbone to `loop`."""
        self._loop, self.name = LoopEngine(self.block_size, self.memory_gb), "loop"
        self.reason, self.gives_up = "vmap cannot stack this backbone", True

    def run(
        self, step: LocalStep, learners: Learner, block: Block, batches: Batches, weights: Tensor | None
    ) -> Learner:
        """See `Engine`."""
        if self._loop is None:
            try:
                self._check_randomness(step, learners, block)
                return self._run_stacked(step, learners, block, batches, weights)
            except _Disagrees:  # such a forward mixes samples: it must not see padding either
                self._stacked, self._padding = None, 0.0
                return self.run(step, learners, block, batches, weights)
            except torch.OutOfMemoryError:
                raise
            except RuntimeError as error:  # torch.func has no rule for an operation
                reason = str(error).strip().splitlines()[0]
                warnings.warn(f"engine: vmap cannot stack this backbone, loop takes over ({reason})", stacklevel=2)
                self.give_up()
        assert self._loop is not None
        return self._loop.run(step, learners, block, batches, weights)

    def _check_randomness(self, step: LocalStep, learners: Learner, block: Block) -> None:
        """Raises RuntimeError, at the first call, if the backbone draws random numbers without a key of the learner."""
        if self._checked or not len(block.index):
            return
        anyone = next(iter(learners["params"].values()))
        model = {name: t[0, 0].clone() for name, t in (learners["buffers"] | learners["params"]).items()}
        x = block.federation.samples.features(block.index[:1].expand(2), anyone.dtype)  # the same sample twice
        if draws_globally(lambda: call_with(step.backbone, model, x), anyone.device):
            raise RuntimeError("it draws random numbers of its own, which a stack of learners would share")
        self._checked = True

    def _run_stacked(
        self, step: LocalStep, learners: Learner, block: Block, batches: Batches, weights: Tensor | None
    ) -> Learner:
        device, dtype = block.index.device, next(iter(learners["params"].values())).dtype
        counts, by_size = batches.counts.sort(descending=True, stable=True)
        starts = (batches.counts.cumsum(0) - batches.counts)[by_size].to(device)  # [C]
        by_size = by_size.to(device)
        stack = tree_map(lambda t: t.index_select(0, by_size), learners)  # [C, M, ...], contiguous, trained in place
        passes = -(-counts // batches.size)  # steps of a pass, descending
        keys, n_passed = batches.keys[by_size], passes.to(device)
        limit = CACHE // n_values(block.federation.in_shape) if device.type == "cpu" else 2**62
        norms = padded_norms(step.backbone).values()
        last = batches.last.sort(descending=True).values  # samples
        for e, order in enumerate(batches.order):
            met = counts if e < len(batches.order) - 1 else last  # descending
            for j in range(-(-int(met[0]) // batches.size)):
                sizes = (met - j * batches.size).clamp(max=batches.size)
                sizes = sizes[: int((sizes > 0).sum())]  # descending; the other clients have finished this pass
                done = int((e * passes[: len(sizes)] + j >= batches.limit).sum())  # the first rows take the most steps
                for group in group_rows(sizes[done:].tolist(), self._padding, limit):
                    rows = slice(done + group.start, done + group.stop)
                    column = torch.arange(int(sizes[rows.start]), device=device)
                    real = column < sizes[rows].to(device).unsqueeze(1)  # [A, B]
                    offset = ((starts[rows] + j * batches.size).unsqueeze(1) + column).clamp(max=len(order) - 1)
                    positions = order.index_select(0, offset.flatten()).view_as(offset)  # [A, B]
                    key = fold(keys[rows], e * n_passed[rows] + j) if step.key_names else keys[rows]
                    state = tree_map(lambda t, rows=rows: t[rows], stack)  # views
                    x, y = block.batch(positions, dtype)
                    weight = _weights(weights, positions, real.to(dtype))
                    batch = Batch(x, y, weight, real.sum(dim=1).to(dtype), key)
                    with padding(norms if sizes[rows.start] > sizes[rows.stop - 1] else ()):
                        self._step(step, state, batch)
        back = by_size.argsort()
        return tree_map(lambda t: t.index_select(0, back), stack)  # several times as fast as t[back] on a CPU

    def _step(self, step: LocalStep, state: Learner, batch: "Batch") -> None:
        n_models, on_cpu = next(iter(state["params"].values())).shape[1], batch.key.device.type == "cpu"
        if self._stacked is None and n_models > 1 and not on_cpu:
            keys = fold(batch.key.unsqueeze(1), torch.arange(n_models, device=batch.key.device))  # [A, M]
            weight = batch.weight.expand(-1, n_models, *batch.weight.shape[2:])
            objective = vmap(vmap(step.objective, in_dims=(0, 0, None, None, 0, None, 0)))
            take_step(step, objective, state, batch._replace(weight=weight, key=keys))
            return
        if self._stacked is None:  # components one by one: on a CPU copies of the batch would not fit a cache
            for m in range(n_models):
                model = tree_map(lambda t, m=m: t[:, m], state)  # views
                weight = batch.weight[:, min(m, batch.weight.shape[1] - 1)]
                key = fold(batch.key, m)
                take_step(step, vmap(step.objective), model, batch._replace(weight=weight, key=key))
            return
        keys = batch.key.unsqueeze(1).expand(-1, n_models)  # [A, M]
        if self._stacked.keys:
            keys = fold(keys, torch.arange(n_models, device=keys.device))
        single = keys.numel() == 1 and not isinstance(self._stacked, StackedMixture)
        if n_models not in self._trusted and not single:
            tensors = {**state["buffers"], **state["params"]}
            if not self._stacked.agrees(step.backbone, tensors, batch.x, keys):
                raise _Disagrees
            if len(keys) > 1:  # a single client's models share samples, which hides mixing
                self._trusted.add(n_models)
        objective = functools.partial(_objective, self._stacked, step)
        take_step(step, objective, state, batch._replace(size=batch.size.unsqueeze(1), key=keys))


def _objective(
    stacked: StackedBackbone,
    step: LocalStep,
    params: Models,
    buffers: Models,
    x: Inputs,
    y: Tensor,
    weight: Tensor,
    size: Tensor,
    keys: Tensor,
) -> tuple[Tensor, Models]:
    """Objectives of all learners: x, y [A, B, ...], weight [A, M, B], size [A, 1], keys [A, M] -> [A, M].

    `buffers` are parameters that do not train in this solve: stacked layers have no buffers of their own.
    """
    losses = stacked.losses(step.task, stacked.outputs({**buffers, **params}, x, keys), y)
    return step.mean_loss(losses, weight, size), {}


def _weights(weights: Tensor | None, positions: Tensor, real: Tensor) -> Tensor:
    """Weights of the samples in each model's loss, 0 for padding: [A, M, B], or [A, 1, B] if all models share them.

    Those of models with K losses a sample, [n, M, K], become [A, M, B, K].
    """
    if weights is None:
        return real.unsqueeze(1)
    if weights.ndim == 3:
        several = weights.index_select(0, positions.flatten()).unflatten(0, positions.shape)  # [A, B, M, K]
        return several.transpose(1, 2) * real[:, None, :, None]
    each = weights.T.index_select(1, positions.flatten()).unflatten(1, positions.shape)  # [M, A, B]
    return each.transpose(0, 1) * real.unsqueeze(1)
