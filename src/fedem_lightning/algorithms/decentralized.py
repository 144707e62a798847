"""Surrogate optimisation without a server: clients on a graph average with their neighbours.

Marfoq et al., NeurIPS 2021, arXiv 2108.10252, Appendix E (Alg. 4, D-FedEM) and F (Alg. 5, the general form).
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedem_lightning.aggregation import Means, Models, Update
from fedem_lightning.algorithms.surrogate import MixtureSurrogate, Surrogate, SurrogateOptimization
from fedem_lightning.data.block import Block
from fedem_lightning.data.federation import Federation
from fedem_lightning.history import Round
from fedem_lightning.models.components import Backbone
from fedem_lightning.models.personal_models import OwnModels
from fedem_lightning.network import Transmission
from fedem_lightning.settings.ranges import PositiveInt
from fedem_lightning.topology import Topology, spectral_gap


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
