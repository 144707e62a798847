"""Ditto, pFedMe and Per-FedAvg: every client has its own model, near the global one.

- Ditto. Li, Hu, Beirami, Smith: "Ditto: Fair and Robust Federated Learning Through Personalization", ICML 2021, arXiv
  2012.04221. Algorithm 1; the global objective is FedAvg's. A penalty holds the own model near the global one.
- pFedMe. Dinh, Tran, Nguyen: "Personalized Federated Learning with Moreau Envelopes", NeurIPS 2020, arXiv 2006.08848.
  Algorithm 1; the server's beta is the learning rate of the server optimiser.
- Per-FedAvg. Fallah, Mokhtari, Ozdaglar: "Personalized Federated Learning with Theoretical Guarantees: A Model-Agnostic
  Meta-Learning Approach", NeurIPS 2020, arXiv 2002.07948. Algorithm 1, with the first-order approximation (FO) of
  Section 5. The own model is one gradient step away.
"""

import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedem_lightning.aggregate import Update
from fedem_lightning.data.federation import Block, Federation
from fedem_lightning.local.solver import Gradient, Learner, LocalStep, Step, near
from fedem_lightning.models.components import Backbone
from fedem_lightning.models.personal_models import OwnModels
from fedem_lightning.models.tensors import along
from fedem_lightning.module.algorithm import FederatedAlgorithm
from fedem_lightning.settings.ranges import NotNegative, Positive, PositiveInt


class Ditto(FederatedAlgorithm):
    """w is FedAvg's; client t predicts with v_t ~ argmin F_t(v) + (lambda / 2) |v - w|^2.

    An unseen client takes one round of v's steps from the newest w.

    Args:
        penalty: lambda; with 0 every client trains v_t alone. With plain SGD keep lr lambda < 2.
        own_epochs: passes over the samples in which v_t moves; None: as many as w's.

    """

    private_ok = True

    def __init__(
        self,
        backbone: Backbone,
        n_clients: int,
        penalty: NotNegative = 0.1,
        own_epochs: PositiveInt | None = None,
        **options: Any,
    ) -> None:
        super().__init__(backbone, n_clients, n_components=1, **options)
        self.penalty, self.own_epochs = penalty, own_epochs
        self.own = self.per_client(self.components)  # v_t [1, ...]
        self.own_momentum = self.optimizer_state()  # of v_t

    def client_update(self, batch: Block, round_: int) -> Update:
        """v_t <- v_t - eta (grad F_t(v_t) + lambda (v_t - w)), s times; then local steps of w, which is sent."""
        self.train_own(batch, round_)
        w = self.received(batch.clients)  # [C, 1, ...]
        return Update(self.local_sgd(w, batch, round_), batch.counts(), start=w)

    def train_own(self, batch: Block, round_: int) -> None:
        """The steps of v_t, held near the w that the client received this round."""
        t, w = batch.clients, self.received(batch.clients)
        options: dict[str, Any] = {"epochs": self.own_epochs, "state": self.own_momentum}
        self.own[t] = self.local_sgd(self.own[t], batch, round_, step=near(w, self.penalty), **options)

    def personal_models(self, clients: Tensor) -> OwnModels:
        """v_t; a client that never took part has w."""
        return self.own_models(self.own.get(clients, self.received(clients)))

    def personalize_clients(self, data: Federation, clients: Tensor) -> None:
        """From v = w, one round of v's steps."""
        self.own[clients] = self.received(clients)
        for batch in self.batches(data, clients):
            self.train_own(batch, self.statistics.rounds)


@dataclass(frozen=True)
class MoreauStep(LocalStep):
    """A local step: theta ~ argmin f(theta; batch) + (lambda / 2) |theta - w|^2, then w <- w - eta lambda (w - theta).

    The learner's "params" are theta, its "anchor" is w. The client optimiser moves theta, at its rate eta_p.
    """

    penalty: float  # lambda
    outer_lr: float  # eta
    inner_steps: int

    @property
    def gradients(self) -> float:
        """One for each inner step."""
        return self.inner_steps

    def advance(self, learner: Learner, gradient: Gradient) -> None:
        """Alg. 1, lines 6-8, on one batch."""
        theta, w = list(learner["params"].values()), list(learner["anchor"].values())
        for _ in range(self.inner_steps):
            grads = torch._foreach_add(gradient(learner), torch._foreach_sub(theta, w), alpha=self.penalty)
            self.optimizer.descend(learner, list(grads), self.lr)
        torch._foreach_add_(w, torch._foreach_sub(theta, w), alpha=self.outer_lr * self.penalty)


class PFedMe(FederatedAlgorithm):
    """Each client keeps the personal model theta_t = prox(w), and sends w_t, which descends its loss's Moreau envelope.

    The personal model theta and the client's copy w of the global model are different vectors; a client predicts with
    theta. Only the cohort updates. Unseen clients make one local update from the global model.

    Args:
        backbone, n_clients, options: see `FederatedAlgorithm`. `client_optimizer.lr` is eta_p; `local_steps` is R, by
            default the batches of an epoch; the server's learning rate is beta.
        penalty: lambda.
        outer_lr: eta, the rate of w; keep eta lambda < 1. At 1 each batch sets w to theta, which is local SGD with
            `inner_steps` steps a batch, and there is no personal model.
        inner_steps: gradient steps that approximate the proximal point, for each batch.

    """

    private_ok = True

    def __init__(
        self,
        backbone: Backbone,
        n_clients: int,
        penalty: NotNegative = 15.0,
        outer_lr: Positive = 0.005,
        inner_steps: PositiveInt = 5,
        **options: Any,
    ) -> None:
        super().__init__(backbone, n_clients, n_components=1, **options)
        if outer_lr * penalty >= 1:
            product = f"eta lambda (outer_lr times penalty) is {outer_lr * penalty:g}, expected less than 1"
            warnings.warn(f"algorithm.outer_lr: {product}; at 1 it is local SGD, above it overshoots", stacklevel=2)
        self.penalty, self.outer_lr, self.inner_steps = penalty, outer_lr, inner_steps
        self.models = self.per_client(self.components)  # theta_t [1, ...]

    def client_update(self, batch: Block, round_: int) -> Update:
        """The client takes R steps of `MoreauStep` from theta = w = w^{k-1}; it keeps theta and sends w."""
        w = self.received(batch.clients)  # [C, 1, ...]
        numbers: dict[str, Any] = {"penalty": self.penalty, "outer_lr": self.outer_lr, "inner_steps": self.inner_steps}
        step = Step(MoreauStep, {"anchor": self.params_of(w)}, **numbers)
        self.models[batch.clients] = theta = self.local_sgd(w, batch, round_, step=step)
        return Update(theta | step.after["anchor"], batch.counts(), start=w)

    def personal_models(self, clients: Tensor) -> OwnModels:
        """Client t predicts with theta_t; a client that never took part has the global model."""
        return self.own_models(self.models.get(clients, self.received(clients)))

    def personalize_clients(self, data: Federation, clients: Tensor) -> None:
        """An unseen client makes one local update from the global model (FedEM, J.3)."""
        self.models[clients] = self.received(clients)
        for batch in self.batches(data, clients):
            self.client_update(batch, self.statistics.rounds)


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
