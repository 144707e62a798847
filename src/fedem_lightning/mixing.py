"""Mixing matrices: the weights with which clients average their neighbours' models where there is no server.

A mixing matrix W (T x T, symmetric, doubly stochastic, zero off the graph) replaces the server's average: client t
takes sum_s W[s, t] theta_s (Marfoq et al., Federated Multi-Task Learning under a Mixture of Distributions, NeurIPS
2021, Appendix E, arXiv 2108.10252). A client always has its own model, so the diagonal may be positive.
"""

import warnings
from functools import lru_cache
from types import ModuleType
from typing import Literal

import numpy as np
from scipy import sparse
from scipy.sparse.csgraph import connected_components

from fedem_lightning.errors import UserError, require
from fedem_lightning.settings.check import check_arguments

Weights = Literal["metropolis", "fmmc"]

_FMMC = "algorithm.topology.weights=fmmc"
_TOLERANCE = 1e-8  # for the sums and the symmetry of a mixing matrix


def mixing_matrix(adjacency: np.ndarray, weights: Weights) -> np.ndarray:
    """The mixing matrix of a graph: float64 [T, T], symmetric, doubly stochastic, zero where there is no edge.

    "metropolis" (Metropolis-Hastings): W[s, t] = 1 / (1 + max(degree_s, degree_t)), W[t, t] = 1 - sum_s W[s, t].
    "fmmc" (Boyd, Diaconis, Xiao, Fastest Mixing Markov Chain on a Graph, SIAM Review 46(4), 2004): least
    || W - 11'/T ||_2, for each connected component separately. It takes seconds for hundreds of clients.

    Args:
        adjacency: bool [T, T], symmetric, False on the diagonal; clients may be isolated.
        weights: "metropolis" or "fmmc".

    Raises:
        UserError: `weights` is unknown, `adjacency` is no such graph, or "fmmc" is used without cvxpy.

    Example:
        In a star of three clients the central one has two neighbours.

        >>> star = np.array([[0, 1, 1], [1, 0, 0], [1, 0, 0]], dtype=bool)
        >>> mixing_matrix(star, "metropolis").round(2)
        array([[0.33, 0.33, 0.33],
               [0.33, 0.67, 0.  ],
               [0.33, 0.  , 0.67]])

    """
    check_arguments("", mixing_matrix, locals())
    square = adjacency.ndim == 2 and adjacency.shape[0] == adjacency.shape[1] and adjacency.dtype == bool
    graph = square and (adjacency == adjacency.T).all() and not adjacency.diagonal().any()
    require(graph, f"adjacency: expected bool [T, T], symmetric, without self-loops, got {list(adjacency.shape)}")
    if weights == "metropolis":
        w = _metropolis(adjacency)
    else:
        w = np.zeros(adjacency.shape)
        label = connected_components(adjacency, directed=False)[1]
        for component in range(label.max(initial=-1) + 1):
            block = np.ix_(label == component, label == component)
            w[block] = _fmmc(adjacency[block])
    check_mixing_matrix(w, adjacency)
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


def _fmmc(adjacency: np.ndarray) -> np.ndarray:
    """The fastest mixing weights of one component with n clients, exact for a complete graph: [n, n], read-only."""
    n = len(adjacency)
    if adjacency.sum() == n * (n - 1):
        return np.full((n, n), 1 / n)
    return _solved_fmmc(adjacency.tobytes(), n)


@lru_cache(maxsize=64)
def _solved_fmmc(graph: bytes, n: int) -> np.ndarray:
    """Minimises x with -x I <= W - 11'/n <= x I over the edges' weights v, W = I - sum_e v_e (1_s - 1_t)(1_s - 1_t)'.

    The solver is SCS, which is fast here. Its result is made a valid W, which never mixes more slowly than Metropolis.
    """
    cp = require_cvxpy()
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
        warnings.simplefilter("ignore")  # cvxpy's warning about accuracy; ours follows
        try:
            problem.solve(solver=cp.SCS, eps_abs=1e-6, eps_rel=1e-6, max_iters=5000)
        except cp.SolverError as error:
            raise UserError(f"{_FMMC}: the solver failed ({error}): use metropolis") from error
    require(v.value is not None, f"{_FMMC}: the solver found nothing ({problem.status}): use metropolis")
    if problem.status != cp.OPTIMAL:
        warnings.warn(f"{_FMMC}: near the optimum only, for a graph of {n} clients", stacklevel=2)
    w = np.zeros((n, n))
    w[s, t] = w[t, s] = v.value
    w = max(_with_diagonal(w), _metropolis(adjacency), key=spectral_gap)
    w.flags.writeable = False  # the cache returns it again
    return w


def check_mixing_matrix(w: np.ndarray, adjacency: np.ndarray) -> None:
    """Raises UserError unless `w` [T, T] is symmetric, doubly stochastic (to 1e-8) and zero off the graph [T, T].

    Example:
        >>> check_mixing_matrix(np.full((2, 2), 0.5), np.zeros((2, 2), dtype=bool))
        Traceback (most recent call last):
        fedem_lightning.errors.UserError: mixing matrix: expected weights on the graph's edges and the diagonal only

    """
    require(w.shape == adjacency.shape, f"mixing matrix: expected {list(adjacency.shape)}, got {list(w.shape)}")
    require(bool(np.isfinite(w).all()), "mixing matrix: expected finite weights")
    require(bool((w >= 0).all()), f"mixing matrix: expected no negative weight, got {w.min(initial=0):g}")
    require(np.allclose(w, w.T, rtol=0, atol=_TOLERANCE), "mixing matrix: expected a symmetric one")
    sums = np.allclose(w.sum(axis=1), 1, rtol=0, atol=_TOLERANCE)
    require(sums, "mixing matrix: expected rows and columns that sum to 1")
    off_graph = ~adjacency & ~np.eye(len(w), dtype=bool)
    require(not w[off_graph].any(), "mixing matrix: expected weights on the graph's edges and the diagonal only")


def spectral_gap(w: np.ndarray) -> float:
    """Spectral gap of `w` [T, T], 1 - its second largest eigenvalue modulus: 0 never mixes, 1 averages at once.

    Example:
        >>> complete = ~np.eye(4, dtype=bool)
        >>> path = np.abs(np.subtract.outer(range(4), range(4))) == 1
        >>> [round(spectral_gap(mixing_matrix(graph, "metropolis")), 2) for graph in (path, complete)]
        [0.2, 1.0]

    """
    if len(w) == 1:
        return 1.0
    return float(np.clip(1 - np.sort(np.abs(np.linalg.eigvalsh(w)))[-2], 0, 1))


def require_cvxpy() -> ModuleType:
    """Imports cvxpy, which finds the weights of "fmmc"; UserError if it is not installed."""
    try:
        import cvxpy
    except ImportError as error:
        message = "weights=fmmc needs cvxpy: pip install 'fedem-lightning[fmmc]'"
        raise UserError(message) from error
    return cvxpy
