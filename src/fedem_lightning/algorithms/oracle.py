"""Oracle: FedAvg within each true group of clients, an upper bound for methods that have to find the groups.

Mestoukirdi et al.: "User-Centric Federated Learning", 2021, arXiv 2110.09869, Section IV.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedem_lightning.aggregation import Means, Sent
from fedem_lightning.algorithms.base import FederatedAlgorithm
from fedem_lightning.algorithms.facts import Facts
from fedem_lightning.data.block import Block
from fedem_lightning.data.federation import Federation
from fedem_lightning.errors import require
from fedem_lightning.history import Round
from fedem_lightning.models.client_store import ClientStore, Owner
from fedem_lightning.models.components import Backbone
from fedem_lightning.models.personal_models import OwnModels
from fedem_lightning.network import Transmission


class Oracle(FederatedAlgorithm):
    """theta_g <- sum of (n_t / n_g) theta_t over the clients t of group g; unseen clients have a true group too."""

    facts = Facts(
        released=("the true groups of clients",),
        needs_one_machine="needs the true groups of all clients",
        uses_server_optimizer=False,
    )
    group: Tensor  # the true group of each client, int64 [T]; [0] before the first round

    def __init__(self, backbone: Backbone, n_clients: int, **options: Any) -> None:
        super().__init__(backbone, n_clients, n_components=1, **options)
        self.states.declare("group", torch.zeros(0, dtype=torch.int64), Owner.SERVER)
        self.models = ClientStore.of_components(n_clients, self.components, Owner.SERVER_ONLY, of_clients=False)

    def prepare(self, federation: Federation) -> None:
        """Reads the true groups."""
        known = "group" in federation.truth
        require(known, "algorithm: Oracle needs data whose true groups are known (dataset.shift, dataset.one_hot)")
        self.group = torch.from_numpy(np.asarray(federation.truth["group"], dtype=np.int64)).to(self.device)

    def client_update(self, block: Block, round_: int) -> Sent:
        """theta_t = local_sgd(theta_g)."""
        models = self.local.solve(self.models.read(self.group[block.clients]), block, round_)
        return Sent(models, block.counts(), self.group[block.clients], self.n_groups)

    def unmoved(self, clients: Tensor, n_train: Tensor) -> Sent:
        """The model of each client's group."""
        return Sent(self.models.read(self.group[clients]), n_train, self.group[clients], self.n_groups)

    def server_update(self, means: Means | None, round_: Round) -> None:
        """Each group's model becomes the mean of its clients' updates; a group without updates keeps its model."""
        if means is not None:
            nonempty = torch.nonzero(means.nonempty).squeeze(1)
            self.models.write(nonempty, {name: rows[nonempty, None] for name, rows in means.models.items()})
        self.server.step()

    @property
    def n_groups(self) -> int:
        """Number of true groups."""
        return int(self.group.max()) + 1

    def transmission(self, clients: Tensor) -> Transmission:
        """One model down to each group, one model up from each client."""
        return Transmission(down=1, up=1, streams=self.n_groups, stream_of=self.group[clients])

    def personal_models(self, clients: Tensor) -> OwnModels:
        """Each client predicts with its group's model."""
        return self.own_models(self.models.read(self.group[clients]))
