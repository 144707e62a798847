"""Oracle: FedAvg within each true group of clients, an upper bound for methods that have to find the groups.

Mestoukirdi et al.: "User-Centric Federated Learning", 2021, arXiv 2110.09869, Section IV.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedem_lightning.aggregation import Means, Update
from fedem_lightning.data.block import Block
from fedem_lightning.data.federation import Federation
from fedem_lightning.errors import require
from fedem_lightning.history import Round
from fedem_lightning.models.client_store import ClientStore
from fedem_lightning.models.components import Backbone, stacked_state
from fedem_lightning.models.personal_models import OwnModels
from fedem_lightning.module import FederatedAlgorithm


class Oracle(FederatedAlgorithm):
    """theta_g <- sum of (n_t / n_g) theta_t over the clients t of group g; unseen clients have a true group too."""

    one_process = True
    group: Tensor  # the true group of each client, int64 [T]; [0] before the first round

    def __init__(self, backbone: Backbone, n_clients: int, **options: Any) -> None:
        super().__init__(backbone, n_clients, n_components=1, **options)
        self.register_buffer("group", torch.zeros(0, dtype=torch.int64))
        self.models = ClientStore(n_clients, stacked_state(self.components), "server", of_clients=False)  # theta_g

    def prepare(self, data: Federation) -> None:
        """Reads the true groups."""
        known = "group" in data.truth
        require(known, "algorithm: Oracle needs data whose true groups are known (dataset.shift, dataset.one_hot)")
        self.group = torch.from_numpy(np.asarray(data.truth["group"], dtype=np.int64)).to(self.device)

    def client_update(self, batch: Block, round_: int) -> Update:
        """theta_t = local_sgd(theta_g)."""
        group = self.group[batch.clients]
        theta = self.models[group]  # [C, 1, ...]
        models, n_groups = self.local_sgd(theta, batch, round_), int(self.group.max()) + 1
        return Update(models, batch.counts(), start=theta, group=group, n_groups=n_groups, stream=group)

    def server_update(self, means: Means | None, round_: Round) -> None:
        """Each group's model becomes the mean of its clients' updates; a group without updates keeps its model."""
        if means is not None:
            nonempty = torch.nonzero(means.nonempty).squeeze(1)
            self.models[nonempty] = {name: rows[nonempty, None] for name, rows in means.models.items()}

    def personal_models(self, clients: Tensor) -> OwnModels:
        """Each client predicts with its group's model."""
        return self.own_models(self.models[self.group[clients]])
