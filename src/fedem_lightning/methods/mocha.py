"""MOCHA: federated multi-task learning of linear models by dual coordinate ascent.

Smith, Chiang, Sanjabi, Talwalkar: "Federated Multi-Task Learning", NeurIPS 2017, arXiv 1705.10467. Algorithm 1, with
the paper's probabilistic prior for the relations of clients. With labels y = -1, +1 and margins m = y x^T w_t,

    primal:  P(W) = sum_t (1/n_t) sum_i phi(m_ti) + (lambda / 2) tr(W Omega W^T),  Omega = Sigma^-1, tr Sigma = 1
    dual:    D(alpha) = sum_t (1/n_t) sum_i -phi*(-y_ti alpha_ti) - (lambda / 2) tr(W Omega W^T)
    where    W = (1/lambda) B Sigma,  B = [b_1 .. b_T],  b_t = (1/n_t) X_t^T alpha_t
    loss:    phi(m) = log(1 + e^-m),  -phi*(-a) = entropy of (a, 1 - a),  a = y alpha in [0, 1]

so that (lambda / 2) tr(W Omega W^T) = (1/2) sum_t w_t^T b_t. A bias is the weight of a feature that is always 1.
Clients are rows here: W and B are [T, d].
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedem_lightning.aggregate import Means
from fedem_lightning.data.federation import Block, Federation
from fedem_lightning.data.samples import n_values
from fedem_lightning.data.tasks import BinaryClassification
from fedem_lightning.local.training import shuffled_batches
from fedem_lightning.models.components import Backbone
from fedem_lightning.models.personal_models import OwnModels
from fedem_lightning.models.tensors import trained_parameters
from fedem_lightning.module.algorithm import FederatedAlgorithm
from fedem_lightning.settings.errors import UserError, require
from fedem_lightning.settings.ranges import Positive, PositiveInt
from fedem_lightning.state.history import Round
from fedem_lightning.state.network import Transmission


class MOCHA(FederatedAlgorithm):
    """Clients keep alpha_t and ascend the dual; the server learns Sigma, which couples the clients' models.

    It needs two classes and one linear layer. A round is an inner iteration: a client takes H_t = n_t / 2 coordinate
    steps, at least one; delta b_t goes up and w_t goes down. Clients outside the cohort take no steps, but Sigma moves
    their w_t. The server needs T^2 numbers of memory, and T^3 time for a new Sigma.

    Args:
        backbone, n_clients, options: see `FederatedAlgorithm`. Local epochs, batches and the client optimiser are
            not used; the server optimiser must be the plain average.
        penalty: lambda.
        inner_rounds: rounds from one update of Sigma to the next.

    """

    sends_models = False
    one_process = True  # the server relates the clients' tasks

    alpha: Tensor  # dual variables [T, max_t n_t], padded with zeros; [T, 0] before the first round
    b: Tensor  # (1/n_t) X_t^T alpha_t  [T, d]
    w: Tensor  # the clients' models [T, d]; the bias comes last
    sigma: Tensor  # the clients' relations [T, T]; symmetric, positive definite, trace 1

    def __init__(
        self,
        backbone: Backbone,
        n_clients: int,
        penalty: Positive = 0.01,
        inner_rounds: PositiveInt = 20,
        **options: Any,
    ) -> None:
        super().__init__(backbone, n_clients, n_components=1, **options)
        self.penalty, self.inner_rounds = penalty, inner_rounds
        layer = linear_layer(self.components[0])
        self.n_features, d = layer.in_features, layer.in_features + (layer.bias is not None)
        self.local.takes_steps = False  # of the client optimiser
        self.alpha = self.per_client(torch.zeros(n_clients, 0))
        self.b = self.per_client(torch.zeros(n_clients, d))
        self.register_buffer("w", torch.zeros(n_clients, d))
        self.register_buffer("sigma", torch.eye(n_clients) / n_clients)

    def client_update(self, batch: Block, round_: int) -> None:
        """Each client takes H_t coordinate steps of b_t and alpha_t."""
        if not self.alpha.shape[1]:
            self.alpha = self.alpha.new_zeros(self.n_clients, int(batch.federation.splits["train"].counts().max()))
        steps = (batch.counts() // 2).clamp(min=1)  # H_t  [C]
        order = steps.argsort(descending=True, stable=True)  # the clients that still take steps are always the first
        steps, batch = steps[order], batch.federation.block(batch.clients[order], "train")
        t, owner, n = batch.clients, batch.owner, batch.counts()
        turn = batch.ranks()  # [n]

        y = 2 * batch.y().to(self.parameter_dtype) - 1  # -1, +1  [n]
        z = self.w.new_ones(len(batch.index), self.w.shape[1])  # x, and a last column of ones if there is a bias
        z[:, : self.n_features] = batch.vectors(self.parameter_dtype)
        z *= y.unsqueeze(1)  # y x  [n, d]
        a = y * self.alpha[t[owner], turn]  # [n]
        margins = ((part * w).sum(dim=1) for part, w in zip(z.split(n.tolist()), self.w[t], strict=True))
        m = torch.cat(list(margins))  # y x^T w_t  [n]
        self.measure_gap(batch, a, m)

        shuffled = shuffled_batches(batch, 1, 1, self.seed, round_).order[0]  # client after client
        taken = turn < steps[owner]
        visits = shuffled[taken][turn[taken].argsort(stable=True)]  # the first step of every client, the second, ...
        scale = self.safety * self.sigma.diagonal()[t] / self.penalty  # sigma' Sigma_tt / lambda  [C]
        c = (scale / n)[owner] * torch.linalg.vector_norm(z, dim=1) ** 2  # sigma' Sigma_tt |x|^2 / (lambda n_t)  [n]
        active = torch.bincount(turn[taken]).tolist()  # number of clients that take step 0, 1, ...
        a[visits], delta_b = ascend(z[visits], a[visits], m[visits], c[visits], scale, n, active)
        self.b[t] += delta_b
        self.alpha[t[owner], turn] = y * a
        self.local.work.append((t, steps.cpu()))  # a coordinate step is as much work as a sample's gradient

    def server_update(self, means: Means | None, round_: Round) -> None:
        """W <- (1/lambda) B Sigma; after `inner_rounds` rounds Sigma <- (W^T W)^1/2 / tr, and W is computed again."""
        self.w = self.primal_models()
        if (round_.number + 1) % self.inner_rounds == 0:
            self.sigma = relations(self.w)
            self.w = self.primal_models()  # the old W would no longer belong to alpha, and the gap would never close
        self.traffic = Transmission(down=1, up=1, streams=self.n_clients)  # each client receives its own w_t

    def primal_models(self) -> Tensor:
        """The primal models W(alpha) = (1/lambda) B Sigma: [T, d]."""
        return (self.sigma.double() @ self.b.double() / self.penalty).to(self.b)  # autocast leaves float64 alone

    @property
    def safety(self) -> Tensor:
        """sigma' = max_t sum_s |Sigma_ts| / Sigma_tt, [], 1 at first; it keeps simultaneous steps from overshooting."""
        return (self.sigma.abs().sum(dim=1) / self.sigma.diagonal()).max()

    def measure_gap(self, batch: Block, a: Tensor, m: Tensor) -> None:
        """Logs P / T, D / T and the duality gap at the start of the round, as means over the cohort's clients."""
        t, owner = batch.clients, batch.owner
        half = (self.w[t] * self.b[t]).sum(dim=1) / 2  # the client's part of (lambda / 2) tr(W Omega W^T)  [C]
        none = torch.zeros_like(half)
        primal = none.index_add(0, owner, F.softplus(-m)) / batch.counts() + half
        dual = none.index_add(0, owner, torch.special.entr(a) + torch.special.entr(1 - a)) / batch.counts() - half
        for name, values in (("primal", primal), ("dual", dual), ("duality_gap", primal - dual)):
            self.measure(name, values)

    def personal_models(self, clients: Tensor) -> OwnModels:
        """Client t predicts with w_t, as the backbone's weight and bias."""
        parameters = dict(self.components[0].named_parameters())  # weight, then bias
        parts = self.w[clients].split([p.numel() for p in parameters.values()], dim=1)
        models = {n: w.view(-1, 1, *p.shape) for (n, p), w in zip(parameters.items(), parts, strict=True)}
        return self.own_models(models)

    def prepare(self, data: Federation) -> None:
        """Checks that there are two classes, and that every client trains: unseen clients have no row in Sigma."""
        task, result, needed = data.task, self.n_features, n_values(data.in_shape)
        two = f"algorithm: MOCHA needs two classes and one logit (a binary task), the data is a {type(task).__name__}"
        require(isinstance(task, BinaryClassification), two)
        require(result == needed, f"backbone: expected a linear layer of {needed} features, got {result}")
        unseen = "dataset.unseen or unseen_fraction: MOCHA has no model for clients that did not train"
        require(bool(data.seen.all()), unseen)


