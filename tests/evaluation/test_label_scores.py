"""Macro F1 and mean average precision of multi-label tasks, against scikit-learn."""

import json
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score, f1_score

from fedem_lightning import FedAvg, FederatedDataModule, Linear, Local
from fedem_lightning.evaluation.label_scores import label_scores
from fedem_lightning.run.results import run_results
from helpers.federations import make_trainer


def example(n: int = 60, n_labels: int = 4, missing: float = 0.2) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    p, y = rng.random((n, n_labels)).astype(np.float32), rng.integers(0, 2, (n, n_labels))
    return p, np.where(rng.random(y.shape) < missing, -100, y)


def by_sklearn(p: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Label by label, on the samples in which it is known."""
    f1, precision = [], []
    for k in range(y.shape[1]):
        known = y[:, k] != -100
        f1.append(f1_score(y[known, k], p[known, k] > 0.5, zero_division=np.nan))
        precision.append(average_precision_score(y[known, k], p[known, k]) if (y[known, k] == 1).any() else np.nan)
    return float(np.nanmean(f1)), float(np.nanmean(precision))


def test_all_labels_known_is_macro_f1_and_map_of_scikit_learn() -> None:
    p, y = example(missing=0)
    found = label_scores(torch.from_numpy(p), torch.from_numpy(y))
    expected = f1_score(y, p > 0.5, average="macro"), average_precision_score(y, p, average="macro")
    assert found == pytest.approx(expected, rel=1e-6)


def test_missing_labels_are_in_no_score() -> None:
    p, y = example()
    assert label_scores(torch.from_numpy(p), torch.from_numpy(y)) == pytest.approx(by_sklearn(p, y), rel=1e-6)


def test_a_label_that_does_not_occur_has_no_average_precision() -> None:
    p, y = example()
    y[:, 1] = np.where(y[:, 1] == 1, 0, y[:, 1])  # never holds, but is predicted
    y[:, 2], p[:, 2] = np.where(y[:, 2] == 1, 0, y[:, 2]), p[:, 2] / 3  # nor is this one
    y[:, 3] = -100
    found = label_scores(torch.from_numpy(p), torch.from_numpy(y))
    first = by_sklearn(p[:, :1], y[:, :1])
    assert found.mean_average_precision == pytest.approx(first[1], rel=1e-6)
    assert found.macro_f1 == pytest.approx(first[0] / 2, rel=1e-6)
    none = label_scores(torch.from_numpy(p[:, 2:]), torch.from_numpy(y[:, 2:]))
    assert np.isnan(none).all()


def test_a_prediction_that_is_nan_is_wrong() -> None:
    y = torch.tensor([[1, 0], [0, 1]])
    p = torch.tensor([[torch.nan, torch.nan], [0.1, 0.9]])
    assert label_scores(p, y).macro_f1 == pytest.approx((0 + 2 / 3) / 2)


def made(n: int = 200) -> FederatedDataModule:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(n, 4))
    y = (x @ rng.normal(size=(4, 3)) + rng.normal(size=(n, 3)) > 0).astype(int)
    y[rng.random(y.shape) < 0.1] = -100
    return FederatedDataModule.from_arrays(x, y, np.arange(n) % 5, task="multilabel", unseen_fraction=0.2)


@pytest.mark.parametrize("kind", [FedAvg, Local])
def test_a_run_has_them_of_its_test_samples(kind: Any) -> None:
    data = made()
    model = kind(Linear(data.in_shape, data.n_outputs), data.n_clients)
    trainer = make_trainer(2)
    trainer.fit(model, data)
    trainer.test(model, data, verbose=False)
    found: Any = (trainer.predict(model, data) or [None])[0]
    table = model.clients
    for row in table.itertuples():
        own = found.client == row.id
        expected = by_sklearn(found.prediction[own], found.y[own])
        assert (row.test_macro_f1, row.test_mean_average_precision) == pytest.approx(expected, rel=1e-5)
    seen = np.isin(found.client, table.id[table.population == "seen"])
    expected = by_sklearn(found.prediction[seen], found.y[seen])
    results = run_results(model, data.federation)
    pooled = [results["label_scores"][name]["pooled"] for name in ("macro_f1", "mean_average_precision")]
    assert pooled == pytest.approx(expected, rel=1e-5)
    mean = table.test_macro_f1[table.population == "seen"].mean()
    assert results["label_scores"]["macro_f1"] == {"pooled": pooled[0], "mean": pytest.approx(mean), "n_clients": 4}
    assert results["class_scores"] is None
    assert json.dumps(results["label_scores"])


def test_other_tasks_have_none() -> None:
    rng = np.random.default_rng(0)
    data = FederatedDataModule.from_arrays(rng.normal(size=(40, 4)), rng.integers(0, 2, 40), np.arange(40) % 4)
    model = FedAvg(Linear(data.in_shape, data.n_outputs), data.n_clients)
    trainer = make_trainer(1)
    trainer.fit(model, data)
    trainer.test(model, data, verbose=False)
    assert model.label_scores is None
    assert "label_scores" not in run_results(model, data.federation)
