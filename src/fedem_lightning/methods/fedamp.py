"""FedAMP and HeurFedAMP: each client is drawn to a mean of all models, in which models like its own count more.

Huang, Chu, Zhou, Wang, Liu, Pei, Zhang: "Personalized Cross-Silo Federated Learning on Non-IID Data", AAAI 2021, arXiv
2007.03797. Algorithm 1, Eq. 6.
"""

from typing import Any, Literal

import torch
from torch import Tensor, nn

from fedem_lightning.aggregate import Means, Models
from fedem_lightning.data.federation import Block, Federation
from fedem_lightning.local.solver import near
from fedem_lightning.models.components import Backbone
from fedem_lightning.models.personal_models import OwnModels
from fedem_lightning.module.algorithm import FederatedAlgorithm
from fedem_lightning.settings.errors import require
from fedem_lightning.settings.ranges import NotNegative, Positive, Share
from fedem_lightning.state.history import Round
from fedem_lightning.state.network import Transmission

AT_ONCE = 64
"""Models that are read at a time."""


class FedAMP(FederatedAlgorithm):
    """Client i minimises F_i(w) + (lambda / (2 alpha)) |w - u_i|^2 from its own w_i, where u_i = sum_j xi_ij w_j.

    xi_ij = (alpha / sigma) e^{-|w_i - w_j|^2 / sigma} for j != i, and xi_ii is the rest to 1. These are weights of the
    paper's attention A(x) = 1 - e^{-x / sigma}. The server keeps the last w_j of all clients that train, and sends each
    client of a cohort its own u_i. A client that joins later takes one such round from their plain mean.

    Args:
        backbone, n_clients, options: see `FederatedAlgorithm`.
        sigma: the scale of squared distances of models; with `weights="cosine"` what multiplies cosines.
        alpha: alpha_k of the server, at most sigma / (T - 1); None: sigma / T, so that equal models count alike.
        penalty: lambda / alpha of the clients.
        weights: "cosine": HeurFedAMP, xi_ij ~ e^{sigma cos(w_i, w_j)} for j != i, and xi_ii is `self_weight`.
        self_weight: None: 1 / T.
        start: where clients begin a round: "own" w_i, or the "cloud" model u_i.

    """

    sends_models = False
    one_process = True  # clients receive means of other clients' models

    def __init__(
        self,
        backbone: Backbone,
        n_clients: int,
        sigma: Positive = 1.0,
        alpha: Positive | None = None,
        penalty: NotNegative = 0.1,
        weights: Literal["distance", "cosine"] = "distance",
        self_weight: Share | None = None,
        start: Literal["own", "cloud"] = "own",
        **options: Any,
    ) -> None:
        super().__init__(backbone, n_clients, n_components=1, **options)
        self.sigma, self.alpha, self.penalty = sigma, alpha, penalty
        self.weights, self.self_weight, self.start = weights, self_weight, start
        self.models = self.per_client(self.components, held_by="both")  # w_i [1, ...], which the server has, too
        self.trained = self.per_client(self.components, held_by="both")  # what clients send in a round

    def prepare(self, data: Federation) -> None:
        """No xi_ii may be negative, whatever the models are."""
        others = len(data.clients()) - 1
        fits = self.weights == "cosine" or self.alpha is None or self.alpha * others <= self.sigma
        most = f"{self.sigma / max(others, 1):g}, sigma / {others}"
        require(fits, f"algorithm.alpha: FedAMP needs at most {most}, else xi_ii may be negative; got {self.alpha}")

    def client_update(self, batch: Block, round_: int) -> None:
        """w_i ~ argmin F_i(w) + (penalty / 2) |w - u_i|^2, by local SGD."""
        t, known = batch.clients, batch.federation.clients()
        xi = self.attention(t, known)  # [C, T]
        self.measure("self_weight", (xi * (t.unsqueeze(1) == known)).sum(dim=1))
        u, own = self.mixed(xi, known), self.models[t]  # [C, 1, ...]
        first = own if self.start == "own" else own | u
        self.trained[t] = self.local_sgd(first, batch, round_, step=near(u, self.penalty))

    def attention(self, clients: Tensor, known: Tensor) -> Tensor:
        """xi_ij of clients [C] and all known ones [T], float64 [C, T]; rows sum to 1."""
        w, same = self.vectors(clients), clients.unsqueeze(1) == known
        parts = [self.vectors(part) for part in known.split(AT_ONCE)]
        if self.weights == "cosine":
            unit = nn.functional.normalize
            cosines = torch.cat([unit(w) @ unit(part).T for part in parts], dim=1)
            shares = (self.sigma * cosines).masked_fill(same, -torch.inf).softmax(dim=1).nan_to_num(0.0)
            xi = (1 - (1 / len(known) if self.self_weight is None else self.self_weight)) * shares
        else:
            distances = [torch.cdist(w, part, compute_mode="donot_use_mm_for_euclid_dist") for part in parts]
            scale = 1 / len(known) if self.alpha is None else self.alpha / self.sigma
            xi = scale * (-torch.cat(distances, dim=1).square() / self.sigma).exp().masked_fill(same, 0.0)
        return xi + same * (1 - xi.sum(dim=1, keepdim=True))

    def vectors(self, clients: Tensor) -> Tensor:
        """Their parameters, float64 [C, D]."""
        return torch.cat([rows.flatten(1).double() for rows in self.params_of(self.models[clients]).values()], dim=1)

    def mixed(self, xi: Tensor, known: Tensor) -> Models:
        """u_i = sum_j xi_ij w_j, the parameters alone: xi [C, T] -> [C, 1, ...]."""
        parts = zip(xi.split(AT_ONCE, dim=1), known.split(AT_ONCE), strict=True)
        u = sum(some @ self.vectors(part) for some, part in parts)  # [C, D]
        like = self.params_of(self.received(known[:1]))  # [1, 1, ...]
        columns = u.split([rows.numel() for rows in like.values()], dim=1)
        each = zip(columns, like.items(), strict=True)
        return {name: part.view(-1, *rows.shape[1:]).to(rows) for part, (name, rows) in each}

    def server_update(self, means: Means | None, round_: Round) -> None:
        """The server has the cohort's newest w_i; each client has received a model of its own."""
        for part in round_.cohort.split(AT_ONCE):
            sent = part[self.trained.written[part]]
            self.models[sent] = self.trained[sent]
        self.traffic = Transmission(down=1, up=1, streams=len(round_.cohort))

    def personal_models(self, clients: Tensor) -> OwnModels:
        """Client i predicts with w_i."""
        return self.own_models(self.models[clients])

    def personalize_clients(self, data: Federation, clients: Tensor) -> None:
        """From the mean of the known w_j, one round held near it."""
        mean = self.models.mean(data.clients())
        for batch in self.batches(data, clients):
            start = {name: row.expand(len(batch.clients), *row.shape) for name, row in mean.items()}  # [C, 1, ...]
            step = near(self.params_of(start), self.penalty)
            self.models[batch.clients] = self.local_sgd(start, batch, self.statistics.rounds, step=step)
