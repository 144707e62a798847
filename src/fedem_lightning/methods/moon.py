"""MOON: local features stay near those of the received model, and away from those of the client's last one.

Li, He, Song: "Model-Contrastive Federated Learning", CVPR 2021, arXiv 2103.16257. Algorithm 1.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from fedem_lightning.aggregate import Models, Update
from fedem_lightning.data.federation import Block
from fedem_lightning.data.tasks import OfTask
from fedem_lightning.local.solver import LocalStep, Step
from fedem_lightning.models.components import Backbone
from fedem_lightning.models.heads import PrototypeNetwork, apart, features_in_order
from fedem_lightning.models.parts import wrapped
from fedem_lightning.module.algorithm import FederatedAlgorithm
from fedem_lightning.settings.ranges import NotNegative, Positive

SHORTEST = 1e-8
"""Features that are no longer than this have no direction: their cosines are 0."""


class MOON(FederatedAlgorithm):
    """FedAvg; clients minimise F_t(theta) + mu mean_i l_i, where l_i contrasts the features of sample i.

        l = -log(e^{cos(z, z_g) / tau} / (e^{cos(z, z_g) / tau} + e^{cos(z, z_p) / tau}))

    z is the input of the head, z_g that of the received model w, z_p that of the client's model after its last local
    training; the latter two are constants, taken in eval mode. In a client's first round z_p is z_g, and l has no
    gradient. The paper's networks have a layer more before the head, of 256 outputs. Unseen clients have w.

    Args:
        mu: weight of l; 0: FedAvg.
        temperature: tau.
        head: a regular expression found in the names of the head's tensors; None: the last layer.

    """

    private_ok = True

    def __init__(
        self,
        backbone: Backbone,
        n_clients: int,
        mu: NotNegative = 1.0,
        temperature: Positive = 0.5,
        head: str | None = None,
        **options: Any,
    ) -> None:
        network = wrapped(backbone, lambda own: PrototypeNetwork(own, head))
        super().__init__(network, n_clients, n_components=1, **options)
        self.mu, self.temperature = mu, temperature
        self.previous = self.per_client(self.components)  # theta_t of the client's last round [1, ...]

    def client_update(self, batch: Block, round_: int) -> Update:
        """theta_t ~ argmin F_t(theta) + mu mean_i l_i, by local SGD from w; the client keeps theta_t and sends it."""
        w = self.received(batch.clients)  # [C, 1, ...]
        step = Step(ContrastStep, loss=LossAndDirection, mu=self.mu)
        trained = self.local_sgd(w | apart(batch), batch, round_, self.contrasts(w, batch), step=step)
        theta = {name: trained[name] for name in w}
        self.previous[batch.clients] = theta
        return Update(theta, batch.counts(), start=w)

    def contrasts(self, w: Models, batch: Block) -> Tensor | None:
        """1 and (z_p / |z_p| - z_g / |z_g|) / tau of each sample: [n, 1, 1 + d]; None: there are no samples."""
        if not len(batch.index):
            return None
        before = self.previous.get(batch.clients, w)
        z_p, z_g = (direction(features_in_order(self.own_models, models, batch)) for models in (before, w))
        return torch.cat([torch.ones_like(z_g[:, :1]), (z_p - z_g) / self.temperature], dim=1).unsqueeze(1)


def direction(z: Tensor) -> Tensor:
    """z / |z|: [n, d] -> [n, d]; 0, without a gradient, where z is 0."""
    length = torch.linalg.vector_norm(z, dim=1, keepdim=True)
    return z / length.clamp(min=SHORTEST) * (length > SHORTEST)


@dataclass(frozen=True)
class LossAndDirection(OfTask):
    """The task's loss of a sample, and the direction of its features: what `ContrastStep` makes its loss of."""

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Outputs and features [n, ..., n_outputs + d] -> sample after sample, [n (1 + d)]."""
        task: Any = self.task
        logits, z = outputs[..., : task.n_outputs], outputs[..., task.n_outputs :]
        return torch.cat([task.losses(logits, y).unsqueeze(1), direction(z.flatten(1))], dim=1).flatten()


@dataclass(frozen=True)
class ContrastStep(LocalStep):
    """A local step on the task's loss + mu l; a sample's weights are those of `MOON.contrasts`."""

    mu: float

    def mean_loss(self, losses: Tensor, weight: Tensor, size: Tensor) -> Tensor:
        """l = softplus(<z / |z|, (z_p / |z_p| - z_g / |z_g|) / tau>): [..., B (1 + d)], [..., B, 1 + d] -> [...]."""
        each = losses.view(weight.shape)
        loss, contrast = each[..., 0] / self.task.n_targets, F.softplus((each * weight)[..., 1:].sum(dim=-1))
        return (weight[..., 0] * (loss + self.mu * contrast)).sum(dim=-1) / size
