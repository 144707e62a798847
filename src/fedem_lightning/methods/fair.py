"""AFL, q-FFL and agnostic federated learning: averages in which clients, or domains, with a large loss count more.

- AFL. Mohri, Sivek, Suresh: "Agnostic Federated Learning", ICML 2019, arXiv 1902.00146. Stochastic-AFL, Figure 1.
- q-FFL. Li, Sanjabi, Beirami, Smith: "Fair Resource Allocation in Federated Learning", ICLR 2020, arXiv 1905.10497.
  Algorithm 2, q-FedAvg.
- Agnostic. Mansour, Mohri, Ro, Suresh, 2020, arXiv 2002.10619, Appendix B.2, for the objective. Ro, Chen, Mathews,
  Mohri, Suresh: "Communication-Efficient Agnostic Federated Averaging", Interspeech 2021, arXiv 2104.02748, for the
  rule.
"""

import copy
from typing import Any

import torch
from torch import Tensor

from fedem_lightning.aggregate import Means, Update
from fedem_lightning.data.federation import Block, Federation
from fedem_lightning.data.randomness import share_of
from fedem_lightning.models.components import Backbone, model_state
from fedem_lightning.models.personal_models import SharedModels, client_means
from fedem_lightning.module.algorithm import FederatedAlgorithm
from fedem_lightning.module.checks import check_everybody_trains
from fedem_lightning.module.round import draw_cohort
from fedem_lightning.settings.errors import require
from fedem_lightning.settings.ranges import NotNegative
from fedem_lightning.state.history import Round


def mean_losses(algorithm: FederatedAlgorithm, batch: Block) -> Tensor:
    """The mean loss of each client's samples at w, [C]."""
    return client_means(algorithm.losses(batch).to(algorithm.parameter_dtype), batch)[:, 0]


class AFL(FederatedAlgorithm):
    """min_w max_lambda sum_t lambda_t F_t(w): the weights move towards the clients with the largest loss.

    Clients predict with the mean of w over all rounds. With one full batch a round (`local_steps=1`, a large
    `batch_size`) a round is the paper's gradient step; with more local steps w <- sum_t lambda_t w_t.

    Args:
        backbone, n_clients, options: see `FederatedAlgorithm`. `client_optimizer.lr` is gamma_w.
        weights_lr: gamma_lambda, 0 or more.

    """

    needs_sgd = True  # it adds up the clients' gradient steps, w - lr grad F_t
    weights: Tensor  # lambda [T]; the entries of the seen clients are on the simplex
    losses_of_clients: Tensor  # F_t [T], nats

    def __init__(self, backbone: Backbone, n_clients: int, weights_lr: NotNegative = 0.001, **options: Any) -> None:
        super().__init__(backbone, n_clients, n_components=1, **options)
        self.weights_lr = weights_lr
        self.weights = self.per_client(torch.zeros(n_clients), column="lambda", held_by="server")
        self.losses_of_clients = self.per_client(torch.zeros(n_clients), held_by="both")
        self.averaged = copy.deepcopy(self.components)  # w_bar

    def prepare(self, data: Federation) -> None:
        """Checks that every client takes part in every round: the loss of each client moves lambda."""
        check_everybody_trains(self, data)

    def initialize(self, data: Federation) -> None:
        """Lambda is uniform over the clients that train."""
        seen = data.seen.to(self.weights)
        self.weights.copy_(seen / seen.sum())

    def client_update(self, batch: Block, round_: int) -> Update:
        """The client's loss F_t(w) and the update w - gamma_w grad F_t(w), both at the received w."""
        t, w = batch.clients, self.received(batch.clients)  # [C, 1, ...]
        self.losses_of_clients[t] = mean_losses(self, batch)
        return Update(self.local_sgd(w, batch, round_), self.weights[t], start=w)

    def server_update(self, means: Means | None, round_: Round) -> None:
        """w <- w - gamma_w sum_t lambda_t grad F_t; lambda <- projection of lambda + gamma_lambda F; w_bar = mean w."""
        super().server_update(means, round_)
        t = round_.cohort  # all clients that train
        self.weights[t] = project_on_simplex(self.weights[t] + self.weights_lr * self.losses_of_clients[t])
        for mean, current in zip(self.averaged, self.components, strict=True):
            newest = model_state(current)
            for name, tensor in model_state(mean).items():
                if tensor.is_floating_point():
                    tensor.add_((newest[name] - tensor) / (round_.number + 1))
                else:
                    tensor.copy_(newest[name])

    def personal_models(self, clients: Tensor) -> SharedModels:
        """All clients predict with w_bar."""
        single = torch.ones(len(clients), 1, dtype=self.parameter_dtype, device=clients.device)
        return SharedModels(self.averaged, single)


