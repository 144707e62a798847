"""Learners stacked and stepped together with `torch.func.vmap`: fast for small models, and on GPUs."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._pytree import tree_map

from fedem_lightning.data.federation import Block
from fedem_lightning.engine.base import Engine
from fedem_lightning.errors import require
from fedem_lightning.local_solver import Batches, Learner, LocalStep
from fedem_lightning.randomness import fold


def mixes_samples(backbone: nn.Module) -> bool:
    """Whether a sample's output depends on the others of its batch (BatchNorm): padding would then change results."""
    return any(isinstance(layer, _BatchNorm) for layer in backbone.modules())


class VmapEngine(Engine):
    """All clients of a block at once, one component after the other (a client's components share its batch).

    Clients are sorted by their number of steps, so that those still at work are always the first rows and no step is
    computed for a client that has finished. Short batches are padded and masked.
    """

    name = "vmap"
    copies = 6

    def resolve(self, backbone: nn.Module, device: torch.device) -> Engine:
        """Itself.

        Raises:
            UserError: the backbone has BatchNorm.

        """
        require(not mixes_samples(backbone), "engine: vmap cannot stack a backbone with BatchNorm; use engine=loop")
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
        stacked_step = vmap(step)
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
            positions = batches.positions[order[:active], j]  # [A, B]
            real = positions >= 0
            size = real.sum(dim=1)  # [A]
            width = int(size.max())
            positions, real = positions[:, :width].clamp(min=0), real[:, :width].to(dtype)
            x = block.federation.features(block.index[positions], dtype)  # [A, B, ...]
            y = block.federation.y[block.index[positions]]  # [A, B]
            for m in range(n_components):
                weight = real if weights is None else weights[:, m][positions] * real  # [A, B]
                key = fold(batches.keys[order[:active]], j, m)
                states[m] = stacked_step(states[m], x, y, weight, size.to(dtype), key)
        back = order.argsort()
        components = []
        for m, state in enumerate(states):
            parts = [state, *reversed(finished[m])]  # still-active first, then those that finished last
            components.append(tree_map(lambda *rows: torch.cat(rows)[back], *parts))
        progress(len(order))
        return tree_map(lambda *models: torch.stack(models, dim=1), *components)
