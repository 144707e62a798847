"""FedAvg: local SGD, weighted average.

McMahan, Moore, Ramage, Hampson, Aguera y Arcas: "Communication-Efficient Learning of Deep Networks from Decentralized
Data", AISTATS 2017, arXiv 1602.05629.
"""

from typing import Any

from fedem_lightning.aggregation import Sent
from fedem_lightning.algorithms.base import FederatedAlgorithm
from fedem_lightning.data.federation import Block
from fedem_lightning.models.components import Backbone


class FedAvg(FederatedAlgorithm):
    """One global model: theta <- sum_t (n_t / n) theta_t over the cohort. Unseen clients predict with it unchanged.

    Args:
        backbone, n_clients, options: see `FederatedAlgorithm`.

    """

    def __init__(self, backbone: Backbone, n_clients: int, **options: Any) -> None:
        super().__init__(backbone, n_clients, n_components=1, **options)

    def client_update(self, block: Block, round_: int) -> Sent:
        """theta_t = local_sgd(theta), with weight n_t in the average."""
        return Sent(self.local_solver(self.broadcast(block.clients), block, round_), block.counts())