def project_on_simplex(v: Tensor) -> Tensor:
    """The point of {lambda >= 0, sum lambda = 1} nearest to v [T] (Duchi et al. 2008, Fig. 1)."""
    v = v - v.max()  # the same point, without large numbers
    u = v.sort(descending=True).values
    excess = (u.cumsum(0) - 1) / torch.arange(1, len(v) + 1, device=v.device)  # [T]
    threshold = excess[int((u > excess).sum()) - 1]
    return (v - threshold).clamp(min=0)


class QFFL(FederatedAlgorithm):
    """min_w sum_t p_t / (q + 1) F_t(w)^{q+1}: with larger q clients with high losses count more; AFL is the limit.

    Args:
        backbone, n_clients, options: see `FederatedAlgorithm`. L is 1 / `client_optimizer.lr`.
        q: 0 or more; at 0 the server takes the plain mean of the clients' models.

    """

    needs_sgd = True  # it reads gradients off its updates, (w - w_t) / lr
    reference: Tensor  # [], the clients' mean loss in the last round; F is divided by it, so that F^q stays finite

    def __init__(
        self,
        backbone: Backbone,
        n_clients: int,
        q: NotNegative = 1.0,
        **options: Any,
    ) -> None:
        super().__init__(backbone, n_clients, n_components=1, **options)
        self.q, self.samples_by_size = q, True  # p_t = n_t / n
        self.register_buffer("reference", torch.ones(()))

    def initialize(self, data: Federation) -> None:
        """Sets the first reference, a scale: the mean loss of the first cohort, or 1 if the samples are elsewhere."""
        if self.remote is not None:
            return
        losses = [mean_losses(self, batch) for batch in self.batches(data, draw_cohort(self, data, 0))]
        mean = torch.cat(losses).nan_to_num(1.0, 1.0).mean() / data.task.n_targets
        self.reference.copy_(mean + 1e-10)

    def client_update(self, batch: Block, round_: int) -> Update:
        """Delta_t = F_t^q Dw_t and h_t = q F_t^{q-1} |Dw_t|^2 + L F_t^q, where Dw_t = L (w - w_t)."""
        w, smoothness = self.received(batch.clients), 1.0 / self.local.lr_at(round_)  # L
        loss = mean_losses(self, batch) / batch.federation.task.n_targets + 1e-10  # F_t(w)  [C]
        w_t = self.local_sgd(w, batch, round_)  # [C, 1, ...]
        relative = loss / self.reference
        power = relative**self.q  # Delta_t and h_t for all t get the same factor, which cancels
        sent, start, squared_norm = dict(w_t), dict(w), torch.zeros_like(loss)
        for name, received in self.params_of(w).items():
            dw = smoothness * (received - w_t[name])
            squared_norm += dw.flatten(1).square().sum(dim=1)
            sent[name] = power.view(-1, *[1] * (dw.ndim - 1)) * dw  # Delta_t
            start[name] = torch.zeros_like(received)  # clients send no models
        h = self.q * relative ** (self.q - 1) / self.reference * squared_norm + smoothness * power
        extras = {"h": h.unsqueeze(1), "loss": loss.unsqueeze(1)}  # [C, 1]
        return Update(sent, torch.ones_like(loss), start=start, extras=extras)

    def server_update(self, means: Means | None, round_: Round) -> None:
        """w <- w - sum_t Delta_t / sum_t h_t; buffers become their mean."""
        if means is None:
            return
        self.server.take_buffers(means)
        h = means.extras["h"][0, 0]
        self.reference.copy_(means.extras["loss"][0, 0])
        self.server.step([{name: delta[0] / h for name, delta in self.params_of(means.models).items()}])


LEAST_WEIGHT = 1e-12
"""Least weight of a domain: a weight of 0 could never grow again, and its samples would no longer count."""


