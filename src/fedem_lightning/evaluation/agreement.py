"""How often two components predict the same class."""

from typing import TYPE_CHECKING

import torch

from fedem_lightning.aggregation import Models
from fedem_lightning.data.federation import Block, Federation
from fedem_lightning.evaluation.scores import scored_clients
from fedem_lightning.models.call import call_with
from fedem_lightning.randomness import keyed_streams

if TYPE_CHECKING:
    from fedem_lightning.algorithms.base import FederatedAlgorithm

MOST_SAMPLES = 10_000
"""Of more test samples than this, as many are looked at, at even distances."""


@torch.no_grad()
def agreement(
    algorithm: "FederatedAlgorithm", federation: Federation, components: Models
) -> dict[str, list[list[float]]]:
    """The share of the test samples of the scored seen clients for which two components predict the same class.

    Args:
        algorithm: whose backbone the components are models of.
        federation: the data, on any device.
        components: parameters and buffers of the M components, [M, ...].

    Returns:
        agreement: the shares, [M, M], of a sequence those of its targets. Empty for a task without classes, and without
        test samples.

    """
    task = federation.task
    if "accuracy" not in task.measures:
        return {}
    federation = federation.to(algorithm.device)
    block = federation.block(scored_clients(algorithm, federation), "test")
    if not len(block.index):
        return {}
    n = len(block.index)
    part = torch.linspace(0, n - 1, min(n, MOST_SAMPLES), dtype=torch.float64).round().long().to(block.index.device)
    block = Block(federation, block.clients, block.index[part], block.owner[part])
    backbone = algorithm.components[0].eval()
    n_models = len(next(iter(components.values())))
    models = [{name: rows[m].to(algorithm.device) for name, rows in components.items()} for m in range(n_models)]
    same, n_targets = torch.zeros(n_models, n_models, dtype=torch.int64), 0
    with keyed_streams(algorithm.device, algorithm.seed, algorithm.statistics.rounds):
        for piece in block.pieces():
            x = piece.x(algorithm.parameter_dtype)
            outputs = [call_with(backbone, model, x) for model in models]
            classes = torch.stack([task.predict(output).argmax(dim=-1).flatten() for output in outputs])  # [M, targets]
            same += (classes.unsqueeze(1) == classes).sum(dim=2).cpu()
            n_targets += classes.shape[1]
    return {"agreement": (same.double() / n_targets).tolist()}
