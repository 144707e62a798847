"""AFL: agnostic federated learning over clients.

Mohri, Sivek, Suresh: "Agnostic Federated Learning", ICML 2019, arXiv 1902.00146. Stochastic-AFL, Figure 1.
"""

import copy
from typing import Any

import torch
from torch import Tensor

from fedem_lightning.aggregation import Means, Sent
from fedem_lightning.algorithms.base import FederatedAlgorithm
from fedem_lightning.algorithms.checks import check_everybody_trains
from fedem_lightning.algorithms.facts import Facts
from fedem_lightning.data.block import Block
from fedem_lightning.data.federation import Federation
from fedem_lightning.history import Round
from fedem_lightning.models.client_store import Owner
from fedem_lightning.models.components import Backbone, model_state
from fedem_lightning.models.personal_models import SharedModels, client_means
from fedem_lightning.settings.ranges import NotNegative


class AFL(FederatedAlgorithm):
    """min_w max_lambda sum_t lambda_t F_t(w): the weights move towards the clients with the largest loss.

    Clients predict with the mean of w over all rounds. With one full batch a round (`local_steps=1`, a large
    `batch_size`) a round is the paper's gradient step; with more local steps w <- sum_t lambda_t w_t.

    Args:
        backbone, n_clients, options: see `FederatedAlgorithm`. `client_optimizer.lr` is gamma_w.
        weights_lr: gamma_lambda, 0 or more.

    """

    facts = Facts(
        released=("every client's loss, which moves its weight",),
        predicts_with_own_state=False,
        needs_sgd="adds up the clients' gradient steps, w - lr grad F_t",
    )
    weights: Tensor  # lambda [T]; the entries of the seen clients are on the simplex
    losses_of_clients: Tensor  # F_t [T], nats

    def __init__(self, backbone: Backbone, n_clients: int, weights_lr: NotNegative = 0.001, **options: Any) -> None:
        super().__init__(backbone, n_clients, n_components=1, **options)
        self.weights_lr = weights_lr
        self.states.declare("weights", torch.zeros(n_clients), Owner.SERVER, columns="lambda")
        self.states.declare("losses_of_clients", torch.zeros(n_clients), Owner.REPORTED)
        self.averaged = copy.deepcopy(self.components)  # w_bar

    def prepare(self, federation: Federation) -> None:
        """Checks that every client takes part in every round: the loss of each client moves lambda."""
        check_everybody_trains(self, federation)

    def initialize(self, federation: Federation) -> None:
        """Lambda is uniform over the clients that train."""
        seen = federation.seen.to(self.weights)
        self.weights.copy_(seen / seen.sum())

    def client_update(self, block: Block, round_: int) -> Sent:
        """The client's loss F_t(w) and the update w - gamma_w grad F_t(w), both at the received w."""
        t = block.clients
        loss = client_means(self.losses(block).to(self.parameter_dtype), block)[:, 0]
        self.losses_of_clients[t] = torch.where(loss.isfinite(), loss, self.losses_of_clients[t])
        models = self.local.solve(self.broadcast(t), block, round_)
        return Sent(models, self.weights[t])

    def server_update(self, means: Means | None, round_: Round) -> None:
        """w <- w - gamma_w sum_t lambda_t grad F_t; lambda <- projection of lambda + gamma_lambda F; w_bar = mean w."""
        super().server_update(means, round_)
        t = round_.cohort  # all clients that train
        self.weights[t] = project_on_simplex(self.weights[t] + self.weights_lr * self.losses_of_clients[t])
        for mean, current in zip(self.averaged, self.components, strict=True):
            newest, running = model_state(current), model_state(mean)
            for name, tensor in running.items():
                if tensor.is_floating_point():
                    tensor.add_((newest[name] - tensor) / (round_.number + 1))
                else:
                    tensor.copy_(newest[name])

    def personal_models(self, clients: Tensor) -> SharedModels:
        """All clients predict with w_bar."""
        alone = torch.ones(len(clients), 1, dtype=self.parameter_dtype, device=clients.device)
        return SharedModels(self.averaged, alone)


def project_on_simplex(v: Tensor) -> Tensor:
    """The point of {lambda >= 0, sum lambda = 1} nearest to v [T] (Duchi et al. 2008, Fig. 1)."""
    v = v - v.max()  # the same point, without large numbers
    u = v.sort(descending=True).values
    excess = (u.cumsum(0) - 1) / torch.arange(1, len(v) + 1, device=v.device)  # [T]
    threshold = excess[int((u > excess).sum()) - 1]
    return (v - threshold).clamp(min=0)
