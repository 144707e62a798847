"""FedEM: federated expectation-maximisation over a mixture of M component models; and FedRC, with another E-step.

- FedEM. Marfoq, Neglia, Bellet, Kameni, Vidal: "Federated Multi-Task Learning under a Mixture of Distributions",
  NeurIPS 2021, arXiv 2108.10252. Algorithms 1 and 2; equation numbers are the paper's.
- FedRC. Guo, Tang, Lin: "FedRC: Tackling Diverse Distribution Shifts Challenge in Federated Learning by Robust
  Clustering", ICML 2024, arXiv 2301.12379. The E-step divides by the share of each label under a component: components
  then separate clients who mean different things by a label, and not labels.
"""

from typing import Any

import torch
from torch import Tensor

from fedem_lightning.aggregate import Means, Models, Update
from fedem_lightning.data.federation import Block, Federation
from fedem_lightning.data.tasks import known
from fedem_lightning.methods.initialization import WarmUp
from fedem_lightning.methods.sharing import Shared, tied_components
from fedem_lightning.models.components import Backbone
from fedem_lightning.models.em import add_by_owner, mixture_losses, mixture_weights, responsibilities
from fedem_lightning.models.heads import owner_and_class
from fedem_lightning.models.personal_models import SharedModels
from fedem_lightning.module.algorithm import FederatedAlgorithm
from fedem_lightning.module.checks import check_classes
from fedem_lightning.settings.ranges import Initialization, PositiveInt
from fedem_lightning.state.history import Round


class FedEM(FederatedAlgorithm):
    """Every client's data is a mixture of the same M distributions; client t predicts with sum_m pi[t, m] h_m(x).

    With M = 1 it is FedAvg, bit for bit. Unsampled clients keep their pi.

    Args:
        n_components: M.
        initialization: how the components start; see `WarmUp`.
        shared: what the components have in common, see `Shared` and `TiedComponents`; None: nothing, as in the paper.
        personalize_steps: E-steps and updates of pi of an unseen client. The paper has 1, which leaves pi near uniform.

    """

    private_ok = True
    pi: Tensor  # mixture weights [T, M]; rows sum to 1

    def __init__(
        self,
        backbone: Backbone,
        n_clients: int,
        n_components: PositiveInt = 3,
        initialization: Initialization = "auto",
        shared: Shared = None,
        personalize_steps: PositiveInt = 20,
        **options: Any,
    ) -> None:
        super().__init__(backbone, n_clients, n_components, **options)
        self.warm_up, self.personalize_steps = WarmUp(self, initialization), personalize_steps
        self.tied = tied_components(self, shared)  # None: they have nothing in common
        uniform = torch.full((n_clients, n_components), 1.0 / n_components)
        self.pi = self.per_client(uniform, column="pi_{m}")

    def initialize(self, data: Federation) -> None:
        """The components' starting points, and those of pi."""
        self.warm_up.begin(data)

    def client_update(self, batch: Block, round_: int) -> Update:
        """E-step, mixture weights, local solver; models go to the server, pi and q never leave the client."""
        t, n = batch.clients, self._n_trained()
        parts = self.tied if self.tied is not None and n > 1 else self
        losses = parts.losses(batch, n)  # l(h_m(x_i), y_i)  [n, M]
        pi = self.pi[t] if n > 1 else torch.ones_like(self.pi[t, :1])
        self.measure("objective", mixture_losses(pi, losses, batch.owner))  # Eq. 6, before the round
        q = self.e_step(self.pi[t], losses, batch)  # Eq. 8  [n, M]
        if not self.warm_up.is_warming_up():
            self.pi[t] = mixture_weights(q, batch.owner, self.pi[t])  # Eq. 9  [C, M]
        theta = parts.received(t, n)  # [C, M, ...]
        models = parts.local_sgd(theta, batch, round_, q)  # Eq. 10
        weights = batch.counts()  # n_t, Alg. 1, line 10
        return Update(models, weights, start=theta, extras=self._extras(q, batch))

    def e_step(self, pi: Tensor, losses: Tensor, batch: Block) -> Tensor:
        """The samples' weights in the components' losses, [n, M]: q of Eq. 8; in a warm-up those of FedAvg."""
        if self.warm_up.is_warming_up():
            weight = 1.0 if self.tied is None else 1 / losses.shape[1]  # theta_0 takes the sum of M gradients
            return torch.full_like(losses, weight)
        return responsibilities(pi, self._e_step_losses(losses, batch), batch.owner)

    def _e_step_losses(self, losses: Tensor, batch: Block) -> Tensor:
        """The losses [n, M] by which the E-step weighs samples. Default: those of the M-step."""
        return losses

    def _extras(self, q: Tensor, batch: Block) -> Models:
        """What clients send beside their models, each [C, ...], from the weights q [n, M]. Default: nothing."""
        return {}

    def server_update(self, means: Means | None, round_: Round) -> None:
        """theta_m <- mean over the clients; one mean for all components where they are equal."""
        super().server_update(self.warm_up.of_all(means), round_)
        if self.tied is not None:
            self.tied.tie()  # the last bits of a sum may differ
        self.warm_up.after(round_)

    def _n_trained(self) -> int:
        """Number of components that are sent and trained in this round: one while all are equal, or M."""
        equal = self.warm_up.initialization != "random" and self.warm_up.is_warming_up()
        return 1 if equal else len(self.components)

    def personal_models(self, clients: Tensor) -> SharedModels:
        """Client t predicts with sum_m pi[t, m] h_m(x) (Eq. 5); tuning weighs samples as the next round would."""
        return SharedModels(self.components, self.pi[clients], self.e_step)

    def personalize_clients(self, data: Federation, clients: Tensor) -> None:
        """Section 3.2: from uniform weights, one E-step (Eq. 8) and one update of pi (Eq. 9), or several."""
        batch, pi = data.block(clients, "train"), torch.full_like(self.pi[clients], 1.0 / self.pi.shape[1])
        losses = self._e_step_losses(self.losses(batch), batch)
        for _ in range(self.personalize_steps):
            pi = mixture_weights(responsibilities(pi, losses, batch.owner), batch.owner, pi)
        self.pi[clients] = pi


