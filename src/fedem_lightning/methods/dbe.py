"""FedDBE: a body whose mean feature is everybody's, and for each client a shift of its own.

Zhang, Hua, Cao, Wang, Song, Xue, Ma, Guan: "Eliminating Domain Bias for Federated Learning in Representation Space",
NeurIPS 2023, arXiv 2311.14975.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedem_lightning.aggregate import Models, Update
from fedem_lightning.data.federation import Block, Federation
from fedem_lightning.data.samples import Inputs
from fedem_lightning.local.solver import LocalStep, Step
from fedem_lightning.methods.partial_averaging import PartialAveraging
from fedem_lightning.models.components import Backbone
from fedem_lightning.models.feature_networks import ShiftedFeatures
from fedem_lightning.models.heads import apart, features_of
from fedem_lightning.models.parts import model_bytes, wrapped
from fedem_lightning.module.client_updates import count_special_round
from fedem_lightning.settings.ranges import NotNegative, PositiveShare


@dataclass(frozen=True)
class MeanStep(LocalStep):
    """A local step on f(theta) + kappa |m - zbar|^2 / d, where m <- (1 - q) m + q (the batch's mean of phi(x)).

    The learner's buffers have m, as "running"; the gradient comes from the newest batch alone.
    """

    consensus: Tensor  # zbar [d]
    penalty: float  # kappa
    rate: float  # q

    def objective(
        self, params: Models, buffers: Models, x: Inputs, y: Tensor, weight: Tensor, size: Tensor, key: Tensor
    ) -> tuple[Tensor, Models]:
        """See `LocalStep`; the network gives outputs and then features."""
        outputs, buffers = self.outputs(params, buffers, x, size, key)  # [B, ..., n_outputs + d]
        d = len(self.consensus)
        loss = self.mean_loss(self.task.losses(outputs[..., :-d], y), weight, size)
        z = outputs[..., -d:].reshape(len(weight), -1, d).mean(dim=1)  # [B, d]
        m = (1 - self.rate) * buffers["running"] + self.rate * (weight.unsqueeze(1) * z).sum(dim=0) / size  # [d]
        return loss + self.penalty * (m - self.consensus).square().mean(), buffers | {"running": m.detach()}


class FedDBE(PartialAveraging):
    """Client t has the logits h(phi(x) + b_t); the server averages phi and h, the client keeps b_t, 0 at first.

    Before the first round all clients train for one epoch without b and without the penalty; their mean features give
    zbar, weighted by n_t, and their models are forgotten. In a round a client minimises

        f_t(phi, h, b_t) + kappa |m - zbar|^2 / d,
        m <- (1 - q) m + q (the batch's mean of phi(x)),  m = 0 at first.

    An unseen client trains b from 0; phi and h are fixed.

    Args:
        penalty: kappa.
        mean_rate: q; 1: m is the mean of the newest batch.
        head: a regular expression found in the names of the head's tensors; None: the last layer. It takes d features.

    """

    private_ok = False  # all clients send their mean features before the first round
    one_process = True
    consensus: Tensor  # zbar [d]

    def __init__(
        self,
        backbone: Backbone,
        n_clients: int,
        penalty: NotNegative = 50.0,
        mean_rate: PositiveShare = 1.0,
        head: str | None = None,
        **options: Any,
    ) -> None:
        super().__init__(wrapped(backbone, lambda own: ShiftedFeatures(own, head)), n_clients, 1, **options)
        self.keep(["shift"])
        self.penalty, self.mean_rate = penalty, mean_rate
        self.register_buffer("consensus", torch.zeros_like(self.own[torch.tensor(0)]["shift"][0]))

    def prepare(self, data: Federation) -> None:
        """The shift needs a head that takes vectors."""
        network = self.components[0]
        assert isinstance(network, ShiftedFeatures)
        network.check_head()

    def initialize(self, data: Federation) -> None:
        """The start-up: zbar <- sum_t n_t (mean of phi_t(x) over client t's samples) / n, phi_t after one epoch."""
        clients, size = data.clients(), self.consensus.nbytes / model_bytes(self.components[0])
        count_special_round(self, clients, data.splits["train"].counts(clients), down=1 + size, up=size)
        total, n = torch.zeros_like(self.consensus), 0
        for batch in self.batches(data, clients):
            w = self.received(batch.clients)  # [C, 1, ...]
            trained = self.local_sgd(w, batch, 0, only=self.shared, epochs=1, state=None)
            for where, z in features_of(self.own_models(trained | apart(batch)), batch):  # of whole clients
                each, owner = z.reshape(len(z), -1, z.shape[-1]).mean(dim=1), batch.owner[where]  # [k, d], [k]
                diverged = owner[~each.isfinite().all(dim=1)]  # their updates would not count either
                each = each[~torch.isin(owner, diverged)]
                total, n = total + each.sum(dim=0), n + len(each)
        self.consensus = total / max(n, 1)

    def client_update(self, batch: Block, round_: int) -> Update:
        """Local steps of phi, h and b_t together; the client keeps b_t and sends the rest."""
        running = {"running": self.consensus.new_zeros(len(batch.clients), 1, len(self.consensus))}
        models = self.models_of(batch.clients) | apart(batch) | running
        step = Step(MeanStep, consensus=self.consensus, penalty=self.penalty, rate=self.mean_rate)
        return self.keep_and_send(batch, self.local_sgd(models, batch, round_, step=step))
