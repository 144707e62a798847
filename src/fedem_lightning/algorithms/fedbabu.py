"""FedBABU: the head never moves while clients train the body together; each client then tunes the whole model.

Oh, Kim, Yun: "FedBABU: Toward Enhanced Representation for Federated Image Classification", ICLR 2022, arXiv 2106.06042.
Algorithm 1.
"""

from typing import Any

from torch import Tensor

from fedem_lightning.adaptation import Adaptation, Finetune
from fedem_lightning.aggregation import Sent
from fedem_lightning.algorithms.base import FederatedAlgorithm
from fedem_lightning.algorithms.facts import Facts
from fedem_lightning.data.block import Block
from fedem_lightning.models.components import Backbone
from fedem_lightning.models.parts import share_of_bytes, split_body_head
from fedem_lightning.network import Transmission


class FedBABU(FederatedAlgorithm):
    """The server averages the body phi; all clients have the same random head h, which training does not change.

    Args:
        backbone, n_clients, options: see `FederatedAlgorithm`.
        head: a regular expression found in the names of the head's tensors; None: the last layer.
        adaptation: the tuning before every scoring; None: `Finetune()`, tau_f = 1 epoch of body and head.

    """

    facts = Facts(released=())

    def __init__(
        self,
        backbone: Backbone,
        n_clients: int,
        head: str | None = None,
        adaptation: Adaptation | None = None,
        **options: Any,
    ) -> None:
        tuning = Finetune() if adaptation is None else adaptation
        super().__init__(backbone, n_clients, n_components=1, adaptation=tuning, **options)
        self.body = split_body_head(self.components[0], head).body
        self.sent_share = share_of_bytes(self.components[0], self.body)

    def client_update(self, block: Block, round_: int) -> Sent:
        """Local steps of phi; h is fixed."""
        models = self.local.solve(self.broadcast(block.clients), block, round_, only=self.body)
        return Sent({name: models[name] for name in self.body}, block.counts())

    def unmoved(self, clients: Tensor, n_train: Tensor) -> Sent:
        """The body."""
        models = self.broadcast(clients)
        return Sent({name: models[name] for name in self.body}, n_train.clamp(min=1))

    def transmission(self, clients: Tensor) -> Transmission:
        """The body each way; everybody has the head from the start."""
        return Transmission(down=self.sent_share, up=self.sent_share)
