"""Federated surrogate optimisation with a server (Alg. 3): the general form of which FedEM is an instance.

Marfoq, Neglia, Bellet, Kameni, Vidal: "Federated Multi-Task Learning under a Mixture of Distributions", NeurIPS 2021,
arXiv 2108.10252, Section 3.4 and Appendix F. It minimises f(u, v_{1:T}) = sum_t (n_t / n) f_t(u, v_t): all clients
share the M models u, and v_t, in the simplex, are client t's weights of them. `decentralized.py` has the form without a
server (Alg. 5).
"""

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor

from fedem_lightning.aggregation import Update
from fedem_lightning.data.block import Block
from fedem_lightning.data.federation import Federation
from fedem_lightning.em import mixture_losses, mixture_weights, responsibilities
from fedem_lightning.models.components import Backbone
from fedem_lightning.models.personal_models import SharedModels
from fedem_lightning.module import FederatedAlgorithm
from fedem_lightning.records.recipes import Recorded
from fedem_lightning.settings.ranges import PositiveInt


class Surrogate(Recorded, ABC):
    """An objective f_t, the mean of terms over a client's samples, and its partial first-order surrogates (Def. 1).

    Up to constants in u, g_t(u, v) = (1 / n_t) sum_i sum_m w[i, m] l(u_m; s_i). It must be at least f_t everywhere, and
    equal to it at (u^{k-1}, v_t^{k-1}) with the same gradient in u. Arguments are the weights v [C, M] of a batch's C
    clients, and the losses l(u_m; s_i) [n, M] of its n samples.
    """

    @abstractmethod
    def terms(self, v: Tensor, losses: Tensor, batch: Block) -> Tensor:
        """The terms of f_t(u, v_t), [n]."""

    @abstractmethod
    def majorize(self, v: Tensor, losses: Tensor, batch: Block) -> tuple[Tensor, Tensor]:
        """g_t near (u^{k-1}, v_t^{k-1}): v_t^k = argmin_v g_t(u^{k-1}, v), [C, M], and the weights w [n, M]."""


class MixtureSurrogate(Surrogate):
    """FedEM's surrogate (App. G, Eq. 182): v_t = pi_t, and w are the responsibilities."""

    def terms(self, v: Tensor, losses: Tensor, batch: Block) -> Tensor:
        """Eq. 6."""
        return mixture_losses(v, losses, batch.owner)

    def majorize(self, v: Tensor, losses: Tensor, batch: Block) -> tuple[Tensor, Tensor]:
        """The mixture weights (Eq. 9) by the E-step (Eq. 8)."""
        q = responsibilities(v, losses, batch.owner)
        return mixture_weights(q, batch.owner, v), q


class SurrogateOptimization(FederatedAlgorithm):
    """Client-server federated surrogate optimisation, Alg. 3. With `MixtureSurrogate` it is FedEM, bit for bit.

    Args:
        backbone, n_clients, n_components, options: see `FederatedAlgorithm`.
        surrogate: makes the surrogates of the clients' objectives.

    """

    private_ok = True
    private: Tensor  # v [T, M]; rows sum to 1

    def __init__(
        self, backbone: Backbone, n_clients: int, surrogate: Surrogate, n_components: PositiveInt = 1, **options: Any
    ) -> None:
        super().__init__(backbone, n_clients, n_components, **options)
        self.surrogate, uniform = surrogate, torch.full((n_clients, n_components), 1.0 / n_components)
        self.private = self.per_client(uniform, column="pi_{m}")

    def majorized(self, batch: Block) -> Tensor:
        """The weights w [n, M] in the surrogates of the batch's clients, which keep the v that minimises them."""
        t, losses = batch.clients, self.losses(batch)
        self.measure("objective", self.surrogate.terms(self.private[t], losses, batch))
        self.private[t], weights = self.surrogate.majorize(self.private[t], losses, batch)
        return weights

    def client_update(self, batch: Block, round_: int) -> Update | None:
        """Alg. 3: clients compute surrogate and private variable, then run the local solver; u_t has weight n_t."""
        weights = self.majorized(batch)
        u = self.received(batch.clients)  # [C, M, ...]
        return Update(self.local_sgd(u, batch, round_, weights), batch.counts(), start=u)

    def tuning_weights(self, v: Tensor, losses: Tensor, batch: Block) -> Tensor:
        """The samples' weights when clients tune their models, [n, M]."""
        return self.surrogate.majorize(v, losses, batch)[1]

    def personal_models(self, clients: Tensor) -> Any:
        """All clients predict with the components, which each weighs by its v."""
        return SharedModels(self.components, self.private[clients].to(self.parameter_dtype), self.tuning_weights)

    def personalize_clients(self, data: Federation, clients: Tensor) -> None:
        """An unseen client minimises the surrogate once, from even weights."""
        self.private[clients] = 1.0 / len(self.components)
        for batch in self.batches(data, clients):
            self.majorized(batch)
