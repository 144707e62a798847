"""Local: every client trains alone. The baseline that any federation has to beat."""

from typing import Any

from torch import Tensor

from fedem_lightning.aggregation import Models
from fedem_lightning.algorithms.base import FederatedAlgorithm
from fedem_lightning.client_store import ClientStore
from fedem_lightning.components import Backbone
from fedem_lightning.data.federation import Block, Federation
from fedem_lightning.round import share_of


class Local(FederatedAlgorithm):
    """theta_t <- local_sgd(theta_t), no server. All clients start from the same model.

    An unseen client trains alone too: as many rounds as a seen one took part in on average, rounded.

    Args:
        backbone, n_clients, options: see `FederatedAlgorithm`.

    """

    uses_server_optimizer = False
    shares_models = False

    def __init__(self, backbone: Backbone, n_clients: int, **options: Any) -> None:
        super().__init__(backbone, n_clients, n_components=1, **options)
        self.models = ClientStore.of_components(n_clients, self.components)  # rows [1, ...]

    @property
    def messages(self) -> tuple[int, int]:
        """Nothing is sent."""
        return 0, 0

    def client_update(self, block: Block, round_: int) -> None:
        """theta_t = local_sgd(theta_t); an update that is not finite is rejected."""
        self.round_metrics.rejected += self.models.write_finite(
            block.clients, self.local_solver(self.serving(block.clients), block, round_)
        )

    def serving(self, clients: Tensor) -> Models:
        """Each client's own model, [C, 1, ...]."""
        return self.models.read(clients)

    def personalize(self, federation: Federation, clients: Tensor) -> None:
        """From the common start; the clients' rounds are spread over the run, and so over the schedule of the rate."""
        done = len(self.statistics.round_seconds)
        taken = self.rounds_of_a_client(federation)
        self.models.write(clients, self.broadcast(clients))
        for block in self.blocks(federation, clients):
            for i in range(taken):
                self.client_update(block, i * done // taken)

    def rounds_of_a_client(self, federation: Federation) -> int:
        """In how many rounds a seen client was drawn and met the deadline: the mean over them, rounded."""
        n_seen, statistics = len(federation.clients()), self.statistics
        drawn = len(statistics.round_seconds) * share_of(self.participation, n_seen)
        return round((drawn - statistics.stragglers) / n_seen)
