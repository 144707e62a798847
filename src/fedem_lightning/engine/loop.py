"""The loop engine runs one learner after the other: it is fast for convolutions on a CPU, and runs any backbone."""

import itertools
from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from fedem_lightning.data.block import Block
from fedem_lightning.engine.base import Batch, Engine, take_step
from fedem_lightning.local_solver import Batches, Learner, LocalStep
from fedem_lightning.models.components import channels_last
from fedem_lightning.randomness import fold, global_streams


class LoopEngine(Engine):
    """Runs learners one by one, each trained in place. Short batches are not padded.

    A network may draw from the global generators of torch, NumPy and Python: each client's training seeds them by the
    seed, the round and the client.

    Blocks are small by default (64 MB), so that a client's models are still in cache when they are aggregated.
    """

    name = "loop"
    default_gb = 0.064
    copies = 2

    def run(
        self,
        step: LocalStep,
        learners: Learner,
        block: Block,
        batches: Batches,
        weights: Tensor | None = None,
        progress: Callable[[float], None] = lambda clients: None,
    ) -> Learner:
        """Runs the learners one by one; see `Engine.run`."""
        trained = tree_map(_own_copy, learners)
        anyone = next(iter(trained["params"].values()))  # [C, M, ...]
        n_components, device = anyone.shape[1], anyone.device
        start, keys = 0, batches.keys.tolist()
        with global_streams(device) as seed:
            for c, count in enumerate(batches.counts.tolist()):
                seed(keys[c])  # so that a network's own draws do not depend on the clients before
                models = [tree_map(lambda t, c=c, m=m: t[c, m], trained) for m in range(n_components)]  # views
                passes = (order[start : start + count].split(batches.size) for order in batches.order if count)
                steps = itertools.islice(itertools.chain.from_iterable(passes), batches.limit)
                n_steps = min(batches.limit, len(batches.order) * -(-count // batches.size))
                for s, rows in enumerate(steps):
                    x, y = block.batch(rows, fold(batches.keys[c], s), anyone.dtype)  # [B, ...]
                    size = torch.tensor(len(rows), dtype=anyone.dtype, device=device)
                    for m, model in enumerate(models):
                        weight = torch.ones_like(rows, dtype=anyone.dtype) if weights is None else weights[rows, m]
                        batch = Batch(x, y, weight, size, fold(batches.keys[c], s, m))
                        take_step(step, step.objective, model, batch)
                    progress(1 / n_steps)
                start += count
                if not n_steps:
                    progress(1)
        return trained


def _own_copy(t: Tensor) -> Tensor:
    """A copy to train in place; convolution weights [C, M, out, in, height, width] are in the faster memory order."""
    convolution = t.ndim == 6 and t.device.type == "cpu"
    return channels_last(t) if convolution else t.clone(memory_format=torch.contiguous_format)
