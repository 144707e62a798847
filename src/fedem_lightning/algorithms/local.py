"""Local: every client trains alone. The baseline that any federation has to beat."""

from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call

from fedem_lightning.aggregation import Models, all_finite
from fedem_lightning.algorithms.base import FederatedAlgorithm
from fedem_lightning.client_store import ClientStore
from fedem_lightning.components import Backbone, model_state
from fedem_lightning.data.federation import Block, Federation


class Local(FederatedAlgorithm):
    """theta_t <- local_sgd(theta_t), no server. All clients start from the same model.

    An unseen client trains alone too: as many rounds as the others have had.

    Args:
        backbone, n_clients, options: see `FederatedAlgorithm`.

    """

    def __init__(self, backbone: Backbone, n_clients: int, **options: Any) -> None:
        super().__init__(backbone, n_clients, n_components=1, **options)
        self.models = ClientStore(n_clients, model_state(self.components[0]))  # rows [...]

    @property
    def messages(self) -> tuple[int, int]:
        """Nothing is sent."""
        return 0, 0

    def client_update(self, block: Block, round_: int) -> None:
        """theta_t = local_sgd(theta_t); an update that is not finite is rejected."""
        start = {name: rows.unsqueeze(1) for name, rows in self.models.read(block.clients).items()}  # [C, 1, ...]
        trained = {name: rows.squeeze(1) for name, rows in self.local_solver(start, block, round_).items()}
        finite = all_finite(trained)  # [C]
        self.round_metrics.rejected += int((~finite).sum())
        self.models.write(block.clients[finite], {name: rows[finite] for name, rows in trained.items()})

    def predict(self, block: Block) -> Tensor:
        """Each client's own model on its samples, [n, ...]."""
        backbone, task = self.components[0].eval(), block.federation.task
        x, parts = block.x(self.parameter_dtype), []
        counts = block.counts()
        for client, samples in zip(block.clients, x.split(counts.tolist()), strict=True):
            if len(samples):
                parts.append(task.predict(functional_call(backbone, self.models.read(client), (samples,))))
        return torch.cat(parts)

    def personalize(self, federation: Federation, clients: Tensor) -> None:
        """Trains the clients from the common start, round by round."""
        start: Models = model_state(self.components[0])
        self.models.write(clients, {name: t.expand(len(clients), *t.shape) for name, t in start.items()})
        for round_ in range(len(self.statistics.round_seconds)):
            self.client_update(federation.block(clients, "train"), round_)
