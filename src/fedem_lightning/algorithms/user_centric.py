"""User-centric aggregation: every client, or group of clients, receives an aggregate of its own.

Mestoukirdi, Zecchin, Gesbert, Li, Gresset: "User-Centric Federated Learning", 2021, arXiv 2110.09869. Section III;
equation numbers are the paper's.
"""

import warnings
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from fedem_lightning.aggregation import Means, Sent
from fedem_lightning.algorithms.base import FederatedAlgorithm
from fedem_lightning.algorithms.client_gradients import (
    class_gradients,
    compared_parameters,
    gradients,
    known_clients,
)
from fedem_lightning.algorithms.facts import Facts
from fedem_lightning.algorithms.streams import (
    MATRIX_LIMIT,
    Similarity,
    choose_streams,
    coefficients,
    coordinates,
    direction_distances,
    gradient_distances,
    member_weights,
    scaled,
    squared_norms,
    stream_weights,
    with_unknown,
)
from fedem_lightning.data.block import Block
from fedem_lightning.data.federation import Federation
from fedem_lightning.errors import require
from fedem_lightning.history import Round
from fedem_lightning.models.client_store import ClientStore, Owner
from fedem_lightning.models.components import Backbone
from fedem_lightning.models.personal_models import OwnModels
from fedem_lightning.network import Transmission
from fedem_lightning.settings.ranges import Count, PositiveInt, TwoOrMore
from fedem_lightning.uploads import count_special_round


