"""Base class of adaptations, the step between training and scoring."""

from abc import ABC, abstractmethod
from collections.abc import Collection
from typing import TYPE_CHECKING

from torch import Tensor, nn

from fedem_lightning.aggregation import Models
from fedem_lightning.data.federation import Block, Federation
from fedem_lightning.local_solver import ClientOptimizer, LocalStep
from fedem_lightning.models.personal_models import OwnModels
from fedem_lightning.records.recipes import Recorded
from fedem_lightning.settings.ranges import Count

if TYPE_CHECKING:
    from fedem_lightning.algorithms.base import FederatedAlgorithm


class Adaptation(Recorded, ABC):
    """Adapts each client's models to its training samples. The adapted models are copies: scored, then discarded.

    Args:
        epochs: passes of SGD over the samples; every client starts with a fresh optimiser.
        client_optimizer: optimiser of these passes; None: the algorithm's, at the learning rate of its first round.

    """

    released: tuple[str, ...] | None = None  # what clients learn of others' data by it; None: it does not say
    tunes = True  # whether it trains the models; False: it takes models that clients cannot train, too
    columns: tuple[str, ...] = ()  # names in `OwnModels.columns`, which join the clients' table

    def __init__(self, epochs: Count, client_optimizer: ClientOptimizer | None) -> None:
        self.epochs, self.client_optimizer = epochs, client_optimizer

    @abstractmethod
    def adapt(self, algorithm: "FederatedAlgorithm", block: Block) -> OwnModels:
        """The adapted models, with which the block's clients are scored; `algorithm` must not change."""

    def prepare(self, federation: Federation) -> None:
        """Reads what the adaptation needs to know from the federation, before any client is scored.

        Raises:
            UserError: the adaptation is not defined for this federation.

        """

    def check_network(self, network: nn.Module) -> None:
        """Refuses a network for which the adaptation is not defined, before training; default: none."""

    def tune(
        self,
        algorithm: "FederatedAlgorithm",
        models: Models,
        block: Block,
        weights: Tensor | None = None,
        kind: type[LocalStep] = LocalStep,
        only: Collection[str] | None = None,
    ) -> Models:
        """The models [C, M, ...] after SGD; samples are shuffled as in the round after the last one.

        Args:
            algorithm: its local solver trains the models.
            models: where each client starts, [C, M, ...].
            block: the clients and their training samples.
            weights: of the samples, [n, M], as a step of class `kind` reads them; None: 1.
            kind: class of the local step.
            only: names of the parameters that train; None: all.

        """
        optimizer, rounds = self.client_optimizer or algorithm.local.optimizer, algorithm.statistics.rounds
        step = kind(algorithm.components[0], kind.loss_of(block.federation.task), optimizer, optimizer.lr)
        return algorithm.local.solve(
            models, block, rounds, weights, step=step, epochs=self.epochs, only=only, momentum=None, quiet=True
        )
