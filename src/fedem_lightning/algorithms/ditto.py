"""Ditto: every client has its own model, which a penalty holds near the global one.

Li, Hu, Beirami, Smith: "Ditto: Fair and Robust Federated Learning Through Personalization", ICML 2021, arXiv
2012.04221. Algorithm 1; the global objective is FedAvg's.
"""

from typing import Any

from torch import Tensor

from fedem_lightning.aggregation import Sent
from fedem_lightning.algorithms.base import FederatedAlgorithm
from fedem_lightning.algorithms.facts import Facts
from fedem_lightning.algorithms.fedavg import ProximalStep
from fedem_lightning.data.block import Block
from fedem_lightning.data.federation import Federation
from fedem_lightning.models.client_store import ClientStore
from fedem_lightning.models.components import Backbone
from fedem_lightning.models.personal_models import OwnModels
from fedem_lightning.settings.ranges import NotNegative, PositiveInt


class Ditto(FederatedAlgorithm):
    """w is FedAvg's; client t predicts with v_t ~ argmin F_t(v) + (lambda / 2) |v - w|^2.

    An unseen client takes one round of v's steps from the newest w.

    Args:
        backbone, n_clients, options: see `FederatedAlgorithm`.
        penalty: lambda; with 0 every client trains v_t alone. With plain SGD keep lr lambda < 2.
        own_epochs: passes over the samples in which v_t moves; None: as many as w's.

    """

    facts = Facts(released=())

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
        self.own = ClientStore.of_components(n_clients, self.components, alone=True)  # v_t, rows [1, ...]
        self.own_momentum = self.local.momentum_store()  # of v_t

    def client_update(self, block: Block, round_: int) -> Sent:
        """v_t <- v_t - eta (grad F_t(v_t) + lambda (v_t - w)), s times; then local steps of w, which is sent."""
        self.train_own(block, round_)
        return Sent(self.local.solve(self.broadcast(block.clients), block, round_), block.counts())

    def train_own(self, block: Block, round_: int) -> None:
        """The steps of v_t, held near the w that the client received this round."""
        t, w = block.clients, self.broadcast(block.clients)  # [C, 1, ...]
        step, anchor = self.local.step(block, round_, ProximalStep, mu=self.penalty), {"anchor": self.params_of(w)}
        options: dict[str, Any] = {"epochs": self.own_epochs, "momentum": self.own_momentum, "quiet": True}
        v = self.local.solve(self.own.read(t), block, round_, step=step, extra=anchor, **options)
        self.own.write_finite(t, v)

    def local_work(self, federation: Federation, clients: Tensor, round_: int) -> Tensor:
        """Gradients at w and at v."""
        shared = super().local_work(federation, clients, round_)
        if self.own_epochs is None:
            return 2 * shared
        return shared + self.own_epochs * federation.splits["train"].counts(clients)

    def personal_models(self, clients: Tensor) -> OwnModels:
        """v_t; a client that never took part has w."""
        return self.own_models(self.own.read(clients, self.broadcast(clients)))

    def personalize_clients(self, federation: Federation, clients: Tensor) -> None:
        """From v = w, one round of v's steps."""
        self.own.write(clients, self.broadcast(clients))
        for block in self.local.blocks(federation, clients):
            self.train_own(block, self.statistics.rounds)
