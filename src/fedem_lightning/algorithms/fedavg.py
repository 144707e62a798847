"""FedAvg, FedProx and Local: local SGD, with a weighted average of the models, near the received one, or alone.

- FedAvg, and an ensemble of several. McMahan, Moore, Ramage, Hampson, Aguera y Arcas: "Communication-Efficient Learning
  of Deep Networks from Decentralized Data", AISTATS 2017, arXiv 1602.05629.
- FedProx. Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: "Federated Optimization in Heterogeneous Networks", MLSys 2020,
  arXiv 1812.06127. Algorithm 2.
- Local: every client trains alone. It is the baseline of all federated methods.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedem_lightning.aggregation import Means, Sent
from fedem_lightning.algorithms.base import FederatedAlgorithm
from fedem_lightning.algorithms.facts import Facts
from fedem_lightning.algorithms.sharing import Shared, mixture_of
from fedem_lightning.cohort import share_of
from fedem_lightning.data.block import Block
from fedem_lightning.data.federation import Federation
from fedem_lightning.history import Round
from fedem_lightning.local_solver import Gradient, Learner, LocalStep
from fedem_lightning.models.client_store import ClientStore
from fedem_lightning.models.components import Backbone
from fedem_lightning.models.personal_models import OwnModels
from fedem_lightning.network import Transmission
from fedem_lightning.settings.ranges import NotNegative, PositiveInt


class FedAvg(FederatedAlgorithm):
    """One global model: theta <- sum_t (n_t / n) theta_t over the cohort. Unseen clients predict with it unchanged."""

    facts = Facts(released=())

    def __init__(self, backbone: Backbone, n_clients: int, **options: Any) -> None:
        super().__init__(backbone, n_clients, n_components=1, **options)

    def client_update(self, block: Block, round_: int) -> Sent:
        """theta_t = local_sgd(theta), with weight n_t in the average."""
        return Sent(self.local.solve(self.broadcast(block.clients), block, round_), block.counts())


class FedAvgEnsemble(FederatedAlgorithm):
    """M FedAvgs from different random networks, on the same cohorts and batches; clients predict with their mean.

    It mixes probabilities with equal weights. So it is the control for mixtures: it costs what FedEM costs, without
    responsibilities and without personal weights. With M = 1 it is FedAvg.

    Args:
        backbone, n_clients, options: see `FederatedAlgorithm`.
        n_components: M.
        shared: what the networks have in common, see `Shared`; their losses count 1 / M each. None: nothing.

    """

    facts = Facts(released=())

    def __init__(
        self,
        backbone: Backbone,
        n_clients: int,
        n_components: PositiveInt = 3,
        shared: Shared = None,
        **options: Any,
    ) -> None:
        super().__init__(backbone, n_clients, n_components, **options)
        self.mixture = mixture_of(self, shared)

    def initialize(self, federation: Federation) -> None:
        """Networks that share parameters start with those of the first."""
        super().initialize(federation)
        self.mixture.tie()

    def client_update(self, block: Block, round_: int) -> Sent:
        """theta_{t, m} = local_sgd(theta_m) for every m, with weight n_t in the average."""
        shape = len(block.index), len(self.components)
        every = self.mixture.even(torch.ones(shape, dtype=self.parameter_dtype, device=block.index.device))
        return Sent(self.mixture.solve(block, round_, every), weights=block.counts())

    def server_update(self, means: Means | None, round_: Round) -> None:
        """theta_m <- the mean."""
        super().server_update(means, round_)
        self.mixture.tie()  # the last bits of a sum may differ

    def transmission(self, clients: Tensor) -> Transmission:
        """M models each way; of shared parameters one."""
        return self.mixture.transmission(len(self.components))


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


class Local(FederatedAlgorithm):
    """theta_t <- local_sgd(theta_t), without a server. All clients start from the same model.

    An unseen client trains alone too, for the mean number of rounds of a seen client, rounded.
    """

    facts = Facts(released=(), uses_server_optimizer=False, sends_updates=False)

    def __init__(self, backbone: Backbone, n_clients: int, **options: Any) -> None:
        super().__init__(backbone, n_clients, n_components=1, **options)
        self.models = ClientStore.of_components(n_clients, self.components, alone=True)  # rows [1, ...]

    def transmission(self, clients: Tensor) -> Transmission:
        """Nothing is sent."""
        return Transmission(down=0, up=0)

    def client_update(self, block: Block, round_: int) -> None:
        """theta_t = local_sgd(theta_t)."""
        self.models.write(block.clients, self.local.solve(self.models.read(block.clients), block, round_))

    def unmoved(self, clients: Tensor, n_train: Tensor) -> None:
        """Nothing."""

    def personal_models(self, clients: Tensor) -> OwnModels:
        """Each client predicts with its own model."""
        return self.own_models(self.models.read(clients))

    def personalize_clients(self, federation: Federation, clients: Tensor) -> None:
        """Trains unseen clients from the common start, in rounds spread over the run and its learning-rate schedule.

        They are as many as those in which a seen client was drawn and met the deadline, on average, rounded.
        """
        n_seen, done = len(federation.clients()), self.statistics.rounds
        taken = round((done * share_of(self.participation, n_seen) - self.statistics.stragglers) / n_seen)
        self.models.write(clients, self.broadcast(clients))
        for block in self.local.blocks(federation, clients):
            for i in range(taken):
                self.client_update(block, i * done // taken)
