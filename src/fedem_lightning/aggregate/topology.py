"""Communication without a server: graphs over the clients, and the weights with which neighbours are averaged.

A mixing matrix W (T x T, symmetric, doubly stochastic, zero off the graph) replaces the server's average: client t
takes sum_s W[s, t] theta_s (Marfoq et al., Federated Multi-Task Learning under a Mixture of Distributions, NeurIPS
2021, Appendix E, arXiv 2108.10252). A client always has its own model, so the diagonal may be positive.
"""

import warnings
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
from scipy import sparse
from scipy.sparse.csgraph import connected_components

from fedem_lightning.data.randomness import Purpose, generator
from fedem_lightning.settings.check import Checked
from fedem_lightning.settings.errors import UserError, imported, require
from fedem_lightning.settings.ranges import PositiveShare, Weights

Graph = Literal["erdos_renyi", "ring", "complete"]

_KEY, _FMMC = "algorithm.topology", "algorithm.topology.weights=fmmc"
_DRAWS = 100  # attempts to draw a connected Erdos-Renyi graph


@dataclass(frozen=True)
class Topology(Checked):
    """A communication graph and its mixing weights. The paper has Erdos-Renyi with p = 0.5 and weights "fmmc".

    Args:
        graph: "erdos_renyi", "ring" or "complete".
        p: probability of an edge, in (0, 1]; only Erdos-Renyi uses it.
        weights: "metropolis" (each client needs only its neighbours' degrees) or "fmmc" (mixes fastest; needs cvxpy).

    Example:
        In a ring of four clients without the last one, the other clients form a path.

        >>> active = np.array([True, True, True, False])
        >>> Topology("ring").mixing(n_clients=4, active=active, seed=0).round(2)
        array([[0.67, 0.33, 0.  , 0.  ],
               [0.33, 0.33, 0.33, 0.  ],
               [0.  , 0.33, 0.67, 0.  ],
               [0.  , 0.  , 0.  , 1.  ]])

    """

    graph: Graph = "erdos_renyi"
    p: PositiveShare = 0.5
    weights: Weights = "metropolis"

    def __post_init__(self) -> None:
        if self.weights == "fmmc":
            imported("cvxpy", "fmmc", _FMMC)  # fails now, not in the first round

    def adjacency(self, n_clients: int, seed: int) -> np.ndarray:
        """The graph over T clients: bool [T, T], symmetric, False on the diagonal, a function of the seed.

        An Erdos-Renyi graph is drawn again until it is connected. UserError: 100 draws gave none.
        """
        everybody = np.eye(n_clients, dtype=bool)
        if self.graph == "complete":
            return ~everybody
        if self.graph == "ring":
            return (np.roll(everybody, 1, axis=0) | np.roll(everybody, 1, axis=1)) & ~everybody
        for attempt in range(_DRAWS):
            rng = generator(seed, Purpose.TOPOLOGY, 0, attempt)
            upper = np.triu(rng.random((n_clients, n_clients)) < self.p, 1)
            adjacency: np.ndarray = upper | upper.T
            if connected_components(adjacency, directed=False)[0] == 1:
                return adjacency
        drawn = f"no connected Erdos-Renyi graph of {n_clients} clients in {_DRAWS} draws with p={self.p:g}"
        raise UserError(f"{_KEY}.p: {drawn}: use a larger p")

    def mixing(self, n_clients: int, active: np.ndarray, seed: int) -> np.ndarray:
        """The mixing matrix of a round: float64 [T, T].

        Clients that are not `active` (bool [T]) are isolated, W[t, t] = 1; the weights of the others are those of the
        subgraph of active clients.
        """
        return mixing_matrix(self.adjacency(n_clients, seed) & np.outer(active, active), self.weights)


