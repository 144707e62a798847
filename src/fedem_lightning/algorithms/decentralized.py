"""Surrogate optimisation without a server: clients on a graph average with their neighbours.

Marfoq et al., NeurIPS 2021, arXiv 2108.10252, Appendix E (Alg. 4, D-FedEM) and F (Alg. 5, the general form).
"""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedem_lightning.aggregation import Means, Models, Sent
from fedem_lightning.algorithms.facts import Facts
from fedem_lightning.algorithms.surrogate import MixtureSurrogate, Surrogate, SurrogateOptimization
from fedem_lightning.data.block import Block
from fedem_lightning.data.federation import Federation
from fedem_lightning.history import Round
from fedem_lightning.models.client_store import ClientStore
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
        backbone, n_clients, n_components, options: see `FederatedAlgorithm`; the server optimiser must be the
            plain average.
        surrogate: makes the surrogates of the clients' objectives.
        topology: graph and mixing weights.

    """

    facts = Facts(
        released=("every client's models, to its neighbours",),
        needs_one_machine="has no server",
        uses_server_optimizer=False,
        sends_updates=False,
        needs_sgd="scales a client's steps by T n_t / n, which adaptive steps undo",
    )

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
        self.models = ClientStore.of_components(n_clients, self.components)  # u_t
        self._neighbours = 0.0  # a client's mean number of neighbours

    def client_update(self, block: Block, round_: int) -> Sent | None:
        """Alg. 5: the client takes surrogate and private variable at its own u_t, then local steps to u_t^{k-1/2}."""
        t, counts = block.clients, block.federation.splits["train"].counts(block.federation.clients())
        scale = block.counts().double() * (len(counts) / float(counts.sum()))  # T n_t / n  [C]
        weights = self.majorized(block) * scale.to(self.parameter_dtype)[block.owner].unsqueeze(1)
        self.models.write(t, self.local.solve(self.models.read(t), block, round_, weights))
        return None

    def server_update(self, means: Means | None, round_: Round) -> None:
        """Neighbours average, in place of a server: u_t <- sum_s w_st u_s^{k-1/2}."""
        clients = round_.federation.clients()
        active = torch.isin(clients, round_.cohort).cpu().numpy()
        w = self.topology.mixing(len(clients), active, self.seed, round_.number)  # [T, T]
        self._neighbours = float(((w > 0).sum() - (w.diagonal() > 0).sum()) / active.sum())
        spread = self.models.mix(clients, torch.from_numpy(w))
        gap = spectral_gap(w[np.ix_(active, active)])  # of the clients in the cohort
        for name, value in (("consensus_error", spread), ("spectral_gap", gap)):
            self.round_metrics.add(name, torch.tensor([value], dtype=torch.float64))
        self.server.step()

    def losses(self, block: Block) -> Tensor:
        """The losses of each client's own models, [n, M]."""
        return self.own_models(self.models.read(block.clients)).losses(block)

    def personal_models(self, clients: Tensor) -> OwnModels:
        """Client t predicts with the models u_t, which it weighs by its v."""
        own, v = self.models.read(clients), self.private[clients].to(self.parameter_dtype)
        return OwnModels(self.components[0], own, v, self.tuning_weights)

    def transmission(self, clients: Tensor) -> Transmission:
        """M models to and from each neighbour of the last round's graph; neighbours receive a broadcast; no server."""
        m = len(self.components)
        return Transmission(down=m * self._neighbours, up=m * self._neighbours, uploads=m, streams=0)

    def evaluation_components(self, federation: Federation) -> Models:
        """The evaluation components are the mean of all u_t, [M, ...]."""
        return self.models.mean(federation.clients())

    def personalize_clients(self, federation: Federation, clients: Tensor) -> None:
        """An unseen client takes the mean of all u_t, and minimises the surrogate once, from even weights."""
        mean = self.models.mean(federation.clients())
        self.models.write(clients, {name: row.expand(len(clients), *row.shape) for name, row in mean.items()})
        super().personalize_clients(federation, clients)


class DFedEM(DecentralizedSurrogateOptimization):
    """Client t has its own components theta_{m,t} and weights pi_t, and averages the components with its neighbours.

    A round is the E-step (Eq. 8) and pi (Eq. 9) with its own components, local steps scaled by T n_t / n, and then
    theta_{m,t} <- sum_s w_st theta_{m,s}. With M = 1 it is decentralised FedAvg (D-SGD with local steps).

    Args:
        backbone, n_clients, options: see `FederatedAlgorithm`.
        n_components: M.
        topology: graph and mixing weights; the paper: Erdos-Renyi with p = 0.5 and the fastest-mixing weights.

    """

    facts = replace(DecentralizedSurrogateOptimization.facts, mixes=True)

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
