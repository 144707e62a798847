"""FedPAC: class means align the features, and each client's head is its own best combination of all heads.

Xu, Tong, Huang: "Personalized Federated Learning with Feature Alignment and Classifier Collaboration", ICLR 2023, arXiv
2306.11867. Algorithm 1.
"""

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.linalg import cholesky, solve_triangular
from scipy.optimize import nnls
from torch import Tensor

from fedem_lightning.aggregate import Means, Models, Update
from fedem_lightning.data.federation import Block, Federation
from fedem_lightning.data.tasks import OfTask, known
from fedem_lightning.local.solver import LocalStep, Step
from fedem_lightning.methods.partial_averaging import PartialAveraging
from fedem_lightning.models.components import Backbone
from fedem_lightning.models.em import add_by_owner
from fedem_lightning.models.feature_networks import DistanceNetwork, split_distances
from fedem_lightning.models.heads import apart, class_sums, features_of, widths
from fedem_lightning.models.parts import split_body_head, users_network, wrapped
from fedem_lightning.module.checks import check_classes
from fedem_lightning.settings.errors import require
from fedem_lightning.settings.ranges import Count, NotNegative
from fedem_lightning.state.history import Round


@dataclass(frozen=True)
class AlignedLoss(OfTask):
    """The task's loss + lambda |z - C_y|^2 / d."""

    n_classes: int
    penalty: float  # lambda

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Outputs and distances [n, ..., n_outputs + Y], y [n, ...] -> [n]."""
        logits, distance = split_distances(outputs, y, self.n_classes)
        return self.task.losses(logits, y) + self.penalty * distance


def combination(mu: np.ndarray, of_all: np.ndarray, variance: np.ndarray) -> np.ndarray:
    """argmin over the simplex of sum_j a_j^2 V_j + |mu_i - sum_j a_j mu_j|^2: mu [D], of all [C, D], V [C] -> [C].

    With P = diag(V) + (mu_i - mu_j)(mu_i - mu_k) it is a' P a, and a is x / sum(x), x = argmin of x' P x / 2 - sum(x)
    over x >= 0, a least-squares problem. A V below 1e-12 of the mean entry of P's diagonal counts as that.
    """
    away = mu - of_all
    gram = away @ away.T
    scale = float((variance + gram.diagonal()).mean()) or 1.0
    root = cholesky(np.diag((variance / scale).clip(min=1e-12)) + gram / scale, lower=True)
    x, _ = nnls(root.T, solve_triangular(root, np.ones(len(root)), lower=True))
    return np.asarray(x / x.sum())


class FedPAC(PartialAveraging):
    """The server averages the body phi and combines the clients' heads anew for each client; class means c_y align phi.

    In a round client t

    1. computes mu_ty = p_y E[phi(x) | y] and V_t = (E|phi(x)|^2 - sum_y |mu_ty|^2) / n_t, with phi as received and its
       label shares p_y,
    2. trains its head h_t, phi fixed,
    3. trains phi on f_t + lambda |phi(x) - c_y|^2 / d, h_t fixed; where nobody has sent a c_y it is the client's own
       mean of before; in the first round there is no such term,
    4. sends phi, h_t, mu_t, V_t, and its sums of phi(x) by class, from which the server computes the next c_y.

    For each client i of the cohort S the server computes h_i <- sum_j alpha_ij h_j, with alpha_i = argmin over the
    simplex of sum_j alpha_j^2 V_j + |mu_i - sum_j alpha_j mu_j|^2, j in S.

    An unseen client takes the combination of the last cohort's heads, and trains it for `head_epochs`.

    Args:
        penalty: lambda.
        head_epochs: passes over the samples in which the head moves.
        head: a regular expression found in the names of the head's tensors; None: the last layer. It takes d features.

    """

    private_ok = False  # statistics leave clients
    one_process = True  # the server combines heads of single clients
    mu: Tensor  # [T, Y, d]
    variance: Tensor  # V [T]
    last: Tensor  # bool [T], the last cohort
    prototypes: Tensor  # c_y [Y, d]
    known: Tensor  # bool [Y], the classes that have one

    def __init__(
        self,
        backbone: Backbone,
        n_clients: int,
        penalty: NotNegative = 1.0,
        head_epochs: Count = 1,
        head: str | None = None,
        **options: Any,
    ) -> None:
        super().__init__(wrapped(backbone, lambda own: DistanceNetwork(own, head)), n_clients, 1, **options)
        network: Any = self.components[0]
        self.keep([f"network.{name}" for name in split_body_head(users_network(network), head).head])
        self.penalty, self.head_epochs = penalty, head_epochs
        self.own_epochs = head_epochs  # of a client that joins later
        self.n_features, n_outputs = widths(network.network.get_submodule(network.head))
        shape = (max(2, n_outputs), self.n_features)
        like = self.received(torch.zeros(1, dtype=torch.int64))
        self.sent = self.per_client({name: like[name][0] for name in self.private}, held_by="both")  # h_t as trained
        self.mu = self.per_client(torch.zeros(n_clients, *shape), held_by="both")
        self.variance = self.per_client(torch.zeros(n_clients), held_by="both")
        self.last = self.per_client(torch.zeros(n_clients, dtype=torch.bool), held_by="server")
        self.register_buffer("prototypes", torch.zeros(shape))
        self.register_buffer("known", torch.zeros(shape[0], dtype=torch.bool))

    def prepare(self, data: Federation) -> None:
        """Class means need classes, and a head that takes vectors."""
        check_classes(self, data)
        require(self.n_features > 0, "head: expected a linear layer, as needed here")

    def client_update(self, batch: Block, round_: int) -> Update:
        """Steps 1 to 4."""
        t, models = batch.clients, self.models_of(batch.clients)  # [C, 1, ...]
        received, own_means, step = {n: models[n] for n in self.private}, self.note_statistics(models, batch), None
        models = self.local_sgd(models, batch, round_, only=self.private, epochs=self.head_epochs)
        if self.known.any():
            centres = torch.where(self.known.unsqueeze(1), self.prototypes, own_means)  # [C, Y, d]
            models |= {"prototypes": centres.unsqueeze(1)}
            loss = functools.partial(AlignedLoss, n_classes=len(self.known), penalty=self.penalty)
            step = Step(LocalStep, loss=loss)
            received["prototypes"] = self.prototypes.expand(len(t), *self.prototypes.shape)
        models = self.local_sgd(models, batch, round_, step=step, only=self.shared)
        self.sent[t] = heads = {name: models[name] for name in self.private}
        models.pop("prototypes", None)
        sums, counts = class_sums(self.own_models(models | apart(batch)), batch)
        n = batch.counts().clamp(min=1).to(sums).unsqueeze(1)  # their weights: sums and counts stay those of all
        extras = {"sums": sums.flatten(1) / n, "counts": counts / n, "mu": self.mu[t], "V": self.variance[t]}
        extras = {
            name: rows.flatten(1) if rows.ndim > 1 else rows.unsqueeze(1) for name, rows in (extras | heads).items()
        }
        update = self.keep_and_send(batch, models)
        return update._replace(extras=extras, receives=update.start | received)

    def note_statistics(self, models: Models, batch: Block) -> Tensor:
        """mu and V of the batch's clients; returns their class means, 0 for absent classes, [C, Y, d]."""
        networks = self.own_models(models | apart(batch))
        sums, counts = class_sums(networks, batch)  # [C, Y, d], [C, Y]
        squares = torch.zeros_like(counts[:, 0])  # [C]
        for where, z in features_of(networks, batch):
            each = z.square() * known(batch.y()[where]).unsqueeze(-1)  # [k, ..., d]
            add_by_owner(squares, batch.owner[where], each.reshape(len(z), -1).sum(dim=1))
        n = counts.sum(dim=1).clamp(min=1)
        self.mu[batch.clients] = mu = sums / n.view(-1, 1, 1)
        self.variance[batch.clients] = (squares / n - mu.square().sum(dim=(1, 2))) / n
        return sums / counts.clamp(min=1).unsqueeze(2)

    def server_update(self, means: Means | None, round_: Round) -> None:
        """The average of phi, the class means, and a head for each client of the cohort."""
        super().server_update(means, round_)
        if means is None:
            return
        sums, counts = means.extras["sums"].view_as(self.prototypes), means.extras["counts"][0].unsqueeze(1)
        self.prototypes = torch.where(counts > 0, sums / counts, self.prototypes)
        self.known = self.known | (counts[:, 0] > 0)
        cohort = round_.cohort[self.sent.written[round_.cohort]]
        self.last = torch.isin(torch.arange(self.n_clients, device=cohort.device), cohort)
        self.own[cohort] = self.combined(cohort, cohort)

    def combined(self, clients: Tensor, others: Tensor) -> Models:
        """Heads sum_j alpha_ij h_j of clients [C], from those that other clients sent, [C, 1, ...]."""
        mu, of_all = (self.mu[t].flatten(1).double().cpu().numpy() for t in (clients, others))
        variance, heads = self.variance[others].double().cpu().numpy(), self.sent[others]
        alpha = torch.from_numpy(np.stack([combination(row, of_all, variance) for row in mu]))  # [C, C']
        return {name: torch.tensordot(alpha.to(rows), rows, dims=1) for name, rows in heads.items()}

    def personalize_clients(self, data: Federation, clients: Tensor) -> None:
        """A combination of the last cohort's heads, trained for `head_epochs`; phi is fixed."""
        self.own[clients] = {name: self.received(clients)[name] for name in self.private}
        others = self.last.nonzero().squeeze(1)
        for batch in self.batches(data, clients):
            self.note_statistics(self.models_of(batch.clients), batch)
            if len(others):
                self.own[batch.clients] = self.combined(batch.clients, others)
            self.train_private(self.models_of(batch.clients), batch)