def mixing_matrix(adjacency: np.ndarray, weights: Weights) -> np.ndarray:
    """The mixing matrix of a graph: float64 [T, T], symmetric, doubly stochastic, zero where there is no edge.

    "metropolis" (Metropolis-Hastings): W[s, t] = 1 / (1 + max(degree_s, degree_t)), W[t, t] = 1 - sum_s W[s, t].
    "fmmc" (Boyd, Diaconis, Xiao, Fastest Mixing Markov Chain on a Graph, SIAM Review 46(4), 2004): least
    || W - 11'/T ||_2, for each connected component separately. It takes seconds for hundreds of clients. `adjacency` is
    bool [T, T], symmetric, False on the diagonal; clients may be isolated.
    """
    if weights == "metropolis":
        return _metropolis(adjacency)
    w = np.zeros(adjacency.shape)
    label = connected_components(adjacency, directed=False)[1]
    for component in range(label.max(initial=-1) + 1):
        block = np.ix_(label == component, label == component)
        n, graph = len(block[0]), adjacency[block]
        complete = graph.sum() == n * (n - 1)  # exact there
        w[block] = np.full((n, n), 1 / n) if complete else _solved_fmmc(graph.tobytes(), n)
    return w


def _metropolis(adjacency: np.ndarray) -> np.ndarray:
    degree = adjacency.sum(axis=1)
    return _with_diagonal(adjacency / (1 + np.maximum.outer(degree, degree)))


def _with_diagonal(w: np.ndarray) -> np.ndarray:
    """Fills the diagonal so that rows sum to 1; off-diagonal sums above 1 (a solver's error) are scaled down first."""
    w = np.maximum(w, 0)
    np.fill_diagonal(w, 0)
    excess = np.maximum(w.sum(axis=1), 1)
    w = w / np.maximum.outer(excess, excess)
    np.fill_diagonal(w, np.maximum(1 - w.sum(axis=1), 0))
    return w


@lru_cache(maxsize=64)
def _solved_fmmc(graph: bytes, n: int) -> np.ndarray:
    """Minimises x with -x I <= W - 11'/n <= x I over the edges' weights v, W = I - sum_e v_e (1_s - 1_t)(1_s - 1_t)'.

    The solver is SCS, which is fast here. Its result is made a valid W, which never mixes more slowly than Metropolis.
    """
    cp = imported("cvxpy", "fmmc", _FMMC)
    adjacency = np.frombuffer(graph, dtype=bool).reshape(n, n)
    s, t = np.nonzero(np.triu(adjacency))
    entries = np.concatenate((s * n + t, t * n + s, s * n + s, t * n + t))  # entries of a flat W that an edge changes
    signs = np.repeat((1.0, 1.0, -1.0, -1.0), len(s))
    change = sparse.csr_matrix((signs, (entries, np.tile(np.arange(len(s)), 4))), shape=(n * n, len(s)))
    v, x = cp.Variable(len(s), nonneg=True), cp.Variable()
    centred = np.eye(n) - 1 / n + cp.reshape(change @ v, (n, n), order="C")  # W - 11'/n
    bounds = [x * np.eye(n) - centred >> 0, x * np.eye(n) + centred >> 0]
    problem = cp.Problem(cp.Minimize(x), [change[:: n + 1] @ v >= -1, *bounds])  # the diagonal of W stays >= 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # near the optimum W is valid, too
        problem.solve(solver=cp.SCS, eps_abs=1e-6, eps_rel=1e-6, max_iters=5000)
    require(v.value is not None, f"{_FMMC}: the solver found nothing ({problem.status}): use metropolis")
    w = np.zeros((n, n))
    w[s, t] = w[t, s] = v.value
    w = max(_with_diagonal(w), _metropolis(adjacency), key=spectral_gap)
    w.flags.writeable = False  # the cache returns it again
    return w


def spectral_gap(w: np.ndarray) -> float:
    """Spectral gap of `w` [T, T], 1 - its second largest eigenvalue modulus: 0 never mixes, 1 averages at once."""
    if len(w) == 1:
        return 1.0
    return float(np.clip(1 - np.sort(np.abs(np.linalg.eigvalsh(w)))[-2], 0, 1))
