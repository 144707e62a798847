"""Local tuning after training: FedAvg+ (Jiang et al. 2019, as in FedEM, Sec. 4) and Finetune (Mansour et al. 2020)."""

from collections.abc import Collection
from typing import TYPE_CHECKING, Literal

from torch import nn

from fedem_lightning.adaptation.base import Adaptation
from fedem_lightning.data.federation import Block
from fedem_lightning.local_solver import ClientOptimizer
from fedem_lightning.models.parts import split_body_head
from fedem_lightning.models.personal_models import OwnModels
from fedem_lightning.settings.ranges import Count

if TYPE_CHECKING:
    from fedem_lightning.algorithms.base import FederatedAlgorithm


class Finetune(Adaptation):
    """E passes of SGD over a client's training samples, from a fresh optimiser.

    After an algorithm with several components each component is tuned with samples weighted as in training (FedEM: by
    the responsibilities); the mixture weights stay.

    Args:
        epochs: E; 0 leaves the models as they are.
        client_optimizer: of the tuning; None: the algorithm's, at the learning rate of its first round.
        part: what is tuned: "all" parameters, the "head", or the "body".
        head: a regular expression found in the names of the head's tensors; None: the last layer that trains.

    """

    released = ()

    def __init__(
        self,
        epochs: Count = 1,
        client_optimizer: ClientOptimizer | None = None,
        part: Literal["all", "head", "body"] = "all",
        head: str | None = None,
    ) -> None:
        super().__init__(epochs, client_optimizer)
        self.part, self.head = part, head

    def check_network(self, network: nn.Module) -> None:
        """Refuses a head that the network does not have."""
        self._tuned(network)

    def _tuned(self, network: nn.Module) -> Collection[str] | None:
        """Names of what is tuned; None: everything."""
        return (
            None if self.part == "all" else getattr(split_body_head(network, self.head, "adaptation.head"), self.part)
        )

    def adapt(self, algorithm: "FederatedAlgorithm", block: Block) -> OwnModels:
        """theta_t <- local_sgd(theta_t)."""
        own = algorithm.personal_models(block.clients)
        only = self._tuned(algorithm.components[0])
        tuned = self.tune(algorithm, own.models, block, own.sample_weights(block), only=only)
        return algorithm.own_models(tuned, own.mixture)
