"""Surrogate optimisation without a server: clients on a graph, who average with their neighbours.

Marfoq et al., NeurIPS 2021, arXiv 2108.10252, Appendix E (Alg. 4, D-FedEM) and F (Alg. 5, the general form).
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedem_lightning.aggregation import Means, Models
from fedem_lightning.algorithms.base import FederatedAlgorithm
from fedem_lightning.algorithms.surrogate import Surrogate, descend_surrogate, majorized
from fedem_lightning.client_store import ClientStore
from fedem_lightning.components import Backbone
from fedem_lightning.data.federation import Block, Federation
from fedem_lightning.personal import Personal
from fedem_lightning.round import Round
from fedem_lightning.topology import Topology, spectral_gap


class DecentralizedSurrogateOptimization(FederatedAlgorithm):
    """Every client holds its own u_t; a round is local steps, then u_t <- sum_s w_st u_s over the neighbours (Alg. 5).

    W averages without regard to sizes, so a client's step is scaled by T n_t / n: the paper's learning rate is T times
    ours. Then on the complete graph with equal sizes and plain SGD it is the client-server algorithm. All clients start
    from the same u. Clients outside a round's cohort are isolated nodes. An unseen client takes the mean of all u_t.

    Args:
        backbone, n_clients, n_components, options: see `FederatedAlgorithm`; the server optimiser must be the
            plain average.
        surrogate: of the clients' objectives.
        topology: graph and mixing weights.

    """

    uses_server_optimizer = False
    shares_models = False
    private: Tensor  # v [T, ...]

    def __init__(
        self,
        backbone: Backbone,
        n_clients: int,
        surrogate: Surrogate,
        n_components: int = 1,
        topology: Topology | None = None,
        **options: Any,
    ) -> None:
        super().__init__(backbone, n_clients, n_components, **options)
        self.surrogate, self.topology = surrogate, topology or Topology()
        self.register_buffer("private", surrogate.private(n_clients, n_components))
        self.models = ClientStore.of_components(n_clients, self.components)  # u_t, rows [M, ...]
        self._neighbours = 0.0  # of a client, on average
        self._gap: tuple[np.ndarray, float] | None = None  # the last W, and its spectral gap

    def client_update(self, block: Block, round_: int) -> None:
        """Alg. 5: surrogate and private variable at its own u_t, local steps to u_t^{k-1/2}."""
        t, u = block.clients, self.models.read(block.clients)
        g = self.surrogate.majorize(self, block, u, self.private[t], round_)
        self.private[t] = g.private
        counts = block.federation.splits["train"].counts(block.federation.clients())
        scale = block.counts().double() * (len(counts) / float(counts.sum()))  # T n_t / n  [C]
        half = descend_surrogate(self, g, u, block, round_, scale.to(self.parameter_dtype))
        self.round_metrics.rejected += self.models.write_finite(t, half)

    def server_update(self, means: Means | None, round_: Round) -> None:
        """Nobody is a server: u_t <- sum_s w_st u_s^{k-1/2}."""
        clients = round_.federation.clients()
        active = torch.isin(clients, round_.cohort).cpu().numpy()
        w = self.topology.mixing(len(clients), active, self.seed, round_.number)  # [T, T]
        self._neighbours = float(((w > 0).sum() - (w.diagonal() > 0).sum()) / active.sum())
        spread = self.models.mix(clients, torch.from_numpy(w))
        if self._gap is None or not np.array_equal(w, self._gap[0]):
            self._gap = (w, spectral_gap(w[np.ix_(active, active)]))  # of those who talk
        for name, value in (("consensus_error", spread), ("spectral_gap", self._gap[1])):
            self.round_metrics.add(name, torch.tensor([value], dtype=torch.float64))
        self.server_step(None)

    def losses(self, block: Block) -> Tensor:
        """The losses of every client's own models, [n, M]."""
        own = self.models.read(block.clients)
        return Personal(own, torch.ones(len(block.clients), len(self.components))).losses(self.components[0], block)

    def serving(self, clients: Tensor) -> Models:
        """u_t, [C, M, ...]."""
        return self.models.read(clients)

    def mixture(self, clients: Tensor) -> Tensor:
        """As the surrogate says."""
        return self.surrogate.mixture(self.private[clients], len(self.components)).to(self.parameter_dtype)

    def sample_weights(self, block: Block) -> Tensor | None:
        """Those of the surrogate, if it is made of the samples' losses."""
        g = majorized(self, block)
        return g.weights if g.anchor is None else None

    def personalize(self, federation: Federation, clients: Tensor) -> None:
        """From the mean of all u_t and the initial v, one argmin of the surrogate."""
        mean = self.models.mean(federation.clients())
        self.private[clients] = self.surrogate.private(len(clients), len(self.components)).to(self.private)
        for block in self.blocks(federation, clients):
            t = block.clients
            self.models.write(t, {name: row.expand(len(t), *row.shape) for name, row in mean.items()})
            self.private[t] = majorized(self, block).private

    def mean_models(self, federation: Federation) -> Models:
        """The mean of all u_t, [M, ...]."""
        return self.models.mean(federation.clients())

    @property
    def messages(self) -> tuple[float, float]:
        """M models to and from each neighbour of the last round's graph."""
        each = len(self.components) * self._neighbours
        return each, each

    @property
    def uploads(self) -> int:
        """M models, which all neighbours hear at once."""
        return len(self.components)

    @property
    def streams(self) -> int:
        """There is no server."""
        return 0

    def client_state(self) -> Iterator[Tensor]:
        """The private variables v, and the clients' models."""
        yield self.private
        yield from super().client_state()
