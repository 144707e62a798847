"""Per-FedAvg: a model from which one gradient step leads to a good personal model.

Fallah, Mokhtari, Ozdaglar: "Personalized Federated Learning with Theoretical Guarantees: A Model-Agnostic Meta-Learning
Approach", NeurIPS 2020, arXiv 2002.07948. Algorithm 1, with the first-order approximation (FO) of Section 5.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedem_lightning.aggregate import Update
from fedem_lightning.data.block import Block
from fedem_lightning.data.federation import Federation
from fedem_lightning.local.solver import Gradient, Learner, LocalStep, Step
from fedem_lightning.models.components import Backbone
from fedem_lightning.models.personal_models import OwnModels
from fedem_lightning.models.tensors import along
from fedem_lightning.module.algorithm import FederatedAlgorithm
from fedem_lightning.settings.ranges import NotNegative


@dataclass(frozen=True)
class MetaStep(LocalStep):
    """A step on f(w - alpha grad f(w; D); D'), its Hessian left out; D and D' are the halves of the batch."""

    inner_lr: float  # alpha

    def advance(self, learner: Learner, gradient: Gradient) -> None:
        """Alg. 1, lines 6-8."""
        params, first = learner["params"], gradient(learner, 0, 2)
        moved = torch._foreach_add(list(params.values()), first, alpha=-self.inner_lr)  # w~
        at_moved = {"params": dict(zip(params, moved, strict=True)), "buffers": learner["buffers"]}
        self.optimizer.descend(learner, gradient(at_moved, 1, 2), self.lr)


class PerFedAvg(FederatedAlgorithm):
    """min over w of the mean of F_t(w - alpha grad F_t(w)); client t predicts with w - alpha grad F_t(w).

    Every client, seen or unseen, takes that step from the newest w before it is scored, on all of its training samples.
    Clients of the cohort count alike, as in the paper. A last batch of one sample has no step.

    Args:
        backbone, n_clients, options: see `FederatedAlgorithm`. `client_optimizer.lr` is beta.
        inner_lr: alpha.

    """

    private_ok = True
    personalizes_seen = True

    def __init__(
        self,
        backbone: Backbone,
        n_clients: int,
        inner_lr: NotNegative = 0.01,
        **options: Any,
    ) -> None:
        super().__init__(backbone, n_clients, n_components=1, **options)
        self.inner_lr = inner_lr
        self.models = self.per_client(self.components)  # [1, ...]

    def client_update(self, batch: Block, round_: int) -> Update:
        """Local steps of the meta-gradient."""
        w = self.received(batch.clients)  # [C, 1, ...]
        models = self.local_sgd(w, batch, round_, step=Step(MetaStep, inner_lr=self.inner_lr))
        return Update(models, (batch.counts() > 0).long(), start=w)

    def personalize_clients(self, data: Federation, clients: Tensor) -> None:
        """theta_t <- w - alpha grad F_t(w)."""
        for batch in self.batches(data, clients):
            w = self.received(batch.clients)
            sums = self.local.summed_gradients(w, batch, self.statistics.rounds)
            scale = self.inner_lr / batch.counts().clamp(min=1).to(self.parameter_dtype).unsqueeze(1)  # [C, 1]
            stepped = {name: w[name] - along(scale, total) * total for name, total in sums.items()}
            self.models[batch.clients] = w | stepped

    def personal_models(self, clients: Tensor) -> OwnModels:
        """theta_t; a client that was never personalised has w."""
        return self.own_models(self.models.get(clients, self.received(clients)))
