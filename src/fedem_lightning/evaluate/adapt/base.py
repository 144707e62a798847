"""Adaptations, the step between training and scoring: their base class, the selection of a weight, and local tuning."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Annotated, Any

import torch
from annotated_types import MinLen
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from fedem_lightning.aggregate import Models
from fedem_lightning.data.federation import Block, Federation
from fedem_lightning.local.optimizers import AnyClientOptimizer
from fedem_lightning.local.solver import Step
from fedem_lightning.method import Method
from fedem_lightning.models.em import add_by_owner
from fedem_lightning.models.personal_models import OwnModels, PersonalModels, sample_weights
from fedem_lightning.models.tensors import along
from fedem_lightning.settings.ranges import Count, Share
from fedem_lightning.settings.recipes import Recorded


class Adaptation(Recorded, ABC):
    """Adapts each client's models to its training samples. The adapted models are copies: scored, then discarded.

    Args:
        epochs: passes of SGD over the samples; every client starts with a fresh optimiser.
        client_optimizer: optimiser of these passes; None: the algorithm's, at the learning rate of its first round.

    """

    private_ok = False  # whether clients learn nothing of others' data by it
    tunes = True  # whether it trains the models; False: it takes models that clients cannot train, too
    columns: tuple[str, ...] = ()  # names in `OwnModels.columns`, which join the clients' table

    def __init__(self, epochs: Count = 1, client_optimizer: AnyClientOptimizer | None = None) -> None:
        self.epochs, self.client_optimizer = epochs, client_optimizer

    @abstractmethod
    def adapt(self, algorithm: Method, block: Block) -> OwnModels:
        """The adapted models, with which the block's clients are scored; `algorithm` must not change."""

    def check(self, network: nn.Module, federation: Federation) -> None:
        """Refuses what the adaptation is not defined for, before training; default: nothing."""

    def tune(
        self,
        algorithm: Method,
        models: Models,
        block: Block,
        weights: Tensor | None = None,
        step: Step | None = None,
    ) -> Models:
        """The models [C, M, ...] after SGD; samples are shuffled as in the round after the last one.

        The step (None: SGD's) reads the samples' weights [n, M] (None: 1).
        """
        tied = getattr(algorithm, "tied", None)  # components that share parameters
        sgd = algorithm.local.sgd if tied is None else tied.local_sgd
        options: dict[str, Any] = {"step": step, "epochs": self.epochs, "state": None}
        options["optimizer"] = self.client_optimizer or algorithm.local.optimizer
        return sgd(models, block, algorithm.statistics.rounds, weights, **options)


Grid = Annotated[Sequence[Share], MinLen(1)]

GRID = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)


def selection_samples(block: Block) -> Block:
    """The samples by which lambda is selected: validation samples; training samples of a client without any."""
    val = block.federation.block(block.clients, "val")
    rest = val.counts()[block.owner] == 0
    index, owner = torch.cat([val.index, block.index[rest]]), torch.cat([val.owner, block.owner[rest]])
    return Block(block.federation, block.clients, index, owner)


def selection_losses(personal: PersonalModels, block: Block) -> Tensor:
    """The mean loss by which lambda is selected, [C]: the loss of predictions, as in scoring."""
    chosen, task = selection_samples(block), block.federation.task
    sums = personal.mixture.new_zeros(len(block.clients))
    for piece in chosen.pieces() if len(chosen.index) else ():
        losses = task.scores(personal.predict(piece), piece.y())["loss"]
        add_by_owner(sums, piece.owner, losses.to(sums))
    return sums / chosen.counts().clamp(min=1)


class Best:
    """Each client's best candidate so far; of equal candidates the first."""

    def __init__(self) -> None:
        self.losses: Tensor | None = None  # [C]
        self.value: dict[str, Any] = {}

    def offer(self, losses: Tensor, **candidate: Models | Tensor) -> None:
        """Stores the candidate, tensors [C, ...], for the clients whose loss [C] it lowers."""
        if self.losses is None:
            self.losses, self.value = losses, candidate
            return
        lower = (losses < self.losses) | (self.losses.isnan() & ~losses.isnan())  # a diverged one is always replaced
        self.losses = torch.where(lower, losses, self.losses)
        self.value = tree_map(lambda new, old: torch.where(along(lower, new), new, old), candidate, self.value)


class Finetune(Adaptation):
    """E passes of SGD over a client's training samples, from a fresh optimiser.

    It is FedAvg+ (Jiang et al. 2019, as in FedEM, Sec. 4) and Finetune (Mansour et al. 2020). After an algorithm with
    several components each component is tuned with samples weighted as in training (FedEM: by the responsibilities);
    the mixture weights stay. What components share (`shared`) is tuned with all of them at once, and stays one.

    Args: those of `Adaptation`; `epochs`, E, may be 0, which leaves the models as they are.
    """

    private_ok = True

    def adapt(self, algorithm: Method, block: Block) -> OwnModels:
        """theta_t <- local_sgd(theta_t)."""
        own = algorithm.personal_models(block.clients)
        tuned = self.tune(algorithm, own.models, block, sample_weights(own, block))
        return algorithm.own_models(tuned, own.mixture)
