"""Methods of `FederatedAlgorithm`: what models say about samples."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from fedem_lightning.aggregation import Models
from fedem_lightning.components import model_state
from fedem_lightning.data.federation import Block
from fedem_lightning.personal import Personal

if TYPE_CHECKING:
    from fedem_lightning.algorithms.base import FederatedAlgorithm


def predict(algorithm: "FederatedAlgorithm", block: Block) -> Tensor:
    """The clients' personal predictions, Eq. 5: sum_m pi[t, m] h_m(x), as `Task.predict` gives them, [n, ...].

    A mixture of probabilities (or of means): neither of logits nor of parameters.
    """
    if not algorithm.shares_models:
        personal = Personal(algorithm.serving(block.clients), algorithm.mixture(block.clients))
        return personal.predict(algorithm.components[0], block)
    task, served = block.federation.task, algorithm.served_components
    predictions = [task.predict(outputs) for outputs in algorithm.outputs(block, served)]  # M x [n, ...]
    if len(predictions) == 1:
        return predictions[0]
    return task.mix(torch.stack(predictions), algorithm.mixture(block.clients)[block.owner])


@torch.no_grad()
def outputs(algorithm: "FederatedAlgorithm", block: Block, components: nn.ModuleList | None = None) -> list[Tensor]:
    """Every component's outputs for the block's samples, in eval mode: M x [n, n_outputs]."""
    components = (algorithm.components if components is None else components).eval()
    x = block.x(algorithm.parameter_dtype)
    return [component(x) for component in components]


def losses(algorithm: "FederatedAlgorithm", block: Block) -> Tensor:
    """l(h_m(x_i), y_i) of every component in nats, in eval mode: [n, M]. Shared components need no stacking."""
    return losses_of(algorithm, algorithm.components, block)


def losses_of(algorithm: "FederatedAlgorithm", components: nn.ModuleList, block: Block) -> Tensor:
    """As `losses`, of some components."""
    task = block.federation.task
    pieces = []
    for piece in block.pieces():
        y = piece.y()
        outputs = algorithm.outputs(piece, components)
        pieces.append(torch.stack([task.losses(output, y) for output in outputs]))  # [M, piece]
    return torch.cat(pieces, dim=1).T


def mean_losses(algorithm: "FederatedAlgorithm", block: Block) -> Tensor:
    """The mean loss of each client's samples under every component, in eval mode, [C, M]; 0 without samples."""
    return client_means(algorithm.losses(block).to(algorithm.parameter_dtype), block)


def client_means(values: Tensor, block: Block) -> Tensor:
    """The mean over each client's samples, [n, M] -> [C, M]; 0 without samples."""
    sums = values.new_zeros(len(block.clients), values.shape[1])
    return sums.index_add_(0, block.owner, values) / block.counts().clamp(min=1).unsqueeze(1)


def broadcast(algorithm: "FederatedAlgorithm", clients: Tensor, components: nn.ModuleList | None = None) -> Models:
    """The shared components as each of the clients [C] receives them: views [C, M, ...]."""
    states = [model_state(component) for component in (algorithm.components if components is None else components)]
    stacked = {name: torch.stack([state[name] for state in states]) for name in states[0]}  # [M, ...]
    return {name: tensor.expand(len(clients), *tensor.shape) for name, tensor in stacked.items()}
