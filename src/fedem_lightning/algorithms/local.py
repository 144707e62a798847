"""Local: every client trains alone. The baseline that any federation has to beat."""

from typing import Any

from torch import Tensor

from fedem_lightning.aggregation import Models
from fedem_lightning.algorithms.base import FederatedAlgorithm
from fedem_lightning.client_store import ClientStore
from fedem_lightning.components import Backbone
from fedem_lightning.data.federation import Block, Federation


class Local(FederatedAlgorithm):
    """theta_t <- local_sgd(theta_t), no server. All clients start from the same model.

    An unseen client trains alone too: as many rounds as the others have had.

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
        """Trains the clients from the common start, round by round."""
        self.models.write(clients, self.broadcast(clients))
        for block in self.blocks(federation, clients):
            for round_ in range(len(self.statistics.round_seconds)):
                self.client_update(block, round_)
