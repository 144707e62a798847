"""Agnostic federated learning over given domains of samples, by AgnosticFedAvg.

Mansour, Mohri, Ro, Suresh: "Three Approaches for Personalization with Applications to Federated Learning", 2020, arXiv
2002.10619, Appendix B.2, for the objective. Ro, Chen, Mathews, Mohri, Suresh: "Communication-Efficient Agnostic
Federated Averaging", Interspeech 2021, arXiv 2104.02748, for the rule.
"""

from typing import Any

import torch
from torch import Tensor

from fedem_lightning.aggregation import Means, Update
from fedem_lightning.data.block import Block
from fedem_lightning.data.federation import Federation
from fedem_lightning.errors import require
from fedem_lightning.history import Round
from fedem_lightning.models.components import Backbone
from fedem_lightning.module import FederatedAlgorithm
from fedem_lightning.randomness import share_of
from fedem_lightning.settings.ranges import NotNegative, PositiveInt

LEAST = 1e-12
"""Least weight of a domain: a weight of 0 could never grow again, and its samples would no longer count."""


class Agnostic(FederatedAlgorithm):
    """min_w max_lambda sum_i lambda_i L_i(w): a domain's weight grows with its loss, so the worst domain counts most.

    The domains are the data's (`Federation.domains`); a client may have samples of several.

    Args:
        domain_lr: gamma, 0 or more.
        window: r_win, the number of rounds over which a cohort's samples of each domain are averaged.

    """

    one_process = True
    weights: Tensor  # lambda [p], on the simplex; [0] before the first round
    mean_counts: Tensor  # a cohort's number of samples of each domain, a mean over the window [p]
    recent_counts: Tensor  # the numbers of the last rounds [window, p]

    def __init__(
        self,
        backbone: Backbone,
        n_clients: int,
        domain_lr: NotNegative = 0.05,
        window: PositiveInt = 1,
        **options: Any,
    ) -> None:
        super().__init__(backbone, n_clients, n_components=1, **options)
        self.domain_lr, self.window = domain_lr, window
        for name in ("weights", "mean_counts", "recent_counts"):
            self.register_buffer(name, torch.zeros(0))

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
        self.recent_counts = counts.new_zeros(self.window, len(counts))

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
            self.weights = torch.softmax(grown, dim=0).clamp(min=LEAST)
            self.recent_counts[round_.number % self.window] = counts
            mean = self.recent_counts[: round_.number + 1].mean(dim=0)
            self.mean_counts = torch.where(mean > 0, mean, self.mean_counts)  # stays without new samples
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