class UserCentric(FederatedAlgorithm):
    """theta_i <- sum_j w_ij theta_j (Eq. 5); w_ij is larger the nearer the clients' gradients are (Eq. 6).

    Before training (or after `warmup_rounds` of FedAvg), and every `refresh_every` rounds after that, there is a
    special round: all clients that train send the gradient of their loss at a common model, the mean of their models.
    With k streams there are k groups of clients with equal rows of W. A client outside the cohort keeps its model. An
    unseen client sends its gradient, and receives its own mean of the seen clients' models. A gradient that is not
    finite is rejected: the client's weight is 0, and it receives the largest stream (unicast: a mean by samples).

    Memory: a model and a gradient for each client (above 1 GB they are on disk), and a few arrays of T x T float64
    numbers while W is computed: a run with 10,000 clients peaks at 5.0 GB.

    Args:
        backbone, n_clients, options: see `FederatedAlgorithm`.
        n_streams: k, models that the server sends; None: one for each client (unicast); "auto": the k with the largest
            silhouette score of k-means on the rows of W, 1 if none is positive.
        max_streams: the largest k that "auto" tries.
        n_parts: K of Eq. 7, disjoint parts of a client's samples from whose gradients sigma is estimated; 2 at least.
            More parts make collaboration weights more alike.
        similarity: "eq6"; "common": the same sigma for all clients, for data where Eq. 6 gives clients no weight of
            others; "cosine": w_ij ~ n_j max(0, cos(g_i, g_j)) of centred gradients, and k-means on their directions,
            for data where Eq. 6 gives nearly even weights.
        label_adjusted: whether sum_y p_i(y) g_y, the part that label frequencies explain, is subtracted from gradients
            before they are compared; g_y is the mean gradient of class y over all clients. A client then sends one
            gradient for each class.
        members_only: whether a stream averages its members alone, by their samples; else all clients, by the mean row
            of W.
        compared: regular expression, found in the names of the parameters whose gradients are compared; None: all.
        warmup_rounds: rounds of FedAvg before the first special round. The paper has 0: gradients at a random model.
        refresh_every: rounds between special rounds; None: only the first.

    """

    facts = Facts(
        released=("every client's gradient, by which models are mixed",),
        needs_one_machine="asks clients for gradients in special rounds",
        uses_server_optimizer=False,
    )
    stream: Tensor  # of each client, int64 [T]
    weights: Tensor  # of the clients in each stream's average, any scale [k, T]
    noise: Tensor  # sigma^2 [T]
    w: Tensor  # collaboration weights of the clients that train, rows sum to 1, [T', T']; [0, 0] beyond `MATRIX_LIMIT`
    embedding: Tensor  # gradients in the plane [T, 2]; NaN for clients that do not train

    def __init__(
        self,
        backbone: Backbone,
        n_clients: int,
        n_streams: PositiveInt | Literal["auto"] | None = None,
        max_streams: TwoOrMore = 20,
        n_parts: TwoOrMore = 5,
        similarity: Similarity = "eq6",
        label_adjusted: bool = False,
        members_only: bool = False,
        compared: str | None = None,
        warmup_rounds: Count = 0,
        refresh_every: PositiveInt | None = None,
        **options: Any,
    ) -> None:
        super().__init__(backbone, n_clients, n_components=1, **options)
        self.n_streams, self.max_streams, self.n_parts = n_streams, max_streams, n_parts
        self.similarity, self.label_adjusted, self.members_only = similarity, label_adjusted, members_only
        self.warmup_rounds, self.refresh_every = warmup_rounds, refresh_every
        self._n_classes = 1  # gradients that a client sends in a special round
        self.states.declare("stream", torch.zeros(n_clients, dtype=torch.int64), Owner.SERVER, columns="stream")
        self.states.declare("weights", torch.zeros(0, n_clients), Owner.SERVER, client_axis=1)
        self.states.declare("noise", torch.zeros(n_clients), Owner.SERVER, client_axis=0)
        self.states.declare("w", torch.zeros(0, 0), Owner.SERVER_ONLY)
        plane = torch.full((n_clients, 2), torch.nan)
        self.states.declare("embedding", plane, Owner.SERVER, columns=("embedding_0", "embedding_1"))
        self.models = ClientStore.of_components(n_clients, self.components, Owner.SERVER)  # theta_i, rows [1, ...]
        params = self.params_of(self.models.read(torch.tensor(0)))
        self.gradients = ClientStore(n_clients, compared_parameters(params, compared), Owner.SERVER_ONLY)  # g_i
        self._share = self.gradients.n_bytes / self.models.n_bytes  # size of a gradient, in models

    def prepare(self, federation: Federation) -> None:
        """Checks the number of streams; reads the number of classes if there is one gradient for each class."""
        n_seen, k, task = len(federation.clients()), self.n_streams, federation.task
        if self.label_adjusted:
            self._n_classes = getattr(task, "n_classes", 0) if task.n_targets == 1 else 0
            require(self._n_classes > 0, "algorithm.label_adjusted: the samples do not have one class each")
        fits = not isinstance(k, int) or k <= n_seen
        require(fits, f"algorithm.n_streams: {k} streams, but only {n_seen} clients train")

    def initialize(self, federation: Federation) -> None:
        """Runs the special round at the common initial model; with a warm-up there is one stream at first."""
        if self.warmup_rounds == 0:
            self.special_round(federation)
            return
        t = federation.clients()
        self.weights = self.noise.new_zeros(1, self.n_clients)
        self.weights[0, t] = federation.splits["train"].counts(t).to(self.weights)

    def client_update(self, block: Block, round_: int) -> Sent:
        """theta_j = local_sgd(theta_j), which enters the average of every stream."""
        trained = self.local.solve(self.models.read(block.clients), block, round_)
        return Sent(trained, self.weights[:, block.clients].T)

    def unmoved(self, clients: Tensor, n_train: Tensor) -> Sent:
        """Each client's own model, with the weights that the server has chosen."""
        return Sent(self.models.read(clients), self.weights[:, clients].T)

    def server_update(self, means: Means | None, round_: Round) -> None:
        """Every client of the cohort takes its stream's average (Eq. 5); a special round follows if one is due."""
        if means is not None:
            nonempty = means.nonempty.to(self.stream.device)  # the server counts weights on the CPU
            known = round_.cohort[nonempty[self.stream[round_.cohort]]]
            for part in known.split(64):
                self.models.write(part, {name: rows[self.stream[part], None] for name, rows in means.models.items()})
        trained = round_.number + 1 - self.warmup_rounds
        again = self.refresh_every is not None and trained > 0 and trained % self.refresh_every == 0
        if trained == 0 or again:
            self._refresh(round_.federation)
        self.server.step()

    def special_round(self, federation: Federation) -> None:
        """Computes W and the streams from gradients at component 0; clients receive one model and send gradients."""
        everyone, cosine = federation.clients(), self.similarity == "cosine"
        work = federation.splits["train"].counts(everyone)
        count_special_round(self, everyone, work, down=1, up=self._n_classes * self._share)
        self._gather_gradients(federation, everyone)
        known = known_clients(self, self.gradients, federation)  # [T']
        t = everyone[known]
        distance = self._distances(t, t).fill_diagonal_(0.0)
        counts = federation.splits["train"].counts(t)
        rows = self.coefficients(distance, self.noise[t], self.noise[t], counts)
        points = coordinates(distance, self.seed, None if cosine else 2)
        self.embedding[everyone] = torch.nan
        self.embedding[t] = points[:, :2].to(self.embedding)
        del distance  # 800 MB with 10,000 clients
        w = scaled(rows).clamp_(min=0)
        collaborators = 1 / w.square().sum(dim=1)
        if not cosine and len(t) > 1 and bool((collaborators < 1.001).all()):
            warnings.warn(
                "algorithm: the coefficients leave every client alone; algorithm.similarity=common or more "
                "algorithm.n_parts make them more alike",
                stacklevel=2,
            )
        points = points.nan_to_num() if cosine else w
        labels, scores = choose_streams(rows, points, self.n_streams, self.max_streams, self.seed)
        alone = self.members_only or (cosine and bool((labels == 0).all()))  # directions cancel in one mean of all
        weights = member_weights(counts, labels) if alone else stream_weights(rows, labels)
        if not known.all():
            w, labels, weights = with_unknown(known, w, labels, weights.to(w), counts, self.n_streams is None)
        self.w = w if len(everyone) <= MATRIX_LIMIT else w.new_zeros(0, 0)  # [T', T']
        self.stream[everyone] = labels
        self.weights = w.new_zeros(len(weights), self.n_clients)
        self.weights[:, everyone] = weights.to(self.weights)
        found = {"collaborators": float(collaborators.mean()), "streams": len(self.weights)}
        self.diagnostics["user_centric"] = found | ({"silhouettes": scores} if scores else {})

    def coefficients(self, distance: Tensor, noise: Tensor, other_noise: Tensor, counts: Tensor) -> Tensor:
        """Rows of W, not yet scaled to sum to 1, [C, T']; see `streams.coefficients`."""
        return coefficients(distance, noise, other_noise, counts, self.similarity).to(self.noise)

    def _gather_gradients(self, federation: Federation, clients: Tensor) -> None:
        """Clients (int64 [C]) send their gradients and the variances; those that are not finite stay unknown."""
        explained, names = None, self.gradients.names
        if self.label_adjusted or self.similarity == "cosine":
            explained = class_gradients(self, federation, federation.clients(), names, self._n_classes)
        self.gradients.written[clients] = False
        self.noise[clients] = torch.nan
        for block in self.local.blocks(federation, clients):
            t = block.clients
            g, noise = gradients(self, block, self.n_parts, names, explained)
            self.gradients.write_finite(t, g)
            self.noise[t] = noise.double().masked_fill(~self.gradients.written[t], torch.nan).to(self.noise)

    def _distances(self, clients: Tensor, others: Tensor) -> Tensor:
        """Squared distances of gradients or of their directions, float64 [C, C']."""
        squares = squared_norms(self.gradients, clients)
        other_squares = squares if others is clients else squared_norms(self.gradients, others)
        measure = direction_distances if self.similarity == "cosine" else gradient_distances
        return measure(self.gradients.products(clients, others), squares, other_squares)

    def _refresh(self, federation: Federation) -> None:
        """Runs a special round at the clients' mean model; then each client takes its average by the new W."""
        t = federation.clients()
        mean = self.models.mean(t, federation.splits["train"].counts(t))
        self.components[0].load_state_dict({name: rows[0] for name, rows in mean.items()}, strict=False)
        self.special_round(federation)
        shares = self.weights[self.stream[t]][:, t].double()  # [T', T']
        self.models.mix(t, (shares / shares.sum(dim=1, keepdim=True)).T)

    def transmission(self, clients: Tensor) -> Transmission:
        """One model down to each stream's clients, one model up from each client."""
        return Transmission(down=1, up=1, streams=len(self.weights), stream_of=self.stream[clients])

    def personal_models(self, clients: Tensor) -> OwnModels:
        """Each client predicts with its own model."""
        return self.own_models(self.models.read(clients))

    def artifacts(self, federation: Federation) -> dict[str, dict[str, np.ndarray]]:
        """The collaboration weights of the newest special round; none for more than `MATRIX_LIMIT` clients.

        w: rows sum to 1, [T', T']; id: these clients' names, str [T']; stream, and true_group if known: int64 [T'].
        """
        if not len(self.w):
            return {}
        rows = federation.clients().cpu().numpy()
        found = {
            "w": self.w.cpu().numpy(),
            "id": np.array([str(federation.names[t]) for t in rows]),
            "stream": self.stream.cpu().numpy()[rows],
        }
        if "group" in federation.truth:
            found["true_group"] = np.asarray(federation.truth["group"], dtype=np.int64)[rows]
        return {"coefficients": found}

    def personalize_clients(self, federation: Federation, clients: Tensor) -> None:
        """An unseen client takes a mean of the seen clients' models, with the row of W that its own gradient gives."""
        t = federation.clients()
        counts = federation.splits["train"].counts(t) * self.gradients.written[t]
        self._gather_gradients(federation, clients)
        for part in clients.split(256):
            rows = self.coefficients(self._distances(part, t), self.noise[part], self.noise[t], counts).clamp(min=0)
            rows[~self.gradients.written[part]] = 0
            for client, row in zip(part, rows, strict=True):
                mean = self.models.mean(t, row if row.any() else counts)
                self.models.write(client.view(1), {name: rows.unsqueeze(0) for name, rows in mean.items()})
