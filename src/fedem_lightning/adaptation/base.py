"""The seam between training and scoring."""

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from torch import Tensor

from fedem_lightning.aggregation import Models
from fedem_lightning.data.federation import Block, Federation
from fedem_lightning.errors import require_whole
from fedem_lightning.local_solver import ClientSGD, LocalStep
from fedem_lightning.personal import Personal

if TYPE_CHECKING:
    from fedem_lightning.algorithms.base import FederatedAlgorithm


class Adaptation(ABC):
    """Makes a client's models its own, from its training samples. Copies are scored and thrown away.

    Args:
        epochs: passes of SGD over the samples, each client from a fresh optimiser.
        client_optimizer: of these passes; None: the algorithm's, at its first round's rate.

    """

    columns: tuple[str, ...] = ()  # of `Personal.columns`, for the clients' table

    def __init__(self, epochs: int, client_optimizer: ClientSGD | None) -> None:
        require_whole("adaptation.epochs", epochs, at_least=0)
        self.epochs, self.client_optimizer = epochs, client_optimizer

    @abstractmethod
    def adapt(self, algorithm: "FederatedAlgorithm", block: Block) -> Personal:
        """The models that the block's clients are scored with; nothing of `algorithm` may change."""

    def check_federation(self, federation: Federation) -> None:  # noqa: B027 - most have nothing to check
        """Raises UserError where the adaptation is not defined for this federation."""

    def tune(
        self,
        algorithm: "FederatedAlgorithm",
        models: Models,
        block: Block,
        weights: Tensor | None = None,
        kind: type[LocalStep] = LocalStep,
    ) -> Models:
        """The models [C, M, ...] after SGD; the order of samples is that of a round after the last one.

        Args:
            weights: of the samples, as `kind` of step takes them, [n, M]; None: 1.

        """
        optimizer, rounds = self.client_optimizer or algorithm.client_optimizer, len(algorithm.statistics.round_seconds)
        step = kind(algorithm.components[0], block.federation.task, optimizer, optimizer.lr)
        return algorithm.local_solver(
            models, block, rounds, weights, step=step, epochs=self.epochs, keep_momentum=False, quiet=True
        )