LEAST_SHARE = 1e-8
"""The smallest share of a label."""


class FedRC(FedEM):
    """FedEM with q_im proportional to pi_tm exp(-l_im) / p(y_i; m); p(y; m) is the share of y in what m trains on.

    While all shares are even, as in the first round, it is FedEM, whose arguments it has.
    """

    private_ok = False  # clients also send how their labels lie
    label_shares: Tensor  # p(y; m), [M, Y]; rows sum to 1

    def __init__(self, backbone: Backbone, n_clients: int, n_components: PositiveInt = 3, **options: Any) -> None:
        super().__init__(backbone, n_clients, n_components, **options)
        self.register_buffer("label_shares", torch.zeros(0, 0))

    def prepare(self, data: Federation) -> None:
        """Labels are classes; their shares start even."""
        super().prepare(data)
        check_classes(self, data)
        if not self.label_shares.numel():
            task: Any = data.task
            self.label_shares = self.pi.new_full((len(self.components), task.n_classes), 1 / task.n_classes)

    def _e_step_losses(self, losses: Tensor, batch: Block) -> Tensor:
        """l_im + log p(y_i; m): exp(-l) is divided by p; in a sequence by that of every label."""
        y = batch.y().flatten(1) if batch.y().ndim > 1 else batch.y().unsqueeze(1)  # [n, L]
        counts = self.label_shares.new_zeros(len(y), self.label_shares.shape[1])  # of each label in a sample  [n, Y]
        counts.scatter_add_(1, y.long().clamp(min=0), known(y).to(counts))
        return losses + (counts @ self.label_shares.log().T).to(losses)

    def client_update(self, batch: Block, round_: int) -> Update:
        """As FedEM; clients also receive the shares of labels."""
        update = super().client_update(batch, round_)
        shares = self.label_shares.expand(len(batch.clients), *self.label_shares.shape)
        return update._replace(receives=update.start | {"labels": shares})

    def _extras(self, q: Tensor, batch: Block) -> Models:
        """The means over a client's samples of q_im for each label y_i, [C, M Y]."""
        y, (m, n_classes) = batch.y(), self.label_shares.shape
        known_labels = known(y).flatten()
        place = owner_and_class(batch.owner, y, n_classes)[known_labels]
        each = q.to(self.pi).expand(-1, m)  # [n, M]; of one model in a warm-up
        each = each.repeat_interleave(y[0].numel() if len(y) else 1, dim=0)[known_labels]
        sums = add_by_owner(self.pi.new_zeros(len(batch.clients) * n_classes, m), place, each)  # [C Y, M]
        means = sums.view(-1, n_classes, m).transpose(1, 2) / batch.counts().view(-1, 1, 1).to(sums)  # [C, M, Y]
        return {"labels": means.flatten(1)}

    def server_update(self, means: Means | None, round_: Round) -> None:
        """p(y; m) <- sum of q over the samples of label y / sum of q over all; then as FedEM."""
        if means is not None:
            sums = means.extras["labels"].view_as(self.label_shares).clamp(min=LEAST_SHARE)
            self.label_shares = sums / sums.sum(dim=1, keepdim=True)
            means = means._replace(extras={name: rows for name, rows in means.extras.items() if name != "labels"})
        super().server_update(means, round_)
