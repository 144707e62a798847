"""FedDyn: a linear term, learned by each client, makes the clients' minima agree with the global one.

Acar, Zhao, Matas Navarro, Mattina, Whatmough, Saligrama: "Federated Learning Based on Dynamic Regularization", ICLR
2021, arXiv 2111.04263. Algorithm 1.
"""

from typing import Any

from torch import Tensor

from fedem_lightning.aggregate import Means, Update
from fedem_lightning.data.federation import Block
from fedem_lightning.local.solver import near
from fedem_lightning.methods.fedavg import flat
from fedem_lightning.models.components import Backbone, stacked_state
from fedem_lightning.module.algorithm import FederatedAlgorithm
from fedem_lightning.settings.ranges import Positive
from fedem_lightning.state.history import Round


class FedDyn(FederatedAlgorithm):
    """Client t minimises f_t(theta) - <g_t, theta> + (alpha / 2) |theta - w|^2; at the minimum the new g_t is grad f_t.

    The server's h is the mean of g_t over all T clients; one that never took part counts with g_t = 0. Clients of a
    cohort count alike: the objective is the plain mean of the f_t. With a fixed number of local steps alpha -> 0 is not
    FedAvg: the first round moves w by (1 + |S| / T) times the mean of theta_t - w. Unseen clients have w.

    Args:
        backbone, n_clients, options: see `FederatedAlgorithm`. The authors limit gradients to length 10
            (`client_optimizer.max_grad_norm`).
        alpha: with plain SGD keep lr alpha < 2.

    """

    private_ok = True
    mean_gradient: Tensor  # h, [D]

    def __init__(self, backbone: Backbone, n_clients: int, alpha: Positive = 0.01, **options: Any) -> None:
        super().__init__(backbone, n_clients, n_components=1, **options)
        self.alpha = alpha
        self.gradients = self.per_client(self.local.zeros())  # g_t [1, ...]
        self.register_buffer("mean_gradient", flat(self.local.zeros())[0])

    def client_update(self, batch: Block, round_: int) -> Update:
        """theta_t ~ argmin f_t(theta) + (alpha / 2) |theta - w - g_t / alpha|^2; g_t <- g_t - alpha (theta_t - w)."""
        t, w = batch.clients, self.received(batch.clients)  # [C, 1, ...]
        g = self.gradients[t]
        anchor = {name: w[name] + rows / self.alpha for name, rows in g.items()}
        theta = self.local_sgd(w, batch, round_, step=near(anchor, self.alpha))
        self.gradients[t] = {name: rows - self.alpha * (theta[name] - w[name]) for name, rows in g.items()}
        return Update(theta, (batch.counts() > 0).long(), start=w)

    def server_update(self, means: Means | None, round_: Round) -> None:
        """h <- h - (alpha / T) sum over S of (theta_t - w); w <- mean over S of theta_t - h / alpha."""
        if means is not None:
            w, theta = self.params_of(stacked_state(self.components)), self.params_of(means.models)  # [1, ...]
            rate = self.alpha * float(means.weight[0]) / len(round_.federation.clients())  # alpha |S| / T
            self.mean_gradient -= rate * (flat(theta) - flat(w))[0]
            h = self.mean_gradient.split([row.numel() for row in theta.values()])
            moved = {n: row - part.view_as(row) / self.alpha for part, (n, row) in zip(h, theta.items(), strict=True)}
            means = means._replace(models=means.models | moved)
        super().server_update(means, round_)
