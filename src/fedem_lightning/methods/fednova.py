"""FedNova: clients may take different numbers of local steps; the server averages their normalised directions.

Wang, Liu, Liang, Joshi, Poor: "Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization",
NeurIPS 2020, arXiv 2007.07481.
"""

from typing import Any, Literal

import torch

from fedem_lightning.aggregate import Means, Update
from fedem_lightning.data.federation import Block
from fedem_lightning.local.optimizers import ClientSGD
from fedem_lightning.local.solver import Gradient, Learner, ProximalStep, Step
from fedem_lightning.models.components import Backbone, stacked_state
from fedem_lightning.models.tensors import along
from fedem_lightning.module.algorithm import FederatedAlgorithm
from fedem_lightning.settings.errors import require
from fedem_lightning.settings.ranges import NotNegative
from fedem_lightning.state.history import Round


class FedNova(FederatedAlgorithm):
    """w <- w - tau_eff sum_t p_t (w - theta_t) / a_t, with p_t = n_t / sum n over the cohort.

    a_t is the 1-norm of the weights that client t's gradients have in w - theta_t, in units of the rate: tau_t, its
    number of local steps, for plain SGD; more with momentum rho, less with a proximal term mu:

        (tau - rho (1 - rho^tau) / (1 - rho)) / (1 - rho),    (1 - (1 - eta mu)^tau) / (eta mu)

    tau_eff is the mean of tau_t with weights p_t. Unseen clients have w.

    Args:
        backbone, n_clients, options: see `FederatedAlgorithm`. Momentum begins anew in each round, whatever
            `client_optimizer.state` says. Weight decay and a limit of the gradient's length are parts of the gradient.
        mu: weight of a proximal term (mu / 2) |theta - w|^2, without momentum; eta mu < 1.
        effective: "steps": tau_eff is the mean of tau_t. "weights": that of a_t, so that equal steps are FedAvg with
            momentum, too.

    UserError: the weights of the gradients are not known for the local solver.

    """

    needs_sgd = True

    def __init__(
        self,
        backbone: Backbone,
        n_clients: int,
        mu: NotNegative = 0.0,
        effective: Literal["steps", "weights"] = "steps",
        **options: Any,
    ) -> None:
        super().__init__(backbone, n_clients, n_components=1, **options)
        self.mu, self.effective, sgd = mu, effective, self.local.optimizer
        momentum = sgd.momentum if isinstance(sgd, ClientSGD) else 0.0
        key = "algorithm.client_optimizer"
        require(not (mu and momentum), f"{key}.momentum: FedNova with mu needs steps without it, got {momentum:g}")
        require(sgd.lr * mu < 1, f"algorithm.mu: expected less than 1 / lr, {1 / sgd.lr:g}, got {mu:g}")

    def client_update(self, batch: Block, round_: int) -> Update:
        """The client sends w - (w - theta_t) / a_t, and tau_t, of which the server takes means with weights n_t."""
        w = self.received(batch.clients)  # [C, 1, ...]
        zero = next(iter(w.values())).new_zeros(len(batch.clients), 1)
        count = {name: zero.clone() for name in ("steps", "weights", "momentum")}
        step = Step(CountedStep, {"anchor": self.params_of(w), "count": count}, mu=self.mu)
        theta = self.local_sgd(w, batch, round_, step=step, state=None)
        count = step.after["count"]
        a = torch.where(count["steps"] > 0, count["weights"], 1.0)  # a_t [C, 1]
        scaled = {name: w[name] + (rows - w[name]) / along(a, rows) for name, rows in self.params_of(theta).items()}
        return Update(theta | scaled, batch.counts(), start=w, extras={"tau": count[self.effective]})

    def server_update(self, means: Means | None, round_: Round) -> None:
        """w <- w + tau_eff times the mean of (theta_t - w) / a_t; buffers become their plain mean."""
        if means is not None:
            w, tau = self.params_of(stacked_state(self.components)), means.extras["tau"]  # [1, ...], [1, 1]
            moved = {n: row + along(tau[:, 0], row) * (means.models[n] - row) for n, row in w.items()}
            means = means._replace(models=means.models | moved)
        super().server_update(means, round_)


class CountedStep(ProximalStep):
    """A proximal step; the learner's "count" has tau, a, and the momentum b that a gradient of 1 in each step makes."""

    def advance(self, learner: Learner, gradient: Gradient) -> None:
        """b <- rho b + 1 - eta mu a, a <- a + b: the step itself with a gradient of 1, and -a for (theta - w) / eta."""
        super().advance(learner, gradient)
        assert isinstance(self.optimizer, ClientSGD)
        steps, a, b = (learner["count"][name] for name in ("steps", "weights", "momentum"))
        steps += 1
        b.mul_(self.optimizer.momentum).add_(1 - self.lr * self.mu * a)
        a += b
