"""FedALA: before training, each client learns element by element how much of the global model it takes over.

Zhang, Hua, Wang, Song, Xue, Ma, Guan: "FedALA: Adaptive Local Aggregation for Personalized Federated Learning", AAAI
2023, arXiv 2212.01197. Algorithm 1; equation numbers are the paper's.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedem_lightning.aggregate import Models, Update
from fedem_lightning.data.federation import Block, Federation
from fedem_lightning.data.randomness import Purpose, fold
from fedem_lightning.local.solver import Gradient, Learner, LocalStep, Step
from fedem_lightning.models.components import Backbone
from fedem_lightning.models.parts import split_body_head
from fedem_lightning.models.personal_models import OwnModels, client_means
from fedem_lightning.module.algorithm import FederatedAlgorithm
from fedem_lightning.settings.ranges import Positive, PositiveShare

MAX_PASSES = 100
"""Most passes in which a client learns its weights for the first time."""


@dataclass(frozen=True)
class WeightStep(LocalStep):
    """W <- clip(W - eta_w grad f * (w - theta_t), 0, 1), Eq. 5; then theta = theta_t + (w - theta_t) * W, Eq. 4.

    The learner's "params" are theta's upper layers; it carries "weights" W, "own" theta_t and "away" w - theta_t.
    """

    weights_lr: float  # eta_w

    def advance(self, learner: Learner, gradient: Gradient) -> None:
        """Eq. 5 and 4 on one batch."""
        parts = (learner[name].values() for name in ("params", "weights", "own", "away"))
        for g, theta, weights, own, away in zip(gradient(learner), *parts, strict=True):
            weights.sub_(self.weights_lr * g * away).clamp_(0, 1)
            theta.copy_(own + away * weights)


class FedALA(FederatedAlgorithm):
    """Client t trains from theta_t + (w - theta_t) * W_t in the upper layers and from w below, and sends what it gets.

    It predicts with the model from which it would train with the newest w, as the authors' code scores: before every
    scoring it learns W_t as the next round would, and training does not see these weights. The first time a client
    learns W_t pass after pass, until the losses of the last ten passes have a small standard deviation; later one pass
    a round. In the first round theta_t = w, so there is nothing to learn. A client that never trained has w.

    Args:
        head: a regular expression found in the names of the upper layers' tensors; None: the last layer (p = 1).
        weights_lr: eta_w.
        share: s, the share of a client's samples with which it learns W, drawn anew in each round.
        tolerance: standard deviation of the losses at which the first learning ends.

    """

    private_ok = True
    personalizes_seen = True

    def __init__(
        self,
        backbone: Backbone,
        n_clients: int,
        head: str | None = None,
        weights_lr: Positive = 1.0,
        share: PositiveShare = 0.8,
        tolerance: Positive = 0.01,
        **options: Any,
    ) -> None:
        super().__init__(backbone, n_clients, n_components=1, **options)
        names = split_body_head(self.components[0], head).head
        self.upper = tuple(name for name in self.params_of(self.received(torch.zeros(1))) if name in names)
        self.weights_lr, self.share, self.tolerance = weights_lr, share, tolerance
        self.own = self.per_client(self.components)  # theta_t, rows [1, ...]
        ones = {name: torch.ones_like(self.components[0].get_parameter(name)).unsqueeze(0) for name in self.upper}
        self.weights = self.per_client(ones)  # W_t
        self.served = self.per_client(ones)  # W_t for the newest w

    def client_update(self, batch: Block, round_: int) -> Update:
        """Adaptive local aggregation, then FedAvg's local training."""
        t = batch.clients
        if round_ > 0:
            self.weights[t] = self.learned(batch, round_)
        weights = self.weights[t]
        self.own[t] = theta = self.local_sgd(self.initialized(self.own[t], weights), batch, round_)
        self.served[t] = weights
        return Update(theta, batch.counts(), start=self.received(t))

    def initialized(self, own: Models, weights: Models) -> Models:
        """w below, theta_t + (w - theta_t) * W_t in the upper layers (Eq. 4), [C, 1, ...]."""
        w = self.received(next(iter(own.values())))
        return w | {name: own[name] + (w[name] - own[name]) * weights[name] for name in self.upper}

    def learned(self, batch: Block, round_: int) -> Models:
        """W_t after one pass; those who learn for the first time go on until their losses settle. [C, 1, ...]."""
        keys = fold(self.seed, Purpose.ALA, round_, batch.keys)[batch.owner]
        part = batch.thinned(self.share, fold(keys, batch.ranks()))  # a random share s of each client's samples
        t, own, losses = batch.clients, self.own[batch.clients], list[Tensor]()
        weights, learning = self._pass(part, own, self.weights[t], round_), ~self.weights.written[t]  # [C]
        while learning.any() and len(losses) + 1 < MAX_PASSES:
            theta = self.own_models(self.initialized(own, weights))
            losses.append(client_means(theta.losses(part), part)[:, 0])  # [C]
            if len(losses) >= 10:
                learning &= torch.stack(losses[-10:]).std(dim=0, correction=0) >= self.tolerance
            if len(some := learning.nonzero().squeeze(1)):
                theirs, old = ({name: rows[some] for name, rows in models.items()} for models in (own, weights))
                for name, rows in self._pass(_of(part, some), theirs, old, round_).items():
                    weights[name].index_copy_(0, some, rows)
        return weights

    def _pass(self, part: Block, own: Models, weights: Models, round_: int) -> Models:
        """W_t after Eq. 5 over the samples of `part`, whose clients have theta_t `own`, from `weights`."""
        w = self.received(part.clients)
        tensors = {
            "weights": weights,
            "own": {name: own[name] for name in self.upper},
            "away": {name: w[name] - own[name] for name in self.upper},
        }
        step, theta = Step(WeightStep, tensors, weights_lr=self.weights_lr), self.initialized(own, weights)
        self.local_sgd(theta, part, round_, step=step, only=self.upper, epochs=1, state=None)
        return step.after["weights"]

    def personalize_clients(self, data: Federation, clients: Tensor) -> None:
        """Clients that have trained learn W_t for the newest w."""
        for batch in self.batches(data, clients[self.own.written[clients]]):
            self.served[batch.clients] = self.learned(batch, self.statistics.rounds)

    def personal_models(self, clients: Tensor) -> OwnModels:
        """What a client would train from with the newest w; a client that never trained has w."""
        own = self.own.get(clients, self.received(clients))
        return self.own_models(self.initialized(own, self.served[clients]))


def _of(batch: Block, some: Tensor) -> Block:
    """The batch of some of its clients, positions int64 [C'], ascending."""
    rows = torch.isin(batch.owner, some).nonzero().squeeze(1)
    return Block(batch.federation, batch.clients[some], batch.index[rows], torch.searchsorted(some, batch.owner[rows]))
