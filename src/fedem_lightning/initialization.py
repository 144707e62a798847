"""Starting points for components, made from clients' data."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedem_lightning.aggregation import Models
from fedem_lightning.data.federation import Federation
from fedem_lightning.personal import Personal
from fedem_lightning.randomness import Purpose, generator
from fedem_lightning.round import draw_clients

if TYPE_CHECKING:
    from fedem_lightning.algorithms.base import FederatedAlgorithm


def farthest_models(algorithm: "FederatedAlgorithm", federation: Federation, n_candidates: int, epochs: int) -> Models:
    """M models trained on single clients, each on one that the models before it serve worst.

    The rule of farthest-first traversal (Gonzalez 1985), with a client's lowest loss among the chosen models as its
    distance. Candidates all start from component 0; the first is drawn at random.

    Args:
        algorithm: its local solver trains them.
        federation: its seen clients are drawn from.
        n_candidates: clients drawn, M at least.
        epochs: passes of each over its samples.

    Returns:
        Models [M, ...].

    """
    rng = generator(algorithm.seed, Purpose.INITIAL)
    clients, n_models = federation.clients(), len(algorithm.components)
    candidates = draw_clients(clients, max(n_candidates, n_models), rng)
    block = federation.block(candidates, "train")
    start = {name: tensor[:, :1] for name, tensor in algorithm.broadcast(candidates).items()}  # [P, 1, ...]
    trained = algorithm.local_solver(start, block, 0, epochs=epochs, keep_momentum=False)
    chosen = [int(rng.integers(len(candidates)))]
    lowest = _mean_losses(algorithm, federation, candidates, trained, chosen[0])  # [P]
    while len(chosen) < n_models:
        chosen.append(int(lowest.argmax()) if len(chosen) < len(candidates) else chosen[-1])
        lowest = torch.minimum(lowest, _mean_losses(algorithm, federation, candidates, trained, chosen[-1]))
    return {name: tensor[chosen, 0] for name, tensor in trained.items()}


def _mean_losses(
    algorithm: "FederatedAlgorithm", federation: Federation, candidates: Tensor, trained: Models, which: int
) -> Tensor:
    """Mean training loss of every candidate's samples under the model of candidate `which`, [P]."""
    block = federation.block(candidates, "train")
    shared = {name: t[which].expand(len(candidates), *t.shape[1:]) for name, t in trained.items()}
    one = torch.ones(len(candidates), 1, device=candidates.device)
    losses = Personal(shared, one).losses(algorithm.components[0], block)[:, 0]  # [n]
    sums = losses.new_zeros(len(candidates)).index_add_(0, block.owner, losses)
    return sums / block.counts()
