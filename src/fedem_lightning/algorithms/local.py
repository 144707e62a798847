"""Local: every client trains alone. It is the baseline of all federated methods."""

from typing import Any

from torch import Tensor

from fedem_lightning.aggregation import all_finite
from fedem_lightning.algorithms.base import FederatedAlgorithm
from fedem_lightning.algorithms.facts import Facts
from fedem_lightning.cohort import share_of
from fedem_lightning.data.federation import Block, Federation
from fedem_lightning.models.client_store import ClientStore
from fedem_lightning.models.components import Backbone
from fedem_lightning.models.personal_models import OwnModels
from fedem_lightning.network import Transmission


class Local(FederatedAlgorithm):
    """theta_t <- local_sgd(theta_t), without a server. All clients start from the same model.

    An unseen client trains alone too, for the mean number of rounds of a seen client, rounded.

    Args:
        backbone, n_clients, options: see `FederatedAlgorithm`.

    """

    facts = Facts(released=(), uses_server_optimizer=False, sends_updates=False)

    def __init__(self, backbone: Backbone, n_clients: int, **options: Any) -> None:
        super().__init__(backbone, n_clients, n_components=1, **options)
        self.models = ClientStore.of_components(n_clients, self.components)  # rows [1, ...]

    def transmission(self, clients: Tensor) -> Transmission:
        """Nothing is sent."""
        return Transmission(down=0, up=0)

    def client_update(self, block: Block, round_: int) -> None:
        """theta_t = local_sgd(theta_t); an update that is not finite is rejected."""
        trained = self.local.solve(self.models.read(block.clients), block, round_)
        self.round_metrics.reject(block.clients[~all_finite(trained)])
        self.models.write_finite(block.clients, trained)

    def unmoved(self, clients: Tensor, n_train: Tensor) -> None:
        """Nothing."""

    def personal_models(self, clients: Tensor) -> OwnModels:
        """Each client predicts with its own model."""
        return self.own_models(self.models.read(clients))

    def personalize_clients(self, federation: Federation, clients: Tensor) -> None:
        """Trains unseen clients from the common start, in rounds spread over the run and its learning-rate schedule."""
        done = self.statistics.rounds
        taken = self.rounds_of_a_client(federation)
        self.models.write(clients, self.broadcast(clients))
        for block in self.local.blocks(federation, clients):
            for i in range(taken):
                self.client_update(block, i * done // taken)

    def rounds_of_a_client(self, federation: Federation) -> int:
        """Rounds in which a seen client was drawn and met the deadline: the mean over the seen clients, rounded."""
        n_seen, statistics = len(federation.clients()), self.statistics
        drawn = statistics.rounds * share_of(self.participation, n_seen)
        return round((drawn - statistics.stragglers) / n_seen)
