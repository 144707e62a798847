"""FedAvg, FedProx, SCAFFOLD and Local: local SGD, with a weighted average of the models, or alone.

- FedAvg, and an ensemble of several. McMahan, Moore, Ramage, Hampson, Aguera y Arcas: "Communication-Efficient Learning
  of Deep Networks from Decentralized Data", AISTATS 2017, arXiv 1602.05629.
- FedProx. Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: "Federated Optimization in Heterogeneous Networks", MLSys 2020,
  arXiv 1812.06127. Algorithm 2.
- SCAFFOLD. Karimireddy, Kale, Mohri, Reddi, Stich, Suresh: "SCAFFOLD: Stochastic Controlled Averaging for Federated
  Learning", ICML 2020, arXiv 1910.06378. Algorithm 1, Option II. Control variates correct the drift of local steps.
- Local: every client trains alone. It is the baseline of all federated methods.
"""

from typing import Any

import torch
from torch import Tensor

from fedem_lightning.aggregate import Means, Models, Update
from fedem_lightning.data.federation import Block, Federation
from fedem_lightning.data.randomness import share_of
from fedem_lightning.local.solver import Gradient, Learner, LocalStep, Step, near
from fedem_lightning.models.components import Backbone
from fedem_lightning.models.personal_models import OwnModels
from fedem_lightning.models.tensors import along
from fedem_lightning.module.algorithm import FederatedAlgorithm
from fedem_lightning.settings.ranges import NotNegative, PositiveInt
from fedem_lightning.state.history import Round


class FedAvg(FederatedAlgorithm):
    """One global model: theta <- sum_t (n_t / n) theta_t over the cohort. Unseen clients predict with it unchanged."""

    private_ok = True

    def __init__(self, backbone: Backbone, n_clients: int, **options: Any) -> None:
        super().__init__(backbone, n_clients, n_components=1, **options)

    def client_update(self, batch: Block, round_: int) -> Update:
        """theta_t = local_sgd(theta), with weight n_t in the average."""
        w = self.received(batch.clients)  # [C, 1, ...]
        return Update(self.local_sgd(w, batch, round_), batch.counts(), start=w)


class FedAvgEnsemble(FederatedAlgorithm):
    """M FedAvgs from different random networks, on the same cohorts and batches; clients predict with their mean.

    It mixes probabilities with equal weights. So it is the control for mixtures: it costs what FedEM costs, without
    responsibilities and without personal weights. With M = 1 it is FedAvg.

    Args:
        n_components: M.

    """

    private_ok = True

    def __init__(
        self,
        backbone: Backbone,
        n_clients: int,
        n_components: PositiveInt = 3,
        **options: Any,
    ) -> None:
        super().__init__(backbone, n_clients, n_components, **options)

    def client_update(self, batch: Block, round_: int) -> Update:
        """theta_{t, m} = local_sgd(theta_m) for every m, with weight n_t in the average."""
        theta = self.received(batch.clients)  # [C, M, ...]
        return Update(self.local_sgd(theta, batch, round_), batch.counts(), start=theta)


class FedProx(FederatedAlgorithm):
    """Clients minimise F_t(theta) + (mu / 2) |theta - theta^{k-1}|^2; the server averages. With mu = 0 it is FedAvg.

    Args:
        mu: weight of the proximal term, 0 or more; with plain SGD keep lr mu < 2.

    """

    private_ok = True

    def __init__(self, backbone: Backbone, n_clients: int, mu: NotNegative = 0.1, **options: Any) -> None:
        super().__init__(backbone, n_clients, n_components=1, **options)
        self.mu = mu

    def client_update(self, batch: Block, round_: int) -> Update:
        """theta_t ~ argmin F_t(theta) + (mu / 2) |theta - theta^{k-1}|^2, by local SGD."""
        theta = self.received(batch.clients)
        return Update(self.local_sgd(theta, batch, round_, step=near(theta, self.mu)), batch.counts(), start=theta)


class Local(FederatedAlgorithm):
    """theta_t <- local_sgd(theta_t), without a server. All clients start from the same model.

    An unseen client trains alone too, for the mean number of rounds of a seen client, rounded.
    """

    private_ok = True
    sends_models = False

    def __init__(self, backbone: Backbone, n_clients: int, **options: Any) -> None:
        super().__init__(backbone, n_clients, n_components=1, **options)
        self.models = self.per_client(self.components)  # [1, ...]

    def client_update(self, batch: Block, round_: int) -> None:
        """theta_t = local_sgd(theta_t)."""
        self.models[batch.clients] = self.local_sgd(self.models[batch.clients], batch, round_)

    def personal_models(self, clients: Tensor) -> OwnModels:
        """Each client predicts with its own model."""
        return self.own_models(self.models[clients])

    def personalize_clients(self, data: Federation, clients: Tensor) -> None:
        """Trains unseen clients from the common start, in rounds spread over the run and its learning-rate schedule.

        They are as many as those in which a seen client was drawn, on average, rounded.
        """
        n_seen, done = len(data.clients()), self.statistics.rounds
        taken = round(done * share_of(self.participation, n_seen) / n_seen)
        self.models[clients] = self.received(clients)
        for batch in self.batches(data, clients):
            for i in range(taken):
                self.client_update(batch, i * done // taken)


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
