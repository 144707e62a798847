"""Normalisation layers: the names of their tensors, and their statistics for single clients."""

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from fedem_lightning.aggregation import Models
from fedem_lightning.data.federation import Block
from fedem_lightning.models.call import call_with
from fedem_lightning.models.components import model_state

LAYERS = (_NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)  # _NormBase: BatchNorm and InstanceNorm


def normalization_tensors(network: nn.Module) -> set[str]:
    """Names of the trained parameters and of the buffers of all normalisation layers, by the layers' types."""
    layers = [name for name, layer in network.named_modules() if isinstance(layer, LAYERS)]
    return {name for name in model_state(network) if name.rpartition(".")[0] in layers}


@torch.no_grad()
def with_own_statistics(network: nn.Module, models: Models, block: Block, batch_size: int) -> Models:
    """The models with the running statistics of each client's own inputs: the means over its batches.

    Args:
        network: whose tensors the models replace.
        models: [C, 1, ...].
        block: C clients and their n samples; a client without samples keeps the statistics.
        batch_size: of the batches, in the samples' order.

    """
    layers = [layer for layer in network.modules() if isinstance(layer, _NormBase) and layer.track_running_stats]
    models = {name: rows.clone() for name, rows in models.items()}
    momenta = [layer.momentum for layer in layers]
    x, owner = block.x(next(network.parameters()).dtype), block.owner
    was_training = network.training
    network.train()
    try:
        for layer in layers:
            layer.momentum = None  # the mean over all batches since the counter was 0
        for c in owner.unique().tolist():
            state = {name: rows[c, 0] for name, rows in models.items()}  # views, which the forward changes
            for name, counter in state.items():
                if name.endswith("num_batches_tracked"):
                    counter.zero_()
            for batch in x[owner == c].split(batch_size):
                call_with(network, state, batch)
    finally:
        network.train(was_training)
        for layer, momentum in zip(layers, momenta, strict=True):
            layer.momentum = momentum
    return models
