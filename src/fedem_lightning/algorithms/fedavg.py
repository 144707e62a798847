"""FedAvg: local SGD, weighted average; and an ensemble of several.

McMahan, Moore, Ramage, Hampson, Aguera y Arcas: "Communication-Efficient Learning of Deep Networks from Decentralized
Data", AISTATS 2017, arXiv 1602.05629.
"""

from typing import Any

from fedem_lightning.aggregation import Sent
from fedem_lightning.algorithms.base import FederatedAlgorithm
from fedem_lightning.algorithms.facts import Facts
from fedem_lightning.data.federation import Block
from fedem_lightning.models.components import Backbone
from fedem_lightning.settings.ranges import PositiveInt


class FedAvg(FederatedAlgorithm):
    """One global model: theta <- sum_t (n_t / n) theta_t over the cohort. Unseen clients predict with it unchanged.

    Args:
        backbone, n_clients, options: see `FederatedAlgorithm`.

    """

    facts = Facts(released=())

    def __init__(self, backbone: Backbone, n_clients: int, **options: Any) -> None:
        super().__init__(backbone, n_clients, n_components=1, **options)

    def client_update(self, block: Block, round_: int) -> Sent:
        """theta_t = local_sgd(theta), with weight n_t in the average."""
        return Sent(self.local.solve(self.broadcast(block.clients), block, round_), block.counts())


class FedAvgEnsemble(FederatedAlgorithm):
    """M FedAvgs from different random networks, on the same cohorts and batches; clients predict with their mean.

    It mixes probabilities with equal weights. So it is the control for mixtures: it costs what FedEM costs, without
    responsibilities and without personal weights. With M = 1 it is FedAvg.

    Args:
        backbone, n_clients, options: see `FederatedAlgorithm`.
        n_components: M.

    """

    facts = Facts(released=())

    def __init__(self, backbone: Backbone, n_clients: int, n_components: PositiveInt = 3, **options: Any) -> None:
        super().__init__(backbone, n_clients, n_components, **options)

    def client_update(self, block: Block, round_: int) -> Sent:
        """theta_{t, m} = local_sgd(theta_m) for every m, with weight n_t in the average."""
        received = self.broadcast(block.clients)  # [C, M, ...]
        return Sent(self.local.solve(received, block, round_), weights=block.counts())
