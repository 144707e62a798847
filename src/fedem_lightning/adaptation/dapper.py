"""Dapper: data interpolation, a client's own samples mixed with samples of the central distribution.

Mansour, Mohri, Ro, Suresh: "Three Approaches for Personalization with Applications to Federated Learning", 2020, arXiv
2002.10619. Section 5, Figure 3.
"""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedem_lightning.adaptation.base import GRID, Adaptation, Best, Grid, SelectionSamples, selection_losses
from fedem_lightning.client_optimizers import AnyClientOptimizer
from fedem_lightning.data.block import Block
from fedem_lightning.data.splits import Split
from fedem_lightning.models.personal_models import OwnModels
from fedem_lightning.randomness import Purpose, fold
from fedem_lightning.settings.ranges import Count, Positive

if TYPE_CHECKING:
    from fedem_lightning.algorithms.base import FederatedAlgorithm


class Dapper(Adaptation):
    """Minimises lambda L_k + (1 - lambda) L_C (Eq. 5), starting at the central model, for each lambda of a grid.

    C are the training samples of the clients that train; after HypCluster and Clustered, of those in the client's
    cluster. A client draws r n_k of them once. For each lambda it makes a pass over r n_k samples: each is one of its
    own with probability lambda (drawn with replacement), else the next sample of C. The client predicts with the model
    of the best lambda; "lambda" is a column of the clients' table.

    Args:
        ratio: r; each client receives r n_k samples of C.
        lambdas: the grid, in [0, 1]; 1 alone is Finetune on resampled data, 0 alone never uses a client's own samples.
        selection: "val": lambda has the lowest loss on validation samples; "train": on training samples (Fig. 3 as
            printed, which favours 1).
        epochs: passes over the drawn samples; the paper's is 1.
        client_optimizer: None: the algorithm's, at the learning rate of its first round.

    """

    columns = ("lambda",)
    released = ("other clients' training samples",)

    def __init__(
        self,
        ratio: Positive = 5.0,
        lambdas: Grid = GRID,
        selection: SelectionSamples = "val",
        epochs: Count = 1,
        client_optimizer: AnyClientOptimizer | None = None,
    ) -> None:
        super().__init__(epochs, client_optimizer)
        self.ratio, self.selection, self.lambdas = ratio, selection, tuple(sorted(float(value) for value in lambdas))

    def adapt(self, algorithm: "FederatedAlgorithm", block: Block) -> OwnModels:
        """h_lambda for each lambda, then the best of them."""
        best, central = Best(), algorithm.personal_models(block.clients)
        h_c, samples = central.models, self._central_samples(algorithm, block)
        for value in self.lambdas:
            interpolated = self._interpolated(algorithm.seed, block, samples, value)
            h = self.tune(algorithm, h_c, interpolated, central.sample_weights(interpolated))
            tuned = algorithm.own_models(h, central.mixture)
            losses = selection_losses(tuned, block, self.selection)
            best.offer(losses, models=h, share=torch.full_like(losses, value, dtype=torch.float64))
        models, share = best.value["models"], best.value["share"]
        tuned = algorithm.own_models(models, central.mixture)  # type: ignore[arg-type]
        return tuned._replace(columns={"lambda": share})  # type: ignore[dict-item]

    def _interpolated(self, seed: int, block: Block, central: Block, value: float) -> Block:
        """Replaces samples of `central`, each with probability `value`, by the client's own; lambdas share draws."""
        rank, counts = central.ranks(), block.counts()
        keys = fold(seed, Purpose.DAPPER, block.keys)[central.owner]  # [r n]
        own = fold(keys, 0, rank) < value * 2**32  # bool [r n]
        first = (counts.cumsum(0) - counts)[central.owner]
        place = first + fold(keys, 1, rank) % counts[central.owner]
        chosen = block.index[place]
        return Block(central.federation, block.clients, torch.where(own, chosen, central.index), central.owner)

    def _central_samples(self, algorithm: "FederatedAlgorithm", block: Block) -> Block:
        """The samples C': round(r n_k) for each client k, r n in all."""
        sizes = (self.ratio * block.counts()).round().long()  # [C]
        owner = torch.repeat_interleave(torch.arange(len(sizes), device=sizes.device), sizes)
        empty = Block(block.federation, block.clients, owner, owner)
        draws = fold(fold(algorithm.seed, Purpose.DAPPER, block.keys)[owner], 2, empty.ranks())  # in [0, 2^32)
        return Block(block.federation, block.clients, _pooled(algorithm, block, owner, draws), owner)


def _pooled(algorithm: "FederatedAlgorithm", block: Block, owner: Tensor, draws: Tensor) -> Tensor:
    """Positions of training samples of the clients that train, in the owner's group: int64 [r n]."""
    federation, found = block.federation, torch.zeros_like(owner)
    trained, groups = federation.clients(), algorithm.states.groups_of(block.clients)
    for group in groups.unique():
        members = trained[algorithm.states.groups_of(trained) == group]
        mine = groups[owner] == group
        found[mine] = _nth_samples(federation.splits["train"], members if len(members) else trained, draws[mine])
    return found


def _nth_samples(split: Split, clients: Tensor, draws: Tensor) -> Tensor:
    """Positions of the clients' samples number `draws` (modulo the number of samples), int64."""
    ends = split.counts(clients).cumsum(0)  # [C]
    number = draws % ends[-1]
    which = torch.searchsorted(ends, number, right=True)
    drawn, where = which.unique(return_inverse=True)  # only these clients' samples are looked up
    index, counts = split.positions(clients[drawn])[0], split.counts(clients[drawn])
    first = counts.cumsum(0) - counts
    return index[first[where] + number - (ends[drawn] - counts)[where]]
