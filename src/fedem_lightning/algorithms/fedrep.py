"""FedRep: clients share a representation; each has a head of its own, trained before the body.

Collins, Hassani, Mokhtari, Shakkottai: "Exploiting Shared Representations for Personalized Federated Learning", ICML
2021, arXiv 2102.07078. Algorithm 1.
"""

from typing import Any

from torch import Tensor

from fedem_lightning.aggregation import Sent
from fedem_lightning.algorithms.partial_averaging import PartialAveraging
from fedem_lightning.data.federation import Block, Federation
from fedem_lightning.models.components import Backbone
from fedem_lightning.models.parts import split_body_head
from fedem_lightning.settings.ranges import Count


class FedRep(PartialAveraging):
    """tau_h epochs on h_t with the received phi fixed, then phi with h_t fixed; the server averages phi.

    An unseen client takes tau_h epochs on the initial head.

    Args:
        backbone, n_clients, options: see `FederatedAlgorithm`; `local_epochs` or `local_steps` are those of phi.
        head: a regular expression found in the names of the head's tensors; None: the last layer.
        head_epochs: tau_h.

    """

    def __init__(
        self, backbone: Backbone, n_clients: int, head: str | None = None, head_epochs: Count = 1, **options: Any
    ) -> None:
        super().__init__(backbone, n_clients, n_components=1, **options)
        self.keep(split_body_head(self.components[0], head).head, head_epochs)
        self.head_epochs = head_epochs

    def client_update(self, block: Block, round_: int) -> Sent:
        """Alg. 1: first the head, then the body."""
        models = self.models_of(block.clients)  # [C, 1, ...]
        models = self.local.solve(models, block, round_, only=self.private, epochs=self.head_epochs, quiet=True)
        return self.kept_and_sent(block, self.local.solve(models, block, round_, only=self.shared))

    def local_work(self, federation: Federation, clients: Tensor, round_: int) -> Tensor:
        """Gradients of the body's steps and of tau_h epochs of the head's."""
        counts = federation.splits["train"].counts(clients)
        return super().local_work(federation, clients, round_) + self.head_epochs * counts
