"""FedProx: FedAvg with a proximal term, which keeps the local model near the model received.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: "Federated Optimization in Heterogeneous Networks", MLSys 2020,
arXiv 1812.06127. Algorithm 2.
"""

from dataclasses import dataclass
from typing import Any

import torch

from fedem_lightning.aggregation import Sent
from fedem_lightning.algorithms.base import FederatedAlgorithm
from fedem_lightning.algorithms.facts import Facts
from fedem_lightning.data.federation import Block
from fedem_lightning.local_solver import Gradient, Learner, LocalStep
from fedem_lightning.models.components import Backbone
from fedem_lightning.settings.ranges import NotNegative


@dataclass(frozen=True)
class ProximalStep(LocalStep):
    """A local step on F(theta) + (mu / 2) |theta - anchor|^2; the learner has "anchor" beside "params"."""

    mu: float

    def advance(self, learner: Learner, gradient: Gradient) -> None:
        """The gradient is g + mu (theta - anchor)."""
        away = torch._foreach_sub(list(learner["params"].values()), list(learner["anchor"].values()))
        grads = torch._foreach_add(gradient(learner), away, alpha=self.mu)
        self.optimizer.descend(learner, list(grads), self.lr)


class FedProx(FederatedAlgorithm):
    """Clients minimise F_t(theta) + (mu / 2) |theta - theta^{k-1}|^2; the server averages. With mu = 0 it is FedAvg.

    Args:
        backbone, n_clients, options: see `FederatedAlgorithm`.
        mu: weight of the proximal term, 0 or more; with plain SGD keep lr mu < 2.

    """

    facts = Facts(released=())

    def __init__(self, backbone: Backbone, n_clients: int, mu: NotNegative = 0.1, **options: Any) -> None:
        super().__init__(backbone, n_clients, n_components=1, **options)
        self.mu = mu

    def client_update(self, block: Block, round_: int) -> Sent:
        """theta_t ~ argmin F_t(theta) + (mu / 2) |theta - theta^{k-1}|^2, by local SGD."""
        theta = self.broadcast(block.clients)
        step = self.local.step(block, round_, ProximalStep, mu=self.mu)
        models = self.local.solve(theta, block, round_, step=step, extra={"anchor": self.params_of(theta)})
        return Sent(models, block.counts())
