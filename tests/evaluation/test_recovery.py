"""Collapsed components are found, and true clusters recovered."""

import numpy as np
import pytest

from fedem_lightning import ClientSGD, FedEM, Linear, SyntheticMixture
from fedem_lightning.evaluate.component_diagnostics import component_health
from fedem_lightning.run.results import run_results
from helpers.federations import train_and_test


def test_dead_and_twin_components_are_named() -> None:
    pi = np.array([[0.5, 0.495, 0.005], [0.4, 0.595, 0.005]])
    found = component_health(pi, np.array([[1.0, 2.0], [1.0, 2.01], [-3.0, 0.0]]))
    assert found["dead"] == [2]
    assert found["twins"] == [[0, 1]]
    np.testing.assert_allclose(found["mean_weights"], [0.45, 0.545, 0.005])
    healthy = component_health(np.full((4, 2), 0.5), np.array([[1.0, 0.0], [0.0, 1.0]]))
    assert healthy["dead"] == healthy["twins"] == []


@pytest.mark.parametrize("n_components", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_true_clusters_are_recovered(n_components: int) -> None:
    """Appendix J.4, smaller: every client in its cluster."""
    data = SyntheticMixture(n_clients=60, n_components=n_components, dimension=30, test_size=1, one_hot=True, seed=1)
    model = FedEM(Linear((30,), 1), 60, n_components, client_optimizer=ClientSGD(lr=1.0, momentum=0.9))
    train_and_test(model, data, 80, precision="32-true")
    results = run_results(model, data.federation)
    assert results["recovery"]["group_accuracy"] == 1.0
    assert results["recovery"]["pi_cosine_distance"] < 2e-2  # some clients have 50 noisy samples
    assert results["components"]["dead"] == results["components"]["twins"] == []
