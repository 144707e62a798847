"""Components that predict the same class; whether they differ by client or by label, by hand and on known mixtures."""

from typing import Any

import numpy as np
import pytest
import torch

from fedem_lightning import DFedEM, FedAvg, FedEM, FederatedDataModule
from fedem_lightning.evaluate import component_diagnostics as module
from fedem_lightning.evaluate.component_diagnostics import agreement, explained
from fedem_lightning.run.results import run_results
from fedem_lightning.run.summary import _component_lines
from helpers.federations import make_data, make_model, make_trainer, stored, train_and_test
from helpers.networks import Drawing


def by_hand(weights: np.ndarray, biases: np.ndarray, x: np.ndarray) -> np.ndarray:
    classes = np.stack([(x @ w.T + b).argmax(axis=1) for w, b in zip(weights, biases, strict=True)])  # [M, n]
    return np.array([[(a == b).mean() for b in classes] for a in classes])


@pytest.mark.parametrize("kind", [FedEM, DFedEM])
def test_the_share_of_equal_predictions_on_test_samples_of_scored_seen_clients(
    kind: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = make_data((40, 50, 30, 60, 45), unseen_fraction=0.2)
    model = train_and_test(make_model(kind, data, n_components=3, scored_clients=3), data, 2)
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


# --- whether components differ by client or by label -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("joint", "share"),
    [
        ([[1, 1], [1, 1]], 0.0),
        ([[2, 0], [0, 3]], 1.0),
        # p = [[3/8, 1/8], [1/8, 3/8]]: I = ln 2 - H(1/4), H = ln 2
        ([[3, 1], [1, 3]], 1 - (0.25 * np.log(4) + 0.75 * np.log(4 / 3)) / np.log(2)),
    ],
)
def test_information_by_hand(joint: list[list[int]], share: float) -> None:
    q = torch.eye(2)[[m for m in (0, 1) for n in joint[m] for _ in range(n)]]
    column = torch.tensor([k for row in joint for k, n in enumerate(row) for _ in range(n)])
    assert explained(q, column, 2) == pytest.approx(share)


def permuted(n_clients: int = 4, n: int = 60) -> FederatedDataModule:
    """Two classes in equal numbers; the feature has the label's sign, and the other sign for odd clients."""
    client = np.repeat(np.arange(n_clients), n)
    y = np.tile([0, 1], n_clients * n // 2)
    x = ((2 * y - 1) * np.where(client % 2, -1.0, 1.0))[:, None] * np.array([[1.0, 0.0]])
    return FederatedDataModule.from_arrays(x, y, client, n_classes=2)


def shares(model: Any, data: FederatedDataModule) -> dict[str, float]:
    """What `agreement` says of labels and clients with mixture weights."""
    components = model.evaluation_components(data.federation)
    found = agreement(model, data.federation, components, model.pi)
    assert {"agreement": found.pop("agreement")} == agreement(model, data.federation, components)
    return {name: share for name, share in found.items() if name.startswith("explained")}


def scored(data: FederatedDataModule, weights: list[list[list[float]]]) -> dict[str, float]:
    """Two components with these weights [M, Y, d] or constant outputs, and equal pi."""
    model: Any = make_model(FedEM, data, n_components=2)
    trainer = make_trainer(1, precision="32-true")
    trainer.fit(model, data)
    with torch.no_grad():
        model.pi.fill_(0.5)
        for component, value in zip(model.components, weights, strict=True):
            component.linear.weight.copy_(torch.tensor([row[:2] for row in value]))
            component.linear.bias.copy_(torch.tensor([row[2] for row in value]))
    return shares(model, data)


def test_components_that_predict_one_class_each_differ_by_label() -> None:
    found = scored(permuted(), [[[0, 0, 9], [0, 0, -9]], [[0, 0, -9], [0, 0, 9]]])
    assert found == pytest.approx({"explained_by_label": 1.0, "explained_by_client": 0.0}, abs=0.05)
    (line,) = _component_lines(found)
    assert line.startswith("components differ by label, not by client: labels explain 100% of which component fits")


def test_components_for_two_kinds_of_clients_differ_by_client() -> None:
    found = scored(permuted(), [[[-9, 0, 0], [9, 0, 0]], [[9, 0, 0], [-9, 0, 0]]])
    assert found == pytest.approx({"explained_by_label": 0.0, "explained_by_client": 1.0}, abs=0.05)
    assert _component_lines(found) == []


def test_nothing_is_said_where_one_component_has_all_samples() -> None:
    data = permuted()
    model: Any = make_model(FedEM, data, n_components=2)
    make_trainer(1, precision="32-true").fit(model, data)
    with torch.no_grad():
        model.pi.copy_(torch.tensor([1.0, 0.0]).expand(4, 2))
    assert shares(model, data) == {}
