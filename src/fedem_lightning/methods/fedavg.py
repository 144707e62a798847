"""FedAvg, FedProx and Local: local SGD, with a weighted average of the models, or alone.

- FedAvg, and an ensemble of several. McMahan, Moore, Ramage, Hampson, Aguera y Arcas: "Communication-Efficient Learning
  of Deep Networks from Decentralized Data", AISTATS 2017, arXiv 1602.05629.
- FedProx. Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: "Federated Optimization in Heterogeneous Networks", MLSys 2020,
  arXiv 1812.06127. Algorithm 2.
- Local: every client trains alone. It is the baseline of all federated methods.
"""

from typing import Any

from torch import Tensor

from fedem_lightning.aggregate import Update
from fedem_lightning.data.block import Block
from fedem_lightning.data.federation import Federation
from fedem_lightning.data.randomness import share_of
from fedem_lightning.local.solver import near
from fedem_lightning.models.components import Backbone
from fedem_lightning.models.personal_models import OwnModels
from fedem_lightning.module.algorithm import FederatedAlgorithm
from fedem_lightning.settings.ranges import NotNegative, PositiveInt


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