class Agnostic(FederatedAlgorithm):
    """min_w max_lambda sum_i lambda_i L_i(w): a domain's weight grows with its loss, so the worst domain counts most.

    The domains are the data's (`Federation.domains`); a client may have samples of several.

    Args:
        domain_lr: gamma, 0 or more.

    """

    one_process = True
    weights: Tensor  # lambda [p], on the simplex; [0] before the first round
    mean_counts: Tensor  # the last cohort's number of samples of each domain (the paper's window is one round) [p]

    def __init__(
        self,
        backbone: Backbone,
        n_clients: int,
        domain_lr: NotNegative = 0.05,
        **options: Any,
    ) -> None:
        super().__init__(backbone, n_clients, n_components=1, **options)
        self.domain_lr = domain_lr
        self.register_buffer("weights", torch.zeros(0))
        self.register_buffer("mean_counts", torch.zeros(0))

    def prepare(self, data: Federation) -> None:
        """Checks that the domain of every sample is known."""
        how = "dataset.domains, or an array 'domain' beside x and y"
        require(data.domains is not None, f"dataset.domains: Agnostic needs the domain of every sample ({how})")

    def initialize(self, data: Federation) -> None:
        """Sets lambda_0, and `mean_counts` to a cohort's expected number of samples of each domain."""
        everybody = data.block(data.clients(), "train")
        counts = self._by_domain(everybody).sum(dim=0).to(self.parameter_dtype)  # [p]
        self.weights = torch.ones_like(counts) / len(counts)
        share = share_of(self.participation, len(everybody.clients)) / len(everybody.clients)
        self.mean_counts = torch.where(counts > 0, share * counts, 1.0)  # never used for a domain without samples

    def client_update(self, batch: Block, round_: int) -> Update:
        """Sends L_i^k, N_i^k and b_k = sum_i a_i N_i^k; local SGD on sum_{s in I} (n_k a_dom(s) / b_k) l(s) / |I|."""
        a = self.weights / self.mean_counts  # [p]
        losses = self.losses(batch)[:, 0] / batch.federation.task.n_targets  # [n]
        loss_sums, counts = self._by_domain(batch, losses), self._by_domain(batch)  # L_i^k, N_i^k  [C, p]
        b = (a * counts).sum(dim=1)  # [C]
        weights = a[batch.domain()] * (batch.counts() / b)[batch.owner]  # [n]
        w = self.received(batch.clients)  # [C, 1, ...]
        models = self.local_sgd(w, batch, round_, weights.unsqueeze(1))
        # the server's average has weights b_k: multiplied by sum_k b_k it gives the sums over the cohort
        extras = {name: total / b.unsqueeze(1) for name, total in (("losses", loss_sums), ("counts", counts))}  # [C, p]
        return Update(models, b, start=w, extras=extras)

    def server_update(self, means: Means | None, round_: Round) -> None:
        """w <- w - serveropt(sum_k b_k (w - w_k) / sum_k b_k);  lambda_i ~ lambda_i exp(gamma L_i)."""
        super().server_update(means, round_)
        if means is not None:
            b = float(means.weight[0])  # sum_k b_k
            loss_sums, counts = (b * means.extras[name][0] for name in ("losses", "counts"))  # [p]
            loss = torch.where(counts > 0, loss_sums / counts, 0.0)  # L_i  [p]
            grown = self.weights.log() + self.domain_lr * loss.to(self.weights)
            self.weights = torch.softmax(grown, dim=0).clamp(min=LEAST_WEIGHT)
            self.mean_counts = torch.where(counts > 0, counts, self.mean_counts)  # stays without new samples
        assert round_.federation.domains is not None
        for name, weight in zip(round_.federation.domains.names, self.weights, strict=True):
            self.measure(f"lambda_{name}", weight)

    @staticmethod
    def _by_domain(batch: Block, values: Tensor | None = None) -> Tensor:
        """Sums of `values` [n] over each client's samples of each domain, [C, p]; None: their numbers."""
        assert batch.federation.domains is not None
        shape = len(batch.clients), len(batch.federation.domains.names)
        cell = batch.owner * shape[1] + batch.domain()  # [n]
        values = torch.ones_like(cell) if values is None else values
        return values.new_zeros(shape[0] * shape[1]).index_add_(0, cell, values).view(shape)
