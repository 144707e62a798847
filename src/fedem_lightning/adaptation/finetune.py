"""Local tuning after training: FedAvg+ (Jiang et al. 2019, as in FedEM, Sec. 4) and Finetune (Mansour et al. 2020)."""

from typing import TYPE_CHECKING

from fedem_lightning.adaptation.base import Adaptation
from fedem_lightning.data.federation import Block
from fedem_lightning.errors import require_whole
from fedem_lightning.local_solver import ClientSGD, LocalStep
from fedem_lightning.personal import Personal

if TYPE_CHECKING:
    from fedem_lightning.algorithms.base import FederatedAlgorithm


class Finetune(Adaptation):
    """E passes of SGD over a client's training samples, all parameters, from a fresh optimiser.

    After an algorithm with several components each is tuned with its samples weighted as in training (FedEM: by the
    responsibilities), and the mixture weights stay.

    Args:
        epochs: E; 0 leaves the models as they are.
        client_optimizer: of the tuning; None: the algorithm's, at its first round's rate.

    """

    def __init__(self, epochs: int = 1, client_optimizer: ClientSGD | None = None) -> None:
        require_whole("adaptation.epochs", epochs, at_least=0)
        self.epochs, self.client_optimizer = epochs, client_optimizer

    def adapt(self, algorithm: "FederatedAlgorithm", block: Block) -> Personal:
        """theta_t <- local_sgd(theta_t); the order of samples is that of a round after the last one."""
        models, rounds = algorithm.serving(block.clients), len(algorithm.statistics.round_seconds)
        optimizer = self.client_optimizer or algorithm.client_optimizer
        step = LocalStep(algorithm.components[0], block.federation.task, optimizer, optimizer.lr)
        weights = algorithm.sample_weights(block)
        tuned = algorithm.local_solver(
            models, block, rounds, weights, step=step, epochs=self.epochs, keep_momentum=False
        )
        return Personal(tuned, algorithm.mixture(block.clients))
