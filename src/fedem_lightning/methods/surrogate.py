"""Federated surrogate optimisation, with a server (Alg. 3) and without: the general form of which FedEM is an instance.

Marfoq, Neglia, Bellet, Kameni, Vidal: "Federated Multi-Task Learning under a Mixture of Distributions", NeurIPS 2021,
arXiv 2108.10252, Section 3.4 and Appendix F. It minimises f(u, v_{1:T}) = sum_t (n_t / n) f_t(u, v_t): all clients
share the M models u, and v_t, in the simplex, are client t's weights of them. Without a server, clients on a graph
average with their neighbours (Appendix E, Alg. 4, D-FedEM, and Appendix F, Alg. 5, the general form).
"""

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedem_lightning.aggregate import Means, Models, Update
from fedem_lightning.aggregate.topology import Topology, spectral_gap
from fedem_lightning.data.block import Block
from fedem_lightning.data.federation import Federation
from fedem_lightning.models.components import Backbone
from fedem_lightning.models.em import mixture_losses, mixture_weights, responsibilities
from fedem_lightning.models.personal_models import OwnModels, SharedModels
from fedem_lightning.module.algorithm import FederatedAlgorithm
from fedem_lightning.settings.ranges import PositiveInt
from fedem_lightning.settings.recipes import Recorded
from fedem_lightning.state.history import Round
from fedem_lightning.state.network import Transmission


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


class DecentralizedSurrogateOptimization(SurrogateOptimization):
    """Every client has its own u_t; a round is local steps, then u_t <- sum_s w_st u_s over the neighbours (Alg. 5).

    W averages clients regardless of their sizes, so a client's step is scaled by T n_t / n: the paper's learning rate
    is T times ours. With this scale, the complete graph, equal sizes and plain SGD give the client-server algorithm.
    All clients start from the same u. Clients outside a round's cohort are isolated nodes. An unseen client takes the
    mean of all u_t.

    Args:
        backbone, n_clients, n_components, options: see `FederatedAlgorithm`; the server takes plain averages.
        surrogate: makes the surrogates of the clients' objectives.
        topology: graph and mixing weights.

    """

    private_ok = False
    needs_sgd = True  # a client's steps are scaled by T n_t / n
    sends_models = False
    one_process = True  # there is no server

    def __init__(
        self,
        backbone: Backbone,
        n_clients: int,
        surrogate: Surrogate,
        n_components: PositiveInt = 1,
        topology: Topology | None = None,
        **options: Any,
    ) -> None:
        super().__init__(backbone, n_clients, surrogate, n_components, **options)
        self.topology = topology or Topology()
        self.models = self.per_client(self.components, held_by="both")  # u_t

    def client_update(self, batch: Block, round_: int) -> Update | None:
        """Alg. 5: the client takes surrogate and private variable at its own u_t, then local steps to u_t^{k-1/2}."""
        t, counts = batch.clients, batch.federation.splits["train"].counts(batch.federation.clients())
        scale = batch.counts().double() * (len(counts) / float(counts.sum()))  # T n_t / n  [C]
        weights = self.majorized(batch) * scale.to(self.parameter_dtype)[batch.owner].unsqueeze(1)
        self.models[t] = self.local_sgd(self.models[t], batch, round_, weights)
        return None

    def server_update(self, means: Means | None, round_: Round) -> None:
        """Neighbours average, in place of a server: u_t <- sum_s w_st u_s^{k-1/2}."""
        clients = round_.federation.clients()
        active = torch.isin(clients, round_.cohort).cpu().numpy()
        w = self.topology.mixing(len(clients), active, self.seed, round_.number)  # [T, T]
        m, neighbours = len(self.components), float(((w > 0).sum() - (w.diagonal() > 0).sum()) / active.sum())
        self.traffic = Transmission(m * neighbours, m * neighbours, uploads=m, streams=0)  # neighbours hear a broadcast
        spread = self.models.mix(clients, torch.from_numpy(w))
        gap = spectral_gap(w[np.ix_(active, active)])  # of the clients in the cohort
        self.measure("consensus_error", torch.tensor([spread], dtype=torch.float64))
        self.measure("spectral_gap", torch.tensor([gap], dtype=torch.float64))

    def losses(self, batch: Block) -> Tensor:
        """The losses of each client's own models, [n, M]."""
        return self.own_models(self.models[batch.clients]).losses(batch)

    def personal_models(self, clients: Tensor) -> OwnModels:
        """Client t predicts with the models u_t, which it weighs by its v."""
        own, v = self.models[clients], self.private[clients].to(self.parameter_dtype)
        return OwnModels(self.components[0], own, v, self.tuning_weights)

    def evaluation_components(self, data: Federation) -> Models:
        """The evaluation components are the mean of all u_t, [M, ...]."""
        return self.models.mean(data.clients())

    def personalize_clients(self, data: Federation, clients: Tensor) -> None:
        """An unseen client takes the mean of all u_t, and minimises the surrogate once, from even weights."""
        mean = self.models.mean(data.clients())
        self.models[clients] = {name: row.expand(len(clients), *row.shape) for name, row in mean.items()}
        super().personalize_clients(data, clients)


class DFedEM(DecentralizedSurrogateOptimization):
    """Client t has its own components theta_{m,t} and weights pi_t, and averages the components with its neighbours.

    A round is the E-step (Eq. 8) and pi (Eq. 9) with its own components, local steps scaled by T n_t / n, and then
    theta_{m,t} <- sum_s w_st theta_{m,s}. With M = 1 it is decentralised FedAvg (D-SGD with local steps).

    Args:
        n_components: M.
        topology: graph and mixing weights; the paper: Erdos-Renyi with p = 0.5 and the fastest-mixing weights.

    """

    def __init__(
        self,
        backbone: Backbone,
        n_clients: int,
        n_components: PositiveInt = 3,
        topology: Topology | None = None,
        **options: Any,
    ) -> None:
        super().__init__(backbone, n_clients, MixtureSurrogate(), n_components, topology, **options)

    @property
    def pi(self) -> Tensor:
        """The mixture weights, [T, M]."""
        return self.private
