"""Per-FedAvg: a model from which one gradient step leads to a good personal model.

Fallah, Mokhtari, Ozdaglar: "Personalized Federated Learning with Theoretical Guarantees: A Model-Agnostic Meta-Learning
Approach", NeurIPS 2020, arXiv 2002.07948. Algorithm 1, with the approximations FO and HF of Section 5.
"""

from dataclasses import dataclass
from typing import Any, Literal

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
from fedem_lightning.settings.ranges import NotNegative, Positive


@dataclass(frozen=True)
class MetaStep(LocalStep):
    """A step on f(w - alpha grad f(w; D); D'), its Hessian left out (FO), or its product by differences on D'' (HF).

    D, D' and D'' are disjoint parts of the batch, a half each (FO) or a third each (HF).
    """

    inner_lr: float  # alpha
    delta: float | None  # None: FO

    @property
    def gradients(self) -> float:
        """Two on half batches (FO), or four on thirds (HF)."""
        return 1 if self.delta is None else 4 / 3

    def advance(self, learner: Learner, gradient: Gradient) -> None:
        """Alg. 1, lines 6-8."""
        parts = 2 if self.delta is None else 3
        meta = gradient(moved(learner, gradient(learner, 0, parts), -self.inner_lr), 1, parts)  # g' at w~
        if self.delta is not None:
            up, down = (gradient(moved(learner, meta, d), 2, parts) for d in (self.delta, -self.delta))
            product = torch._foreach_div(torch._foreach_sub(up, down), 2 * self.delta)  # d, about Hessian times g'
            meta = list(torch._foreach_sub(meta, product, alpha=self.inner_lr))
        self.optimizer.descend(learner, meta, self.lr)


def moved(learner: Learner, direction: list[Tensor], by: float) -> Learner:
    """The learner at w + by * direction."""
    params = torch._foreach_add(list(learner["params"].values()), direction, alpha=by)
    return {"params": dict(zip(learner["params"], params, strict=True)), "buffers": learner["buffers"]}


class PerFedAvg(FederatedAlgorithm):
    """min over w of the mean of F_t(w - alpha grad F_t(w)); client t predicts with w - alpha grad F_t(w).

    Every client, seen or unseen, takes that step from the newest w before it is scored, on all of its training samples.
    Clients of the cohort count alike, as in the paper. The last batch of a pass may be too short to be cut into parts:
    then its gradient is 0.

    Args:
        backbone, n_clients, options: see `FederatedAlgorithm`. `client_optimizer.lr` is beta.
        inner_lr: alpha.
        hessian: "first_order" leaves the Hessian out (FO); "differences" (HF) takes two gradients more in each step.
        delta: of the differences.

    """

    private_ok = True
    personalizes_seen = True

    def __init__(
        self,
        backbone: Backbone,
        n_clients: int,
        inner_lr: NotNegative = 0.01,
        hessian: Literal["first_order", "differences"] = "first_order",
        delta: Positive = 1e-3,
        **options: Any,
    ) -> None:
        super().__init__(backbone, n_clients, n_components=1, **options)
        self.inner_lr = inner_lr
        self.delta = delta if hessian == "differences" else None
        self.models = self.per_client(self.components)  # [1, ...]

    def client_update(self, batch: Block, round_: int) -> Update:
        """Local steps of the meta-gradient."""
        w = self.received(batch.clients)  # [C, 1, ...]
        models = self.local_sgd(w, batch, round_, step=Step(MetaStep, inner_lr=self.inner_lr, delta=self.delta))
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
