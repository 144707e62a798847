import numpy as np
import pytest
import torch

from fedem_lightning import DFedEM, FedAvg, FedEM
from fedem_lightning.evaluation import component_diagnostics as module
from fedem_lightning.evaluation.component_diagnostics import agreement
from fedem_lightning.run.results import run_results
from helpers.federations import make_data, make_model, make_trainer, stored
from helpers.networks import Drawing


def by_hand(weights: np.ndarray, biases: np.ndarray, x: np.ndarray) -> np.ndarray:
    classes = np.stack([(x @ w.T + b).argmax(axis=1) for w, b in zip(weights, biases, strict=True)])  # [M, n]
    return np.array([[(a == b).mean() for b in classes] for a in classes])


@pytest.mark.parametrize("kind", [FedEM, DFedEM])
def test_the_share_of_equal_predictions_on_test_samples_of_scored_seen_clients(
    kind: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = make_data((40, 50, 30, 60, 45), unseen_fraction=0.2)
    model, trainer = make_model(kind, data, n_components=3, scored_clients=3), make_trainer(2)
    trainer.fit(model, data)
    trainer.test(model, data, verbose=False)
    seen = model.clients[model.clients.population == "seen"]
    assert len(seen) == 3
    block = data.federation.block(torch.tensor([int(name) for name in seen.id]), "test")
    components = model.evaluation_components(data.federation)  # of D-FedEM the means over clients
    weights, biases = (components[f"linear.{name}"].numpy() for name in ("weight", "bias"))
    x = stored(data.federation).x[block.index].numpy()
    found = run_results(model, data.federation)["components"]["agreement"]
    np.testing.assert_allclose(found, by_hand(weights, biases, x), rtol=1e-12)
    assert 0 < found[0][1] < 1
    monkeypatch.setattr(module, "MOST_SAMPLES", 5)
    [few] = agreement(model, data.federation, components).values()
    at = np.linspace(0, len(x) - 1, 5).round().astype(int)
    np.testing.assert_allclose(few, by_hand(weights, biases, x[at]), rtol=1e-12)


def test_there_is_none_without_classes_or_without_test_samples() -> None:
    x, client = np.random.default_rng(0).normal(size=(20, 3)), np.arange(20) % 2
    for options in ({"task": "regression"}, {"n_classes": 2, "split": np.zeros(20, dtype=int)}):
        y = x[:, 0] if "task" in options else (x[:, 0] > 0).astype(int)
        data = type(make_data()).from_arrays(x, y, client, **options)
        model = make_model(FedAvg, data)
        assert agreement(model, data.federation, model.evaluation_components(data.federation)) == {}


def test_a_network_that_draws_has_the_same_agreement_again() -> None:
    """A run that was killed before its results were written computes them once more."""
    data, network = make_data(), Drawing((4,), 3, [5], "noise in scores too")
    model, trainer = FedEM(network, 4, n_components=2, engine="loop"), make_trainer(1, precision="32-true")
    trainer.fit(model, data)
    components = model.evaluation_components(data.federation)
    first = agreement(model, data.federation, components)
    assert agreement(model, data.federation, components) == first
