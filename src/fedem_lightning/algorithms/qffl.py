"""q-FFL: fair resource allocation, solved by q-FedAvg.

Li, Sanjabi, Beirami, Smith: "Fair Resource Allocation in Federated Learning", ICLR 2020, arXiv 1905.10497. Algorithm 2.
"""

from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor

from fedem_lightning.aggregation import Means, Sent
from fedem_lightning.algorithms.base import FederatedAlgorithm
from fedem_lightning.algorithms.facts import Facts
from fedem_lightning.cohort import draw_cohort
from fedem_lightning.data.block import Block
from fedem_lightning.data.federation import Federation
from fedem_lightning.history import Round
from fedem_lightning.models.client_store import Owner
from fedem_lightning.models.components import Backbone
from fedem_lightning.models.personal_models import client_means
from fedem_lightning.settings.ranges import NotNegative


class QFFL(FederatedAlgorithm):
    """min_w sum_t p_t / (q + 1) F_t(w)^{q+1}: with larger q clients with high losses count more; AFL is the limit.

    Args:
        backbone, n_clients, options: see `FederatedAlgorithm`. L is 1 / `client_optimizer.lr`.
        q: 0 or more; at 0 the server takes the plain mean of the clients' models.
        sampling: sampling weights of a cohort: "by_size", p_t = n_t / n, or "uniform".

    """

    facts = Facts(
        released=("sums of losses and of lengths of updates",),
        needs_sgd="reads gradients off its updates, (w - w_t) / lr",
    )
    reference: Tensor  # [], the clients' mean loss in the last round; F is divided by it, so that F^q stays finite

    def __init__(
        self,
        backbone: Backbone,
        n_clients: int,
        q: NotNegative = 1.0,
        sampling: Literal["by_size", "uniform"] = "by_size",
        **options: Any,
    ) -> None:
        super().__init__(backbone, n_clients, n_components=1, **options)
        self.q = q
        self.facts = replace(self.facts, samples_by_size=sampling == "by_size")
        self.states.declare("reference", torch.ones(()), Owner.SERVER)

    def initialize(self, federation: Federation) -> None:
        """Sets the first reference, a scale: the mean loss of the first cohort, or 1 if the samples are elsewhere."""
        if self.remote is not None:
            return
        losses = [self._loss(block) for block in self.local.blocks(federation, draw_cohort(self, federation, 0))]
        mean = torch.cat(losses).nan_to_num(1.0, 1.0).mean() / federation.task.n_targets
        self.reference.copy_(mean + 1e-10)

    def client_update(self, block: Block, round_: int) -> Sent:
        """Delta_t = F_t^q Dw_t and h_t = q F_t^{q-1} |Dw_t|^2 + L F_t^q, where Dw_t = L (w - w_t)."""
        w, smoothness = self.broadcast(block.clients), 1.0 / self.local.lr_at(round_)  # L
        loss = self._loss(block) / block.federation.task.n_targets + 1e-10  # F_t(w)  [C]
        w_t = self.local.solve(w, block, round_)  # [C, 1, ...]
        relative = loss / self.reference
        power = relative**self.q  # Delta_t and h_t for all t get the same factor, which cancels
        sent, squared_norm = dict(w_t), torch.zeros_like(loss)
        for name, received in self.params_of(w).items():
            dw = smoothness * (received - w_t[name])
            squared_norm += dw.flatten(1).square().sum(dim=1)
            sent[name] = power.view(-1, *[1] * (dw.ndim - 1)) * dw  # Delta_t
        h = self.q * relative ** (self.q - 1) / self.reference * squared_norm + smoothness * power
        extras = {"h": h.unsqueeze(1), "loss": loss.unsqueeze(1)}  # [C, 1]
        return Sent(sent, torch.ones_like(loss), extras=extras)

    def _loss(self, block: Block) -> Tensor:
        """The mean loss of each client's samples at w, [C]."""
        return client_means(self.losses(block).to(self.parameter_dtype), block)[:, 0]

    def unmoved(self, clients: Tensor, n_train: Tensor) -> Sent:
        """Zeros in place of parameters, because clients send Delta_t, not models; h_t and F_t are not negative."""
        w, none = self.broadcast(clients), torch.zeros(len(clients), 1, dtype=self.parameter_dtype)
        zeros = {name: torch.zeros_like(received) for name, received in self.params_of(w).items()}
        return Sent(w | zeros, torch.ones_like(clients), extras={"h": none, "loss": none})

    def server_update(self, means: Means | None, round_: Round) -> None:
        """w <- w - sum_t Delta_t / sum_t h_t; buffers become their mean."""
        if means is None:
            return self.server.step()
        self.server.take_buffers(means)
        h = means.extras["h"][0, 0]
        self.reference.copy_(means.extras["loss"][0, 0])
        return self.server.step([{name: delta[0] / h for name, delta in self.params_of(means.models).items()}])
