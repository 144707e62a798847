"""The score of every test sample, against the predictions that the Trainer gives for the same samples."""

from typing import Any

import numpy as np
import pytest
import torch

from fedem_lightning import (
    DensityDataModule,
    FedAvg,
    FedEM,
    FederatedDataModule,
    Finetune,
    HypCluster,
    Interpolate,
    Local,
    LoopEngine,
)
from fedem_lightning.evaluate import scores
from fedem_lightning.module.scoring import ClientPredictions
from helpers.federations import make_data, make_model, make_trainer, train_and_test

SIZES = (30, 25, 4, 17, 40)  # the third client has no test sample


def regression(**options: Any) -> FederatedDataModule:
    rng, client = np.random.default_rng(0), np.repeat(np.arange(5), SIZES)
    x = rng.normal(size=(len(client), 4))
    return FederatedDataModule.from_arrays(x, x @ rng.normal(size=(4, 2)), client, task="regression", **options)


def predicted(model: Any, data: FederatedDataModule) -> ClientPredictions:
    found: Any = make_trainer(0).predict(model, data)
    return found[0]


UNSEEN: dict[str, Any] = {"unseen_fraction": 0.4}
CASES: dict[str, tuple[type, FederatedDataModule, dict[str, Any]]] = {
    "shared, unseen": (FedEM, make_data(SIZES, **UNSEEN), {}),
    "own models": (Local, make_data(SIZES), {}),
    "own models in blocks": (Local, make_data(SIZES), {"engine": LoopEngine(block_size=2), "scored_clients": 3}),
    "clusters, unseen": (HypCluster, make_data(SIZES, **UNSEEN), {"initialization": "random"}),
    "tuned, unseen": (FedAvg, make_data(SIZES, **UNSEEN), {"adaptation": Finetune(1), "personalize_fraction": 0.5}),
    "interpolated": (FedAvg, make_data(SIZES), {"adaptation": Interpolate(lambdas=(0.2, 0.7))}),
    "binary": (FedAvg, make_data(SIZES, n_classes=2, task="binary"), {}),
    "regression": (FedEM, regression(**UNSEEN), {}),
    "density": (FedAvg, DensityDataModule(n_clients=5, n_symbols=9, n_samples=20, test_size=30), {}),
}


@pytest.mark.parametrize("case", CASES)
def test_every_sample_has_its_own_score(case: str) -> None:
    kind, data, options = CASES[case]
    model = train_and_test(make_model(kind, data, **options), data, 2)
    found, table, by_trainer = model.tested.samples.arrays(), model.clients, predicted(model, data)
    assert found["n"].tolist() == table.n_test.tolist()
    assert found["n"].dtype == np.int64
    assert np.repeat(table.id, found["n"]).tolist() == by_trainer.client.tolist()
    measure = str(found["measure"])
    assert measure == {"regression": "mse", "density": "loss"}.get(case, "accuracy")
    y, prediction = by_trainer.y, by_trainer.prediction
    if measure == "accuracy":
        assert found["values"].dtype == bool
        np.testing.assert_array_equal(found["values"], prediction.argmax(axis=1) == y)
        assert 0 < found["values"].mean() < 1
    else:
        assert found["values"].dtype == np.float32
        picked = prediction[np.arange(len(y)), y if measure == "loss" else 0]
        by_hand = -np.log(picked) if measure == "loss" else ((prediction - y.reshape(prediction.shape)) ** 2).mean(1)
        np.testing.assert_allclose(found["values"], by_hand, rtol=1e-5)
    means = [part.mean() if len(part) else np.nan for part in np.split(found["values"], found["n"].cumsum()[:-1])]
    np.testing.assert_allclose(means, table[f"test_{measure}"], rtol=1e-6)


def test_more_samples_than_the_limit_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    data = make_data(SIZES)
    n_samples = int(data.federation.splits["test"].counts().sum())
    for limit in (n_samples, n_samples - 1):
        monkeypatch.setattr(scores, "MOST_NUMBERS", limit)
        model = train_and_test(make_model(FedAvg, data), data, 1)
        assert (model.tested.samples is None) == (limit < n_samples)


def test_predictions_name_their_samples() -> None:
    """Rows of the user's arrays, whatever the order of clients and splits."""
    rng = np.random.default_rng(1)
    x, client = rng.normal(size=(90, 4)), rng.permuted(np.repeat(["c", "a", "b"], 30))
    y = (x[:, 0] > 0).astype(int)
    data = FederatedDataModule.from_arrays(x, y, client)
    model = make_model(FedAvg, data)
    make_trainer(1).fit(model, data)
    found = predicted(model, data)
    assert len(np.unique(found.sample)) == len(found.sample) == 18
    np.testing.assert_array_equal(found.client, client[found.sample])
    np.testing.assert_array_equal(found.y, y[found.sample])
    expected = model.components[0](torch.from_numpy(x[found.sample])).softmax(dim=1)
    np.testing.assert_allclose(found.prediction, expected.detach(), rtol=1e-9)
