"""HypCluster, in which clients choose among q hypotheses, and Mapper, in which they interpolate models.

Mansour, Mohri, Ro, Suresh: "Three Approaches for Personalization with Applications to Federated Learning", 2020, arXiv
2002.10619. Section 4, Figure 1 (with random hypotheses at the start it is IFCA, Ghosh et al. 2020, arXiv 2006.04088),
and Section 6, Figure 4.
"""

from typing import Any, Literal

import torch
from torch import Tensor

from fedem_lightning.aggregate import Models, Update, all_finite
from fedem_lightning.data.federation import Block, Federation
from fedem_lightning.data.randomness import Purpose, generator
from fedem_lightning.evaluate.adapt import Adaptation, Interpolate
from fedem_lightning.evaluate.adapt.interpolate import MixtureStep, log_odds
from fedem_lightning.local.solver import Step
from fedem_lightning.methods.initialization import load_models, train_on_each
from fedem_lightning.models.components import Backbone
from fedem_lightning.models.personal_models import OwnModels, client_means
from fedem_lightning.module.algorithm import FederatedAlgorithm
from fedem_lightning.settings.errors import require
from fedem_lightning.settings.ranges import PositiveInt


class HypCluster(FederatedAlgorithm):
    """min over h_1..h_q of sum_k (n_k / n) min_i L_k(h_i), Eq. 3, by stochastic EM with hard assignments.

    The components are the hypotheses; with q = 1 it is FedAvg, bit for bit. A hypothesis that no client chose in a
    round does not change, nor does its state of the server optimiser. All clients, seen or unseen, choose again among
    the newest hypotheses whenever they are scored.

    Args:
        n_components: q.
        initialization: "sampled": each hypothesis is trained from a common start on one client, drawn at random, for an
            epoch. "random": each has its own seed (IFCA).

    """

    personalizes_seen = True
    cluster: Tensor  # f(k), int64 [T]

    def __init__(
        self,
        backbone: Backbone,
        n_clients: int,
        n_components: PositiveInt = 2,
        initialization: Literal["sampled", "random"] = "sampled",
        **options: Any,
    ) -> None:
        super().__init__(backbone, n_clients, n_components, **options)
        self.local.n_models = 1  # each client trains one of the M components alone
        self.kept_momentum = self.local.momentum = self.local.optimizer_state()
        whole = self.compression is None or not self.compression.keeps_error
        require(whole, "compression.error_feedback: HypCluster's clients change models; expected false")
        self.starts_at_clients = initialization == "sampled" and n_components > 1
        self.cluster = self.per_client(torch.zeros(n_clients, dtype=torch.int64), column="cluster", held_by="both")

    def initialize(self, data: Federation) -> None:
        """Trains the hypotheses on random clients (Fig. 1), which are drawn repeatedly if there are fewer than q."""
        if not self.starts_at_clients:  # a single hypothesis starts where FedAvg does
            return super().initialize(data)
        clients, q = data.clients(), len(self.components)
        drawn = generator(self.seed, Purpose.INITIAL).choice(len(clients), size=q, replace=q > len(clients))
        candidates, which = clients[torch.from_numpy(drawn).to(clients.device)].unique(return_inverse=True)
        trained = train_on_each(self, data, candidates, epochs=1)  # [P, 1, ...]
        finite = all_finite(trained).nonzero().squeeze(1)
        require(len(finite) > 0, "training diverged: no starting point is finite; lower algorithm.client_optimizer.lr")
        load_models(self.components, {name: rows[finite[which % len(finite)], 0] for name, rows in trained.items()})

    def client_update(self, batch: Block, round_: int) -> Update:
        """The client chooses a hypothesis, trains it, and sends it with its index."""
        self.choose(batch)
        t, h = batch.clients, self._chosen(batch.clients)  # h_{f(k)}  [C, 1, ...]
        models = self.local_sgd(h, batch, round_)
        group, q = self.cluster[t], len(self.components)
        return Update(models, batch.counts(), start=h, receives=self.received(t), group=group, n_groups=q)

    def choose(self, batch: Block) -> None:
        """f(k) = argmin_i L_k(h_i), Eq. 4; ties: the lowest i. A client without samples keeps its hypothesis."""
        losses = self.losses(batch)  # [n, q]
        nearest = client_means(losses, batch).sort(dim=1, stable=True).indices[:, 0]  # NaN counts as largest
        self.cluster[batch.clients] = torch.where(batch.counts() > 0, nearest, self.cluster[batch.clients])
        chosen = self.cluster[batch.clients][batch.owner].unsqueeze(1)
        self.measure("objective", losses.gather(1, chosen))  # Eq. 3

    def personalize_clients(self, data: Federation, clients: Tensor) -> None:
        """Each client chooses its hypothesis (Eq. 4)."""
        for batch in self.batches(data, clients):
            self.choose(batch)

    def personal_models(self, clients: Tensor) -> OwnModels:
        """Each client predicts with its hypothesis."""
        return self.own_models(self._chosen(clients))

    def _chosen(self, clients: Tensor) -> Models:
        """The hypothesis of each client, [C, 1, ...]."""
        hypotheses = self.received(clients[:1])  # [1, q, ...]
        return {name: rows[0, self.cluster[clients]].unsqueeze(1) for name, rows in hypotheses.items()}

    @property
    def pi(self) -> Tensor:
        """The assignment as mixture weights, one-hot [T, q]."""
        return torch.nn.functional.one_hot(self.cluster, len(self.components)).to(self.parameter_dtype)


class Mapper(FederatedAlgorithm):
    """min over h_c of sum_k (n_k / n) min over h_l, lambda of L_k(lambda h_l + (1 - lambda) h_c).

    Every client, seen or unseen, is scored with the h_l and lambda of Eq. 10 and 11 for the newest h_c. As h_l starts
    from h_c each time, clients keep no state. With the grid {0} it is FedAvg.

    Args:
        adaptation: `Interpolate` with the mixture's objective; it sets the grid and the training of h_l. None: its
            defaults.

    """

    private_ok = True

    def __init__(
        self, backbone: Backbone, n_clients: int, adaptation: Adaptation | None = None, **options: Any
    ) -> None:
        interpolation = Interpolate() if adaptation is None else adaptation
        joint = isinstance(interpolation, Interpolate) and interpolation.objective == "mixture"
        require(joint, "adaptation: Mapper needs mapper, or none for its defaults")
        super().__init__(backbone, n_clients, n_components=1, adaptation=interpolation, **options)

    def client_update(self, batch: Block, round_: int) -> Update:
        """Solves Eq. 10 and 11 for the received h_c; then takes local steps of h_c with h_l fixed (Eq. 12)."""
        assert isinstance(self.adaptation, Interpolate)
        h_c = self.received(batch.clients)  # [C, 1, ...]
        h_l, share = self.adaptation.fit(self, self.own_models(h_c), batch)  # Eq. 10, 11
        fixed = self.own_models(h_l).losses(batch)  # [n, 1]
        weights = log_odds(1 - share[batch.owner].unsqueeze(1).to(fixed), fixed)
        models = self.local_sgd(h_c, batch, round_, weights, step=Step(MixtureStep))  # Eq. 12
        return Update(models, batch.counts(), start=h_c)
