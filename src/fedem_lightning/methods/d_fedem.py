"""D-FedEM: FedEM without a server, on a graph of clients.

Marfoq, Neglia, Bellet, Kameni, Vidal: "Federated Multi-Task Learning under a Mixture of Distributions", NeurIPS 2021,
arXiv 2108.10252. Algorithm 4; equation numbers are the paper's.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedem_lightning.aggregate import Means, Models
from fedem_lightning.aggregate.topology import Topology, spectral_gap
from fedem_lightning.data.federation import Block, Federation
from fedem_lightning.models.components import Backbone
from fedem_lightning.models.em import mixture_losses, mixture_weights, responsibilities
from fedem_lightning.models.personal_models import OwnModels
from fedem_lightning.module.algorithm import FederatedAlgorithm
from fedem_lightning.settings.ranges import PositiveInt
from fedem_lightning.state.history import Round
from fedem_lightning.state.network import Transmission


class DFedEM(FederatedAlgorithm):
    """Client t has its own components theta_{m,t} and weights pi_t, and averages the components with its neighbours.

    W averages clients regardless of their sizes, so a client's step is scaled by T n_t / n: the paper's learning rate
    is T times ours. With this scale, the complete graph, equal sizes and plain SGD give FedEM; with M = 1 it is
    decentralised FedAvg (D-SGD with local steps). All clients start from the same components. Clients outside a round's
    cohort are isolated nodes. An unseen client takes the mean of all clients' components.

    Args:
        n_components: M.
        topology: graph and mixing weights; the paper: Erdos-Renyi with p = 0.5 and the fastest-mixing weights.

    """

    needs_sgd = True  # a client's steps are scaled by T n_t / n
    sends_models = False
    one_process = True  # there is no server
    pi: Tensor  # mixture weights [T, M]; rows sum to 1

    def __init__(
        self,
        backbone: Backbone,
        n_clients: int,
        n_components: PositiveInt = 3,
        topology: Topology | None = None,
        **options: Any,
    ) -> None:
        super().__init__(backbone, n_clients, n_components, **options)
        self.topology, uniform = topology or Topology(), torch.full((n_clients, n_components), 1.0 / n_components)
        self.pi = self.per_client(uniform, column="pi_{m}")
        self.models = self.per_client(self.components, held_by="both")  # theta_{m,t}

    def client_update(self, batch: Block, round_: int) -> None:
        """E-step and mixture weights with the client's own components, then local steps to theta_{m,t}^{k-1/2}."""
        t, counts = batch.clients, batch.federation.splits["train"].counts(batch.federation.clients())
        scale = batch.counts().double() * (len(counts) / float(counts.sum()))  # T n_t / n  [C]
        weights = self.em_step(batch) * scale.to(self.parameter_dtype)[batch.owner].unsqueeze(1)
        self.models[t] = self.local_sgd(self.models[t], batch, round_, weights)  # Eq. 10

    def e_step(self, pi: Tensor, losses: Tensor, batch: Block) -> Tensor:
        """q of Eq. 8, [n, M]."""
        return responsibilities(pi, losses, batch.owner)

    def em_step(self, batch: Block) -> Tensor:
        """q of Eq. 8, [n, M]; the clients keep pi of Eq. 9."""
        t = batch.clients
        losses = self.own_models(self.models[t]).losses(batch)  # of each client's own components  [n, M]
        self.measure("objective", mixture_losses(self.pi[t], losses, batch.owner))  # Eq. 6
        q = self.e_step(self.pi[t], losses, batch)
        self.pi[t] = mixture_weights(q, batch.owner, self.pi[t])
        return q

    def server_update(self, means: Means | None, round_: Round) -> None:
        """Neighbours average, in place of a server: theta_{m,t} <- sum_s w_st theta_{m,s}^{k-1/2}."""
        clients = round_.federation.clients()
        active = torch.isin(clients, round_.cohort).cpu().numpy()
        w = self.topology.mixing(len(clients), active, self.seed)  # [T, T]
        m, neighbours = len(self.components), float(((w > 0).sum() - (w.diagonal() > 0).sum()) / active.sum())
        self.traffic = Transmission(m * neighbours, m * neighbours, uploads=m, streams=0)  # neighbours hear a broadcast
        spread = self.models.mix(clients, torch.from_numpy(w))
        gap = spectral_gap(w[np.ix_(active, active)])  # of the clients in the cohort
        self.measure("consensus_error", torch.tensor([spread], dtype=torch.float64))
        self.measure("spectral_gap", torch.tensor([gap], dtype=torch.float64))

    def personal_models(self, clients: Tensor) -> OwnModels:
        """Client t predicts with its own components, weighted by pi_t (Eq. 5)."""
        own, pi = self.models[clients], self.pi[clients].to(self.parameter_dtype)
        return OwnModels(self.components[0], own, pi, self.e_step)

    def evaluation_components(self, data: Federation) -> Models:
        """The evaluation components are the mean of all clients' components, [M, ...]."""
        return self.models.mean(data.clients())

    def personalize_clients(self, data: Federation, clients: Tensor) -> None:
        """An unseen client takes the mean of all clients' components, then pi by one E-step from uniform weights."""
        mean = self.models.mean(data.clients())
        self.models[clients] = {name: row.expand(len(clients), *row.shape) for name, row in mean.items()}
        self.pi[clients] = 1.0 / len(self.components)
        for batch in self.batches(data, clients):
            self.em_step(batch)
