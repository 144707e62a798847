"""The seam between training and scoring."""

from abc import ABC, abstractmethod

from torch import Tensor

from fedem_lightning.aggregation import Models
from fedem_lightning.data.federation import Block, Federation
from fedem_lightning.errors import require_whole
from fedem_lightning.local_solver import ClientSGD, LocalStep
from fedem_lightning.models.personal_models import OwnModels
from fedem_lightning.protocol import Algorithm


class Adaptation(ABC):
    """Makes a client's models its own, from its training samples. Copies are scored and thrown away.

    Args:
        epochs: passes of SGD over the samples, each client from a fresh optimiser.
        client_optimizer: of these passes; None: the algorithm's, at its first round's rate.

    """

    columns: tuple[str, ...] = ()  # of `OwnModels.columns`, for the clients' table

    def __init__(self, epochs: int, client_optimizer: ClientSGD | None) -> None:
        require_whole("adaptation.epochs", epochs, at_least=0)
        self.epochs, self.client_optimizer = epochs, client_optimizer

    @abstractmethod
    def adapt(self, algorithm: Algorithm, block: Block) -> OwnModels:
        """The models that the block's clients are scored with; nothing of `algorithm` may change."""

    def prepare(self, federation: Federation) -> None:  # noqa: B027 - most need nothing
        """Takes what the adaptation needs to know from the federation, before any score.

        Raises:
            UserError: it is not defined for this federation.

        """

    def tune(
        self,
        algorithm: Algorithm,
        models: Models,
        block: Block,
        weights: Tensor | None = None,
        kind: type[LocalStep] = LocalStep,
    ) -> Models:
        """The models [C, M, ...] after SGD; the order of samples is that of a round after the last one.

        Args:
            weights: of the samples, as `kind` of step takes them, [n, M]; None: 1.

        """
        optimizer, rounds = self.client_optimizer or algorithm.client_optimizer, algorithm.statistics.rounds
        step = kind(algorithm.components[0], block.federation.task, optimizer, optimizer.lr)
        return algorithm.local_solver(
            models, block, rounds, weights, step=step, epochs=self.epochs, keep_momentum=False, quiet=True
        )
