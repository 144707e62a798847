"""One learner after the other: fast for convolutions on a CPU, and able to run any backbone."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from fedem_lightning.data.federation import Block
from fedem_lightning.engine.base import Engine
from fedem_lightning.local_solver import Batches, Learner, LocalStep
from fedem_lightning.randomness import fold


class LoopEngine(Engine):
    """Learners one by one. Short batches are really short: no sample is ever padded."""

    name = "loop"
    copies = 2

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
        anyone = next(iter(learners["params"].values()))  # [C, M, ...]
        n_components = anyone.shape[1]
        trained = tree_map(torch.empty_like, learners)
        for c, n_steps in enumerate(batches.n_steps.tolist()):
            states = [tree_map(lambda t, c=c, m=m: t[c, m], learners) for m in range(n_components)]
            for j in range(n_steps):
                row = batches.positions[c, j]
                row = row[row >= 0]  # [B]
                x, y = block.batch(row, fold(batches.keys[c], j), anyone.dtype)
                size = torch.tensor(len(row), dtype=anyone.dtype, device=anyone.device)
                for m in range(n_components):
                    weight = torch.ones_like(row, dtype=anyone.dtype) if weights is None else weights[row, m]
                    states[m] = step(states[m], x, y, weight, size, fold(batches.keys[c], j, m))
            for m in range(n_components):
                tree_map(lambda out, state, c=c, m=m: out[c, m].copy_(state), trained, states[m])
            progress(1)
        return trained
