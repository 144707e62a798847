"""FedRC: FedEM whose E-step divides by the share of each label under a component.

Guo, Tang, Lin: "FedRC: Tackling Diverse Distribution Shifts Challenge in Federated Learning by Robust Clustering", ICML
2024, arXiv 2301.12379. Components then separate clients who mean different things by a label, and not labels.
"""

from typing import Any

import torch
from torch import Tensor

from fedem_lightning.aggregate import Means, Models, Update
from fedem_lightning.data.block import Block
from fedem_lightning.data.federation import Federation
from fedem_lightning.data.tasks import known
from fedem_lightning.methods.fedem import FedEM
from fedem_lightning.models.components import Backbone
from fedem_lightning.models.em import add_by_owner
from fedem_lightning.models.heads import owner_and_class
from fedem_lightning.module.checks import check_classes
from fedem_lightning.settings.ranges import PositiveInt
from fedem_lightning.state.history import Round

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

    def e_step_losses(self, losses: Tensor, batch: Block) -> Tensor:
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

    def extras(self, q: Tensor, batch: Block) -> Models:
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