def ascend(
    z: Tensor, a: Tensor, m: Tensor, c: Tensor, scale: Tensor, n: Tensor, active: list[int]
) -> tuple[Tensor, Tensor]:
    """The local solver: coordinate steps, one after the other, of all clients at once.

    With delta w = Sigma_tt delta b / lambda, a client's model for its own steps is w_t + sigma' delta w. z, a, m and c
    are y x [V, d], y alpha, y x^T w_t and curvature [V] of the visited samples, step after step; `scale` and n are
    sigma' Sigma_tt / lambda and n_t of the clients [C], those with more steps first; `active` are the numbers of
    clients that take step 0, 1, ..., with sum V. It returns the new a [V] and delta b [C, d].
    """
    new_a, delta_b, start = a.clone(), z.new_zeros(len(n), z.shape[1]), 0
    for n_active in active:
        now, start = slice(start, start + n_active), start + n_active
        delta = delta_b[:n_active]  # a view: the clients that take this step
        margin = m[now] + scale[:n_active] * (z[now] * delta).sum(dim=1)  # y x^T (w_t + sigma' delta w)
        slope = torch.sigmoid(-margin) - a[now]
        new_a[now] = a[now] + slope / (c[now] + 1 / 4).clamp(min=1)  # Shalev-Shwartz and Zhang 2013
        delta.addcmul_(z[now], ((new_a[now] - a[now]) / n[:n_active]).unsqueeze(1))
    return new_a, delta_b


def relations(w: Tensor) -> Tensor:
    """Sigma = (W^T W)^1/2 / tr (W^T W)^1/2, eigenvalues of W^T W at least 1e-7: w [T, d] -> [T, T]."""
    values, vectors = torch.linalg.eigh(w.double() @ w.double().T)
    root = (vectors * values.clamp(min=1e-7).sqrt()) @ vectors.T
    return (root / root.trace()).to(w)


def linear_layer(backbone: nn.Module) -> nn.Linear:
    """The only layer of a linear backbone with one output; UserError if it is another backbone."""
    leaves = [m for m in backbone.modules() if not list(m.children()) and not isinstance(m, nn.Flatten | nn.Identity)]
    match leaves:
        case [nn.Linear(out_features=1) as layer] if len(trained_parameters(backbone)) == len(list(layer.parameters())):
            return layer
    raise UserError("backbone: MOCHA needs one linear layer with one output (backbone=linear and a binary task)")
