"""SCAFFOLD: control variates correct the drift of local steps.

Karimireddy, Kale, Mohri, Reddi, Stich, Suresh: "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning", ICML
2020, arXiv 1910.06378. Algorithm 1, Option II.
"""

from typing import Any

import torch
from torch import Tensor

from fedem_lightning.aggregate import Means, Models, Update
from fedem_lightning.data.block import Block
from fedem_lightning.local.solver import Gradient, Learner, LocalStep, Step
from fedem_lightning.models.components import Backbone
from fedem_lightning.models.tensors import along
from fedem_lightning.module.algorithm import FederatedAlgorithm
from fedem_lightning.state.history import Round


class ControlledStep(LocalStep):
    """A local step y <- y - eta (g - c_t + c); the learner has "correction" c - c_t, "total" and "steps"."""

    def advance(self, learner: Learner, gradient: Gradient) -> None:
        """Line 10; it also sums the gradients g."""
        grads = gradient(learner)
        torch._foreach_add_(list(learner["total"].values()), grads)
        learner["steps"]["steps"] += 1
        self.optimizer.descend(learner, list(torch._foreach_add(grads, list(learner["correction"].values()))), self.lr)


class Scaffold(FederatedAlgorithm):
    """Clients step along g - c_t + c; c_t estimates client t's gradient, c the mean over all clients.

    With plain SGD the new c_t of Option II, c_t - c + (w - y) / (J eta), is the mean of the gradients of the J local
    steps. This mean is computed here, so that it is right with momentum, too. Unseen clients have w.

    Args:
        backbone, n_clients, options: see `FederatedAlgorithm`. Clients of the cohort count alike, as in the paper. The
            server's eta_g is the learning rate of the server optimiser.

    """

    needs_sgd = True  # corrected gradients cancel drift only in steps along the gradient
    control: Tensor  # c, [D]

    def __init__(self, backbone: Backbone, n_clients: int, **options: Any) -> None:
        super().__init__(backbone, n_clients, n_components=1, **options)
        zeros = {name: torch.zeros_like(p) for name, p in self.params_of(self.received(torch.zeros(1))).items()}
        self.controls = self.per_client({name: p[0] for name, p in zeros.items()})  # c_t [1, ...]
        self.register_buffer("control", flat(zeros)[0])

    def client_update(self, batch: Block, round_: int) -> Update:
        """Lines 7-13: the client keeps c_t, and sends y and the change of c_t."""
        t, w = batch.clients, self.received(batch.clients)
        old = self.controls[t]  # c_t [C, 1, ...]
        c = self.control.split([rows[0].numel() for rows in old.values()])
        correction = {n: row.view_as(rows[0]) - rows for row, (n, rows) in zip(c, old.items(), strict=True)}
        zeros = {name: torch.zeros_like(rows) for name, rows in old.items()}
        steps = {"steps": self.control.new_zeros(len(t), 1)}
        step = Step(ControlledStep, {"correction": correction, "total": zeros, "steps": steps})
        y = self.local_sgd(w, batch, round_, step=step)
        n_steps = step.after["steps"]["steps"].clamp(min=1)  # J, [C, 1]
        self.controls[t] = new = {name: g / along(n_steps, g) for name, g in step.after["total"].items()}  # line 12
        change = flat({name: rows - old[name] for name, rows in new.items()})  # [C, D]
        receives = w | {"control": self.control.expand(len(t), -1)}
        return Update(y, (batch.counts() > 0).long(), start=w, extras={"control": change}, receives=receives)

    def server_update(self, means: Means | None, round_: Round) -> None:
        """Lines 16-17: w takes the mean of y; c <- c + |S| / T times the mean change of c_t."""
        if means is not None:
            share = float(means.weight[0]) / len(round_.federation.clients())
            self.control += share * means.extras["control"][0]
        super().server_update(means, round_)


def flat(models: Models) -> Tensor:
    """Models [C, 1, ...] as rows [C, D]."""
    return torch.cat([rows.flatten(1) for rows in models.values()], dim=1)
