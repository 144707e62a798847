"""User-centric aggregation: every client, or group of clients, receives an aggregate of its own; Oracle is its bound.

Mestoukirdi, Zecchin, Gesbert, Li, Gresset: "User-Centric Federated Learning", 2021, arXiv 2110.09869. Section III, and
IV for Oracle; equation numbers are the paper's.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedem_lightning.aggregate import Means, Update
from fedem_lightning.data.federation import Block, Federation
from fedem_lightning.methods.streams import (
    Similarity,
    choose_streams,
    class_gradients,
    coefficients,
    coordinates,
    distances,
    gradients,
    scaled,
    stream_weights,
)
from fedem_lightning.models.client_store import ClientStore
from fedem_lightning.models.components import Backbone, stacked_state
from fedem_lightning.models.personal_models import OwnModels
from fedem_lightning.module.algorithm import FederatedAlgorithm
from fedem_lightning.module.client_updates import count_special_round
from fedem_lightning.settings.errors import require
from fedem_lightning.settings.ranges import PositiveInt, TwoOrMore
from fedem_lightning.state.history import Round

MATRIX_LIMIT = 2_000  # clients for which W is kept; beyond, checkpoints would be large


class UserCentric(FederatedAlgorithm):
    """theta_i <- sum_j w_ij theta_j (Eq. 5); w_ij is larger the nearer the clients' gradients are (Eq. 6).

    Before training there is a special round: all clients that train send the gradient of their loss at the initial
    model. With k streams there are k groups of clients with equal rows of W. A client outside the cohort keeps its
    model. An unseen client sends its gradient, and receives its own mean of the seen clients' models.

    Memory: a model and a gradient for each client (above 1 GB they are on disk), and a few arrays of T x T float64
    numbers while W is computed: a run with 10,000 clients peaks at 5.0 GB.

    Args:
        n_streams: k, models that the server sends; None: one for each client (unicast).
        n_parts: K of Eq. 7, disjoint parts of a client's samples from whose gradients sigma is estimated; 2 at least.
            More parts make collaboration weights more alike.
        similarity: "eq6"; "cosine": w_ij ~ n_j max(0, cos(g_i, g_j)) of centred gradients, and k-means on their
            directions, for data where Eq. 6 gives nearly even weights.
        label_adjusted: whether sum_y p_i(y) g_y, the part that label frequencies explain, is subtracted from gradients
            before they are compared; g_y is the mean gradient of class y over all clients. A client then sends one
            gradient for each class.

    """

    one_process = True  # it asks clients for gradients in a special round
    stream: Tensor  # of each client, int64 [T]
    weights: Tensor  # of the clients in each stream's average, any scale [k, T]
    noise: Tensor  # sigma^2 [T]
    w: Tensor  # collaboration weights of the clients that train, rows sum to 1, [T', T']; [0, 0] beyond `MATRIX_LIMIT`

    def __init__(
        self,
        backbone: Backbone,
        n_clients: int,
        n_streams: PositiveInt | None = None,
        n_parts: TwoOrMore = 5,
        similarity: Similarity = "eq6",
        label_adjusted: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(backbone, n_clients, n_components=1, **options)
        self.n_streams, self.n_parts, self.similarity = n_streams, n_parts, similarity
        self.label_adjusted, self._n_classes = label_adjusted, 1  # gradients that a client sends
        self.stream = self.per_client(torch.zeros(n_clients, dtype=torch.int64), column="stream", held_by="server")
        self.register_buffer("weights", torch.zeros(0, n_clients))
        self.noise = self.per_client(torch.zeros(n_clients), held_by="server")
        self.register_buffer("w", torch.zeros(0, 0))
        self.models = self.per_client(self.components, held_by="server")  # theta_i [1, ...]
        params = self.params_of(self.models[torch.tensor(0)])
        self.gradients = self.per_client(params, held_by="server")  # g_i

    def prepare(self, data: Federation) -> None:
        """Checks the number of streams; reads the number of classes if there is one gradient for each class."""
        n_seen, k, task = len(data.clients()), self.n_streams, data.task
        if self.label_adjusted:
            self._n_classes = getattr(task, "n_classes", 0) if task.n_targets == 1 else 0
            require(self._n_classes > 0, "algorithm.label_adjusted: the samples do not have one class each")
        require(k is None or k <= n_seen, f"algorithm.n_streams: {k} streams, but only {n_seen} clients train")

    def initialize(self, data: Federation) -> None:
        """The special round: W and the streams from gradients at component 0, the initial model (Eq. 6 and 7)."""
        t, cosine = data.clients(), self.similarity == "cosine"
        counts = data.splits["train"].counts(t)
        count_special_round(self, t, counts, down=1, up=self._n_classes * self.gradients.n_bytes / self.models.n_bytes)
        self._gather_gradients(data, t)
        distance = self._distances(t, t).fill_diagonal_(0.0)
        rows = coefficients(distance, self.noise[t], self.noise[t], counts, self.similarity).to(self.noise)
        w = scaled(rows).clamp_(min=0)
        points = coordinates(distance, self.seed) if cosine else w
        del distance  # 800 MB with 10,000 clients
        labels = choose_streams(rows, points, self.n_streams, self.seed)
        self.weights = self.weights.new_zeros(int(labels.max()) + 1, self.n_clients)
        self.weights[:, t] = stream_weights(rows, labels).to(self.weights)
        self.stream[t] = labels
        self.w = w if len(t) <= MATRIX_LIMIT else w.new_zeros(0, 0)
        collaborators = float((1 / w.square().sum(dim=1)).mean())
        self.diagnostics["user_centric"] = {"collaborators": collaborators, "streams": len(self.weights)}

    def _gather_gradients(self, data: Federation, clients: Tensor) -> None:
        """Clients (int64 [C]) send their gradients and the variances."""
        if self.label_adjusted or self.similarity == "cosine":
            explained = class_gradients(self, data, self._n_classes)
        else:
            explained = {name: torch.zeros_like(row) for name, row in self.gradients[clients[:1]].items()}
        for batch in self.batches(data, clients):
            g, noise = gradients(self, batch, self.n_parts, explained)
            self.gradients[batch.clients] = g
            self.noise[batch.clients] = noise.to(self.noise)

    def _distances(self, clients: Tensor, others: Tensor) -> Tensor:
        """Squared distances of gradients or of their directions, float64 [C, C']."""

        def squared_norms(of: Tensor) -> Tensor:
            rows = (self.gradients[part].values() for part in of.split(64))
            return torch.cat([sum(r.flatten(1).double().square().sum(dim=1) for r in part) for part in rows])

        products = self.gradients.products(clients, others)
        return distances(products, squared_norms(clients), squared_norms(others), self.similarity)

    def client_update(self, batch: Block, round_: int) -> Update:
        """theta_j = local_sgd(theta_j), which enters the average of every stream."""
        t, theta = batch.clients, self.models[batch.clients]  # [C, 1, ...]
        trained = self.local_sgd(theta, batch, round_)
        return Update(trained, self.weights[:, t].T, start=theta, stream=self.stream[t])

    def server_update(self, means: Means | None, round_: Round) -> None:
        """Every client of the cohort takes its stream's average (Eq. 5)."""
        if means is not None:
            nonempty = means.nonempty.to(self.stream.device)  # the server counts weights on the CPU
            known = round_.cohort[nonempty[self.stream[round_.cohort]]]
            for part in known.split(64):
                self.models[part] = {name: rows[self.stream[part], None] for name, rows in means.models.items()}

    def personal_models(self, clients: Tensor) -> OwnModels:
        """Each client predicts with its own model."""
        return self.own_models(self.models[clients])

    def personalize_clients(self, data: Federation, clients: Tensor) -> None:
        """An unseen client takes a mean of the seen clients' models, with the row of W that its own gradient gives."""
        t = data.clients()
        counts = data.splits["train"].counts(t)
        self._gather_gradients(data, clients)
        for part in clients.split(256):
            noise, other_noise = self.noise[part], self.noise[t]
            rows = coefficients(self._distances(part, t), noise, other_noise, counts, self.similarity).to(noise)
            for client, row in zip(part, rows.clamp(min=0), strict=True):
                mean = self.models.mean(t, row if row.any() else counts)
                self.models[client.view(1)] = {name: rows.unsqueeze(0) for name, rows in mean.items()}


class Oracle(FederatedAlgorithm):
    """FedAvg within each true group of clients, an upper bound for methods that have to find the groups.

    theta_g <- sum of (n_t / n_g) theta_t over the clients t of group g; unseen clients have a true group too.
    """

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
