"""Graphs and mixing matrices: their contract, known optima, determinism, what a user may get wrong."""

import sys
from itertools import pairwise
from typing import get_args

import numpy as np
import pytest

from fedem_lightning import UserError
from fedem_lightning.aggregate.topology import Graph, Topology, mixing_matrix, spectral_gap
from fedem_lightning.settings.ranges import Weights

pytestmark = pytest.mark.fast


def of_edges(n: int, *edges: tuple[int, int]) -> np.ndarray:
    adjacency = np.zeros((n, n), dtype=bool)
    for s, t in edges:
        adjacency[s, t] = adjacency[t, s] = True
    return adjacency


def path(n: int) -> np.ndarray:
    return of_edges(n, *pairwise(range(n)))


def fixed(graph: Graph, n: int) -> np.ndarray:
    return Topology(graph).adjacency(n, 0)


def topology(graph: Graph = "erdos_renyi", weights: Weights = "metropolis", **options: object) -> Topology:
    if weights == "fmmc":
        pytest.importorskip("cvxpy")
    return Topology(graph, weights=weights, **options)  # type: ignore[arg-type]


STAR = of_edges(5, (0, 1), (0, 2), (0, 3), (0, 4))
# The figures: SLEM with fastest mixing and with Metropolis weights, and the fastest W where it is told
KNOWN = {
    "path of 2": (path(2), 0, 0, np.full((2, 2), 1 / 2)),
    "path of 3": (path(3), 1 / 2, 2 / 3, np.array([[0.5, 0.5, 0], [0.5, 0, 0.5], [0, 0.5, 0.5]])),
    "ring of 4": (fixed("ring", 4), 1 / 3, 1 / 3, (fixed("ring", 4) + np.eye(4)) / 3),
    "ring of 5": (fixed("ring", 5), 0.4472, 0.5393, 0.4 * fixed("ring", 5) + 0.2 * np.eye(5)),
    "star of 5": (STAR, 3 / 4, 4 / 5, STAR / 4 + np.diag([0, 0.75, 0.75, 0.75, 0.75])),
    "complete": (fixed("complete", 7), 0, 0, np.full((7, 7), 1 / 7)),
}


@pytest.mark.parametrize("name", KNOWN)
def test_known_optima(name: str) -> None:
    pytest.importorskip("cvxpy")
    adjacency, slem, _, expected = KNOWN[name]
    w = mixing_matrix(adjacency, "fmmc")
    assert 1 - spectral_gap(w) == pytest.approx(slem, abs=1e-4)
    np.testing.assert_allclose(w, expected, atol=1e-4)


@pytest.mark.parametrize("name", KNOWN)
def test_metropolis_figures(name: str) -> None:
    adjacency, _, slem, _ = KNOWN[name]
    assert 1 - spectral_gap(mixing_matrix(adjacency, "metropolis")) == pytest.approx(slem, abs=1e-4)


def test_metropolis_by_hand() -> None:
    w = mixing_matrix(of_edges(4, (0, 1), (1, 2)), "metropolis")  # degrees 1, 2, 1, 0
    np.testing.assert_allclose(3 * w, [[2, 1, 0, 0], [1, 1, 1, 0], [0, 1, 2, 0], [0, 0, 0, 3]], atol=1e-12)


@pytest.mark.parametrize("weights", get_args(Weights))
@pytest.mark.parametrize(("graph", "n"), [(g, n) for g in get_args(Graph) for n in (1, 2, 4, 25)])
def test_every_graph_mixes(graph: Graph, n: int, weights: Weights) -> None:
    chosen = topology(graph, weights)
    adjacency = chosen.adjacency(n, 3)
    assert adjacency.shape == (n, n)
    assert adjacency.dtype == bool
    assert not adjacency.diagonal().any()
    w = chosen.mixing(n, np.ones(n, dtype=bool), 3)
    assert w.dtype == np.float64
    np.testing.assert_array_equal(w, w.T)
    np.testing.assert_allclose(w.sum(axis=0), 1, atol=1e-12)
    assert (w >= 0).all()
    assert not w[~adjacency & ~np.eye(n, dtype=bool)].any()
    slem = np.linalg.norm(w - 1 / n, 2)
    assert 1 - spectral_gap(w) == pytest.approx(slem, abs=1e-9)
    assert slem < 1


@pytest.mark.parametrize(
    ("graph", "n", "degrees"),
    [
        ("ring", 1, {0}),
        ("ring", 2, {1}),
        ("ring", 7, {2}),
        ("complete", 5, {4}),
    ],
)
def test_degrees(graph: Graph, n: int, degrees: set[int]) -> None:
    assert set(fixed(graph, n).sum(axis=0).tolist()) == degrees


def test_erdos_renyi_has_p_of_the_edges() -> None:
    assert Topology(p=0.3).adjacency(200, 0).sum() / (200 * 199) == pytest.approx(0.3, abs=0.02)
    np.testing.assert_array_equal(Topology(p=1).adjacency(9, 0), fixed("complete", 9))


def test_a_seed_means_one_graph_which_is_connected() -> None:
    assert (Topology().adjacency(20, 5) != Topology().adjacency(20, 6)).any()
    active = np.ones(12, dtype=bool)
    assert min(spectral_gap(Topology(p=0.2).mixing(12, active, seed)) for seed in range(20)) > 1e-3


@pytest.mark.parametrize("weights", get_args(Weights))
def test_clients_that_are_not_active_are_isolated(weights: Weights) -> None:
    active = np.arange(12) % 4 != 0
    chosen = topology(weights=weights)
    w = chosen.mixing(12, active, 1)
    np.testing.assert_array_equal(w[~active], np.eye(12)[~active])
    induced = chosen.adjacency(12, 1)[np.ix_(active, active)]
    np.testing.assert_allclose(w[np.ix_(active, active)], mixing_matrix(induced, weights), atol=1e-12)
    np.testing.assert_array_equal(chosen.mixing(12, np.zeros(12, dtype=bool), 1), np.eye(12))


def test_pieces_mix_fastest_each_by_itself() -> None:
    pytest.importorskip("cvxpy")
    w = mixing_matrix(of_edges(6, (0, 2), (2, 4), (1, 3)), "fmmc")  # path 0-2-4, pair 1-3, 5 alone
    np.testing.assert_allclose(w[np.ix_([0, 2, 4], [0, 2, 4])], KNOWN["path of 3"][3], atol=1e-4)
    np.testing.assert_array_equal(w[np.ix_([1, 3, 5], [1, 3, 5])], [[0.5, 0.5, 0], [0.5, 0.5, 0], [0, 0, 1]])
    w[:] = 0  # the caller's own: what is remembered stays as it was
    assert mixing_matrix(path(3), "fmmc")[0, 1] == pytest.approx(0.5, abs=1e-4)


def test_fmmc_without_cvxpy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cvxpy", None)
    with pytest.raises(UserError, match=r"^algorithm.topology.weights=fmmc: cvxpy is not installed; in the clone"):
        Topology(weights="fmmc")
    Topology().mixing(5, np.ones(5, dtype=bool), 0)


def test_impossible_graphs() -> None:
    said = r"^algorithm.topology.p: no connected .* 50 clients in 100 draws with p=0.001: use a larger p$"
    with pytest.raises(UserError, match=said):
        Topology(p=0.001).adjacency(50, 0)
