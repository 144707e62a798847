"""FEROMA: profiles of clients' data say whose models a client gets; a new client's needs no labels.

Li, Fenoglio, Gjoreski, Langheinrich: "Federated Learning with Profile Mapping under Distribution Shifts and Drifts",
ICLR 2026, arXiv 2602.07671. What we do not know of the paper follows the authors' code, or is ours (docs/fidelity.md).
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedem_lightning.aggregate import Means, Models, Update
from fedem_lightning.data.federation import Block, Federation
from fedem_lightning.data.randomness import Purpose, fold
from fedem_lightning.models.components import Backbone
from fedem_lightning.models.em import add_by_owner
from fedem_lightning.models.heads import PrototypeNetwork, features_in_order
from fedem_lightning.models.parts import model_bytes, one_sample, wrapped
from fedem_lightning.models.personal_models import OwnModels
from fedem_lightning.module.algorithm import FederatedAlgorithm
from fedem_lightning.module.checks import check_classes
from fedem_lightning.settings.errors import require
from fedem_lightning.settings.ranges import Count, PositiveShare
from fedem_lightning.state.history import Round
from fedem_lightning.state.network import Transmission

ABSENT = -1.0  # in a profile, of a class (or a client) with under two samples


class FEROMA(FederatedAlgorithm):
    """After rounds of FedAvg its w encodes clients' data; then each client k trains from a mean of its own.

    z = P phi(x): phi is what w's head takes, and P are principal directions of noise. A client's profile is the
    mean and the deviation of z over a part of its samples, drawn anew in each round, and over those of each class in
    it. With profile_j and theta_j of the clients of the last round,

        w_kj     = 1 / (|profile_k - profile_j| + 1e-8)
        theta_k <- local_sgd(sum_j w_kj n_j theta_j / sum_j w_kj n_j)

    and in the first such round local_sgd(w). In distances each mean and deviation is divided by its range over the
    first such round. A new client takes the last theta_j of the nearest last profile_j by what it has of its own:
    without labels the part of all samples.

    Args:
        warm_up_rounds: of FedAvg.
        share: of a client's training samples in a round's profile; 1: on data that stay it is Local.
        head: a regular expression found in the names of the head's tensors; None: the last layer. phi is its input.

    """

    sends_models = False
    one_process = True  # clients receive means of other clients' models
    directions: Tensor  # P, [U, d]; U = Y or d, the smaller one
    ranges: Tensor  # [2 (1 + Y), 1]
    latest: Tensor  # the clients of the last round, int64 [L]; none before the first profiles

    def __init__(
        self,
        backbone: Backbone,
        n_clients: int,
        warm_up_rounds: Count = 5,
        share: PositiveShare = 0.5,
        head: str | None = None,
        **options: Any,
    ) -> None:
        super().__init__(wrapped(backbone, lambda own: PrototypeNetwork(own, head)), n_clients, 1, **options)
        self.warm_up_rounds, self.share = warm_up_rounds, share
        self.models = self.per_client(self.components, held_by="both")  # theta_k [1, ...], which the server has, too
        self.profiles = self.per_client(torch.zeros(n_clients, 0, 0), held_by="both")  # [T, 2 (1 + Y), U]; 0: none yet
        self.trained = self.per_client(self.components, held_by="both")  # what clients send in a round
        self.measured = self.per_client(torch.zeros(n_clients, 0, 0), held_by="both")  # and their profiles
        self.register_buffer("directions", torch.zeros(0, 0))
        self.register_buffer("ranges", torch.zeros(0, 0))
        self.register_buffer("latest", torch.zeros(0, dtype=torch.int64))

    def prepare(self, data: Federation) -> None:
        """Profiles need one class for each sample; P depends on U and d alone."""
        check_classes(self, data)
        require(data.task.n_targets == 1, "dataset.task: FEROMA needs one class for each sample, got sequences")
        network, task = self.components[0].eval(), data.task  # type: Any, Any
        if self.directions.numel():
            return
        with torch.inference_mode(False), torch.no_grad():
            d = network.outputs_and_features(one_sample(data, network))[1][0].numel()
            points = np.random.RandomState(1).uniform(size=(200, d))
            rows = np.linalg.svd(points - points.mean(axis=0), full_matrices=False)[2][: min(task.n_classes, 199)]
            rows *= np.sign(rows[np.arange(len(rows)), np.abs(rows).argmax(axis=1)])[:, None]
            self.directions = torch.from_numpy(rows).to(self.profiles)
            self.profiles = self.profiles.new_zeros(self.n_clients, 2 + 2 * task.n_classes, len(rows))
            self.measured = torch.zeros_like(self.profiles)

    def client_update(self, batch: Block, round_: int) -> Update | None:
        """FedAvg's part; or the profile, and local SGD from the client's own mean."""
        t, start = batch.clients, self.received(batch.clients)  # [C, 1, ...]
        if round_ >= self.warm_up_rounds:
            keys = fold(self.seed, Purpose.PROFILE, round_, batch.keys)[batch.owner]
            self.measured[t] = mine = self.profile(batch.thinned(self.share, fold(keys, batch.ranks())))
            start = self.mean_near(mine, batch.federation) if len(self.latest) else start
        self.trained[t] = trained = self.local_sgd(start, batch, round_)
        return Update(trained, batch.counts(), start=start) if round_ < self.warm_up_rounds else None

    def profile(self, part: Block) -> Tensor:
        """Mean and deviation of z of each client and of each class, of two samples or more: [C, 2 (1 + Y), U]."""
        z = features_in_order(self.own_models, self.received(part.clients), part) @ self.directions.T  # [n, U]
        c, n_groups = len(part.clients), self.profiles.shape[1] // 2  # 1 + Y
        place = part.owner * n_groups
        if part.federation.samples.labelled:
            place, z = torch.cat([place, place + 1 + part.y().long()]), z.repeat(2, 1)
        zeros, counts = z.new_zeros(c * n_groups, z.shape[1]), place.bincount(minlength=c * n_groups).unsqueeze(1)
        means = add_by_owner(zeros.clone(), place, z) / counts.clamp(min=1)  # [C (1 + Y), U]
        variances = add_by_owner(zeros, place, (z - means[place]).square()) / counts.clamp(min=1)
        both = torch.cat([means, variances.sqrt()], dim=1).where(counts > 1, ABSENT)  # [C (1 + Y), 2 U]
        return both.view(c, 2 * n_groups, -1)

    def distances(self, mine: Tensor, clients: Tensor, but: float = torch.nan) -> Tensor:
        """|profile_k - profile_j| of profiles [C, ...] without values `but`, and the last of clients [L]: [C, L]."""
        rows = [((one - self.profiles[clients]) / self.ranges).where(one != but, 0.0) for one in mine]
        return torch.stack([row.flatten(1).norm(dim=1) for row in rows])

    def mean_near(self, mine: Tensor, data: Federation) -> Models:
        """sum_j w_kj n_j theta_j / sum_j w_kj n_j of the clients with these profiles, [C, 1, ...]."""
        weights = data.splits["train"].counts(self.latest) / (self.distances(mine, self.latest) + 1e-8)  # [C, L]
        means = [self.models.mean(self.latest, row) for row in weights]
        return {name: torch.stack([one[name] for one in means]) for name in means[0]}

    def server_update(self, means: Means | None, round_: Round) -> None:
        """w <- FedAvg's mean, in its rounds; the server has the newest theta_k and profiles."""
        sent, first = round_.cohort[self.trained.written[round_.cohort]], not len(self.latest)
        self.models[sent] = self.trained[sent]
        if round_.number < self.warm_up_rounds:
            super().server_update(means, round_)
            return
        sent = sent[self.measured[sent].any(dim=(1, 2))]
        had = self.profiles[sent].any(dim=(1, 2)).double().mean().item()  # the others receive w, too
        up, streams = self.measured[0].nbytes / model_bytes(self.components[0]), len(sent) + (had < 1)
        self.traffic = Transmission(1 if first else 2 - had, 1 + up, streams=1 if first else streams)
        self.latest, self.profiles[sent] = sent, self.measured[sent]
        if first:
            spans = self.profiles[sent].amax(dim=(0, 2)) - self.profiles[sent].amin(dim=(0, 2))
            self.ranges = spans.where(spans > 0, 1.0).unsqueeze(1)

    def personal_models(self, clients: Tensor) -> OwnModels:
        """Client k predicts with its last theta_k; before its first round with w."""
        return self.own_models(self.models.get(clients, self.received(clients)))

    def personalize_clients(self, data: Federation, clients: Tensor) -> None:
        """The model of the nearest client, without training; w before there are profiles, or with under two samples."""
        self.models[clients] = self.received(clients)
        known, some = data.clients(), clients[data.splits["train"].counts(clients) > 1]
        known = known[self.profiles[known].any(dim=(1, 2))]
        for batch in self.batches(data, some) if len(known) else ():
            nearest = self.distances(self.profile(batch), known, but=ABSENT).argmin(dim=1)
            self.models[batch.clients] = self.models[known[nearest]]
