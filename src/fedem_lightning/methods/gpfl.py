"""GPFL: class embeddings, which all clients share, guide the features; each client's own mix of them its head.

Zhang, Hua, Wang, Song, Xue, Ma, Cao, Guan: "GPFL: Simultaneously Learning Global and Personalized Feature Information
for Personalized Federated Learning", ICCV 2023, arXiv 2308.10279.
"""

import functools
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fedem_lightning.aggregate import Models, Update
from fedem_lightning.data.federation import Block, Federation
from fedem_lightning.data.tasks import OfTask, known
from fedem_lightning.local.solver import ProximalStep, Step
from fedem_lightning.methods.partial_averaging import PartialAveraging
from fedem_lightning.models.components import Backbone
from fedem_lightning.models.feature_networks import GuidedNetwork
from fedem_lightning.models.heads import class_counts
from fedem_lightning.models.parts import split_body_head, users_network, wrapped
from fedem_lightning.module.checks import check_classes
from fedem_lightning.settings.ranges import NotNegative


@dataclass(frozen=True)
class GuidedLoss(OfTask):
    """The task's loss + CE of the cosines of f with the embeddings + lambda |f - e_y|, e as received."""

    embeddings: Tensor  # [Y, d]
    penalty: float  # lambda

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Summed over a sample's labels: outputs, cosines and f [n, ..., n_outputs + Y + d], y [n, ...] -> [n]."""
        n_classes, d = self.embeddings.shape
        logits, cosines, f = outputs.split([outputs.shape[-1] - n_classes - d, n_classes, d], dim=-1)
        angle = F.cross_entropy(cosines.movedim(-1, 1), y.long(), reduction="none")  # [n, ...]; 0 where it is missing
        away = torch.linalg.vector_norm(f - self.embeddings[y.long().clamp(min=0)], dim=-1) * known(y)
        return self.task.losses(logits, y) + (angle + self.penalty * away).reshape(len(y), -1).sum(dim=1)


class GPFL(PartialAveraging):
    """Client t has the logits h_t(CoV(phi(x), p_t)), where p_t = sum_y (n_ty / n_t) e_y; h_t stays with it.

    The server averages the body phi, the embeddings e_y of the classes, and CoV(z, c) = ReLU((1 + gamma(c)) z +
    beta(c)). With g = mean_y e_y and f = CoV(phi(x), g) a client minimises

        CE(h_t(CoV(phi(x), p_t)), y) + CE(cos(f, e), y) + lambda |f - e_y|
        + (mu / 2) (|e|^2 + |CoV|^2)

    In a round p_t, g and the e_y of the third term stay as received; e learns by the second term.

    An unseen client counts its labels for p_t and trains h_t from its first values; the rest is fixed.

    Args:
        penalty: lambda.
        decay: mu, the weight decay of e and CoV.
        head: a regular expression found in the names of the head's tensors; None: the last layer. It takes d features.

    """

    def __init__(
        self,
        backbone: Backbone,
        n_clients: int,
        penalty: NotNegative = 0.01,
        decay: NotNegative = 0.1,
        head: str | None = None,
        **options: Any,
    ) -> None:
        super().__init__(wrapped(backbone, lambda own: GuidedNetwork(own, head)), n_clients, 1, **options)
        names = split_body_head(users_network(self.components[0]), head).head
        self.keep(["shares", *(f"network.{name}" for name in names)])
        self.penalty, self.decay = penalty, decay

    def prepare(self, data: Federation) -> None:
        """Embeddings need classes, CoV a head that takes vectors."""
        check_classes(self, data)
        network = self.components[0]
        assert isinstance(network, GuidedNetwork)
        network.check_head()

    def client_update(self, batch: Block, round_: int) -> Update:
        """Local steps of phi, e, CoV and h_t together; the client keeps h_t and its label shares."""
        models = self.guided_models(batch)
        return self.keep_and_send(batch, self.local_sgd(models, batch, round_, step=self.local_step(batch)))

    def guided_models(self, batch: Block) -> Models:
        """(phi, e, CoV, h_t) with n_ty / n_t and the embeddings as received, [C, 1, ...]; see `GuidedNetwork`."""
        task: Any = batch.federation.task
        models = self.models_of(batch.clients)
        counts = class_counts(batch, task.n_classes).to(self.parameter_dtype).unsqueeze(1)  # [C, 1, Y]
        n = counts.sum(dim=2, keepdim=True)
        shares = torch.where(n > 0, counts / n.clamp(min=1), models["shares"])
        return models | {"shares": shares, "frozen": models["embeddings"]}

    def local_step(self, batch: Block) -> Step:
        """The three losses, and mu as a pull of e and CoV to zero."""
        w = self.received(batch.clients)
        zeros = {name: torch.zeros_like(w[name]) for name in w if name.startswith(("embeddings", "condition."))}
        loss = functools.partial(GuidedLoss, embeddings=w["embeddings"][0, 0].clone(), penalty=self.penalty)
        return Step(ProximalStep, {"anchor": zeros}, loss=loss, mu=self.decay)

    def personalize_clients(self, data: Federation, clients: Tensor) -> None:
        """p_t from the labels; then local SGD on h_t alone."""
        self.own[clients] = {name: self.received(clients)[name] for name in self.private}
        for batch in self.batches(data, clients):
            self.train_private(self.guided_models(batch), batch)
