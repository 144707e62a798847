"""D-FedEM: FedEM without a server. Marfoq et al., NeurIPS 2021, arXiv 2108.10252, Algorithm 4 (Appendix E)."""

from typing import Any

from torch import Tensor

from fedem_lightning.algorithms.decentralized import DecentralizedSurrogateOptimization
from fedem_lightning.algorithms.surrogate import MixtureSurrogate
from fedem_lightning.models.components import Backbone
from fedem_lightning.topology import Topology


class DFedEM(DecentralizedSurrogateOptimization):
    """Client t has its own components theta_{m,t} and weights pi_t, and averages the components with its neighbours.

    A round is the E-step (Eq. 8) and pi (Eq. 9) with its own components, local steps scaled by T n_t / n, and then
    theta_{m,t} <- sum_s w_st theta_{m,s}. With M = 1 it is decentralised FedAvg (D-SGD with local steps).

    Args:
        backbone, n_clients, options: see `FederatedAlgorithm`.
        n_components: M.
        topology: graph and mixing weights; the paper: Erdos-Renyi with p = 0.5 and the fastest-mixing weights.

    """

    def __init__(
        self,
        backbone: Backbone,
        n_clients: int,
        n_components: int = 3,
        topology: Topology | None = None,
        **options: Any,
    ) -> None:
        super().__init__(backbone, n_clients, MixtureSurrogate(), n_components, topology, **options)

    @property
    def pi(self) -> Tensor:
        """The mixture weights, [T, M]."""
        return self.private
