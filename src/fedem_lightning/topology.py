"""Communication without a server: graphs over the clients, in whose neighbourhoods models are averaged (`mixing`)."""

from dataclasses import dataclass
from math import isqrt
from typing import Literal

import networkx as nx
import numpy as np
from scipy.sparse.csgraph import connected_components

from fedem_lightning.errors import UserError, require, require_whole
from fedem_lightning.mixing import Weights, mixing_matrix, require_cvxpy
from fedem_lightning.randomness import Purpose, generator
from fedem_lightning.settings.check import Checked, require_memory
from fedem_lightning.settings.ranges import PositiveShare

Graph = Literal["erdos_renyi", "ring", "torus", "complete", "star"]

_KEY = "algorithm.topology"
_DRAWS = 100  # attempts to draw a connected Erdos-Renyi graph


@dataclass(frozen=True)
class Topology(Checked):
    """A communication graph and its mixing weights. The paper has Erdos-Renyi with p = 0.5 and weights "fmmc".

    Args:
        graph: "erdos_renyi", "ring", "torus" (a periodic grid, as square as T allows), "complete" or "star" (around
            client 0).
        p: probability of an edge, in (0, 1]; only Erdos-Renyi uses it.
        weights: "metropolis" (each client needs only its neighbours' degrees) or "fmmc" (mixes fastest; needs cvxpy).
        time_varying: whether there is a new Erdos-Renyi graph in every round, which may be disconnected.

    Raises:
        UserError: a value is unknown or impossible, or "fmmc" is used without cvxpy.

    Example:
        In a ring of four clients without the last one, the other clients form a path.

        >>> active = np.array([True, True, True, False])
        >>> Topology("ring").mixing(n_clients=4, active=active, seed=0, round_=0).round(2)
        array([[0.67, 0.33, 0.  , 0.  ],
               [0.33, 0.33, 0.33, 0.  ],
               [0.  , 0.33, 0.67, 0.  ],
               [0.  , 0.  , 0.  , 1.  ]])

    """

    graph: Graph = "erdos_renyi"
    p: PositiveShare = 0.5
    weights: Weights = "metropolis"
    time_varying: bool = False

    def __post_init__(self) -> None:
        require(
            self.graph == "erdos_renyi" or not self.time_varying,
            f"time_varying: only graph=erdos_renyi can be drawn anew each round, got graph={self.graph}",
        )
        if self.weights == "fmmc":
            require_cvxpy()  # fails now, not in the first round

    def adjacency(self, n_clients: int, seed: int, round_: int) -> np.ndarray:
        """The graph of a round over T clients: bool [T, T], symmetric, False on the diagonal.

        It is a function of the seed, and of the round if `time_varying`. A fixed Erdos-Renyi graph is drawn again until
        it is connected.

        Raises:
            UserError: 100 draws gave no connected graph, or the torus has a prime number of clients.

        """
        require_whole("dataset.n_clients", n_clients, at_least=1)
        require_memory("dataset.n_clients", 8 * n_clients**2, f"a graph of {n_clients} clients")
        if self.graph != "erdos_renyi":
            return _fixed_graph(self.graph, n_clients)
        if self.time_varying:
            return _erdos_renyi(n_clients, self.p, generator(seed, Purpose.TOPOLOGY, 1, round_))
        for attempt in range(_DRAWS):
            adjacency = _erdos_renyi(n_clients, self.p, generator(seed, Purpose.TOPOLOGY, 0, attempt))
            if connected_components(adjacency, directed=False)[0] == 1:
                return adjacency
        raise UserError(
            f"{_KEY}.p: no connected Erdos-Renyi graph of {n_clients} clients in {_DRAWS} draws with p={self.p:g}: "
            "use a larger p, or time_varying=true"
        )

    def mixing(self, n_clients: int, active: np.ndarray, seed: int, round_: int) -> np.ndarray:
        """The mixing matrix of a round: float64 [T, T].

        Clients that are not `active` (bool [T]) are isolated, W[t, t] = 1; the weights of the others are those of the
        subgraph of active clients.

        Raises:
            UserError: `active` has another shape or type, or `adjacency` raises it.

        """
        ok = active.dtype == bool and active.shape == (n_clients,)
        require(ok, f"active: expected bool [{n_clients}], got {active.dtype} {list(active.shape)}")
        return mixing_matrix(self.adjacency(n_clients, seed, round_) & np.outer(active, active), self.weights)


def _erdos_renyi(n: int, p: float, rng: np.random.Generator) -> np.ndarray:
    """A graph with each edge with probability p, by NumPy, so that a seed means the same in all networkx versions."""
    upper = np.triu(rng.random((n, n)) < p, 1)
    return upper | upper.T


def _fixed_graph(graph: str, n: int) -> np.ndarray:
    if graph == "ring":
        g = nx.cycle_graph(n)
    elif graph == "torus":
        rows = next(r for r in range(isqrt(n), 0, -1) if n % r == 0)
        prime = f"{_KEY}.graph: a torus needs rows x columns, and {n} clients is a prime number: use ring"
        require(rows > 1 or n == 1, prime)
        g = nx.grid_2d_graph(rows, n // rows, periodic=True)  # two clients in a row have one edge, not two
    elif graph == "complete":
        g = nx.complete_graph(n)
    else:
        g = nx.star_graph(n - 1)  # the number of leaves
    adjacency: np.ndarray = nx.to_numpy_array(g) > 0
    np.fill_diagonal(adjacency, False)  # a ring of one client has a loop in networkx
    return adjacency
