"""Scores of imbalanced classes and of several labels, by client and pooled, against scikit-learn's."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.metrics import average_precision_score, balanced_accuracy_score, f1_score, recall_score, roc_auc_score

from fedem_lightning import Digits, FedAvg, FedEM, FederatedDataModule, Linear, Local
from fedem_lightning.evaluate.class_scores import by_class, by_label, majority
from fedem_lightning.evaluate.scores import TestRows
from fedem_lightning.report.columns import all_columns, run_values
from fedem_lightning.report.finished_run import Run
from fedem_lightning.run.results import run_results
from fedem_lightning.run.summary import print_summary
from helpers.federations import make_data, make_model, make_trainer, train_and_test
from helpers.runs import run_small

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("n_classes", [2, 4])
def test_scores_by_class_are_scikit_learns(n_classes: int) -> None:
    n, group = 240, np.arange(240) % 3
    y = RNG.integers(n_classes, size=n) * (RNG.random(n) < 0.6)
    p = RNG.dirichlet(np.ones(n_classes), size=n).round(1)  # with ties
    found = by_class(p, y, group, 3)
    for t in range(3):
        mine = group == t
        labels, best = y[mine], p[mine].argmax(axis=1)
        assert found.balanced_accuracy[t] == pytest.approx(balanced_accuracy_score(labels, best))
        assert found.recall[t] == pytest.approx(recall_score(labels, best, average=None, labels=range(n_classes)))
        one_by_one = [roc_auc_score(labels == c, p[mine, c]) for c in range(n_classes)]
        expected = one_by_one[1] if n_classes == 2 else np.mean(one_by_one)
        assert found.auroc[t] == pytest.approx(expected)


def test_a_client_with_one_class_has_no_auroc_and_nan_is_wrong() -> None:
    p = np.array([[0.9, 0.1], [0.2, 0.8], [np.nan, np.nan], [0.6, 0.4]])
    found = by_class(p, np.array([0, 0, 1, 1]), np.array([0, 0, 1, 1]), 3)
    np.testing.assert_array_equal(found.recall[:2], [[0.5, np.nan], [np.nan, 0.0]])
    assert np.isnan(found.auroc).all()
    assert np.isnan(found.balanced_accuracy[2])  # no sample at all


def rare(**options: Any) -> Any:
    """Six clients with 40 samples, a fifth of them of the rare class 1; the last client has that class alone."""
    rng, client = np.random.default_rng(0), np.repeat(np.arange(6), 40)
    y = (np.arange(240) % 5 == 0).astype(int)
    y[client == 5] = 1
    x = rng.normal(size=(240, 3)) + y[:, None]
    return FederatedDataModule.from_arrays(x, y, client, n_classes=2, fractions=(0.5, 0.1, 0.4), **options)


def test_the_majority_is_that_of_a_clients_training_samples() -> None:
    data = rare()
    base = majority(data.federation, torch.arange(6))
    assert base is not None
    assert base.imbalanced
    assert base.threshold == pytest.approx(0.6)
    for t in range(6):
        y, y_test = (data.federation.block(torch.tensor([t]), split).y() for split in ("train", "test"))
        assert base.accuracy[t] == (y_test == y.bincount().argmax()).double().mean()
    y = np.concatenate([np.arange(200) % 2, np.ones(400, int)])  # client 1 has one class, and is unseen
    options: Any = {"n_classes": 2, "unseen": [1]}
    even = FederatedDataModule.from_arrays(np.ones((600, 1)), y, (np.arange(600) >= 200).astype(int), **options)
    of_seen = majority(even.federation, torch.arange(2))
    assert of_seen is not None
    assert not of_seen.imbalanced
    balanced = majority(make_data(sizes=(400, 400)).federation, torch.arange(2))
    assert balanced is not None
    assert not balanced.imbalanced
    assert majority(make_data(task="regression").federation, torch.arange(4)) is None


@pytest.mark.parametrize("kind", [FedEM, Local])
def test_a_runs_scores_of_classes_agree_with_predictions_one_by_one(kind: type) -> None:
    data = rare(unseen=[4])
    model = train_and_test(make_model(kind, data), data, 2)
    table, found = model.clients, model.tested.classes
    seen, p_all, y_all = [0, 1, 2, 3, 5], [], []
    for t in range(6):
        block = data.federation.block(torch.tensor([t]), "test")
        p, y = model.predict(block).exp().numpy(), block.y().numpy()
        two = len(set(y.tolist())) == 2
        assert table.test_auroc[t] == pytest.approx(roc_auc_score(y, p[:, 1]) if two else np.nan, nan_ok=True)
        assert table.test_sensitivity[t] == pytest.approx((p.argmax(1) == 1)[y == 1].mean())
        if t in seen:
            p_all.append(p)
            y_all.append(y)
    p, y = np.concatenate(p_all), np.concatenate(y_all)
    assert found["auroc"]["pooled"] == pytest.approx(roc_auc_score(y, p[:, 1]))
    assert found["balanced_accuracy"]["pooled"] == pytest.approx(balanced_accuracy_score(y, p.argmax(1)))
    assert found["auroc"]["n_clients"] == table.test_auroc[seen].notna().sum() == 4
    recalls = {str(c): (p.argmax(1) == c)[y == c].mean() for c in (0, 1)}
    assert found["sensitivity"] == pytest.approx(recalls)
    worse = (table.test_accuracy < table.test_majority_accuracy)[seen].mean()
    assert found["worse_than_majority"] == pytest.approx(worse)


def test_balanced_runs_are_not_burdened(monkeypatch: pytest.MonkeyPatch) -> None:
    puts: list[Any] = []
    monkeypatch.setattr(TestRows, "put", lambda self, row, values: puts.append(values.ndim))
    data = Digits(n_clients=4)
    model = train_and_test(make_model(Local, data), data, 1)
    assert set(puts) == {1}  # scores of samples, and no probabilities
    assert model.tested.classes["imbalanced"] is False
    assert "auroc" not in model.tested.classes
    assert model.tested.labels is None
    assert "test_auroc" not in model.clients


def test_the_summary_and_the_report_say_it_where_it_matters(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    y = np.array(["no", "yes"])[(RNG.random(120) < 0.1).astype(int)]
    frame = pd.DataFrame({"a": RNG.normal(size=120), "c": np.arange(120) % 3, "y": y})
    frame.to_csv(tmp_path / "t.csv", index=False)
    keys = ["dataset=table", f"dataset.path={tmp_path / 't.csv'}", "dataset.label=y", "dataset.client=c"]
    results = run_small(tmp_path / "run", tmp_path, *keys, "algorithm=fedavg")
    said = " ".join(capsys.readouterr().out.split())
    assert "imbalanced classes: a client's majority class is right for" in said
    assert "AUROC" in said
    assert set(results["class_scores"]["sensitivity"]) == {"no", "yes"}
    scores = run_values(Run(tmp_path / "run", results, {}))
    assert {"balanced_accuracy", "auroc", "worse_than_majority"} <= set(scores) & set(all_columns(percent=True))
    results["class_scores"]["imbalanced"] = False
    assert "auroc" not in run_values(Run(tmp_path / "run", results, {}))
    print_summary(results)
    assert "AUROC" not in capsys.readouterr().out


# --- several labels ---------------------------------------------------------------------------------------------------


def example(n_labels: int = 4, missing: float = 0.2) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    p, y = rng.random((60, n_labels)).astype(np.float32), rng.integers(0, 2, (60, n_labels))
    return p, np.where(rng.random(y.shape) < missing, -100, y)


def by_sklearn(p: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Label by label, on the samples in which it is known."""
    f1, precision = [], []
    for k in range(y.shape[1]):
        known = y[:, k] != -100
        f1.append(f1_score(y[known, k], p[known, k] > 0.5, zero_division=np.nan))
        precision.append(average_precision_score(y[known, k], p[known, k]) if (y[known, k] == 1).any() else np.nan)
    return float(np.nanmean(f1)), float(np.nanmean(precision))


def labelled(p: np.ndarray, y: np.ndarray) -> tuple[float, ...]:
    return tuple(by_label(torch.from_numpy(p), torch.from_numpy(y)).values())


def test_labels_that_are_missing_or_do_not_occur_are_in_no_score() -> None:
    for missing in (0, 0.2):
        p, y = example(missing=missing)
        assert labelled(p, y) == pytest.approx(by_sklearn(p, y), rel=1e-6)
    y[:, 1] = np.where(y[:, 1] == 1, 0, y[:, 1])  # never holds, but is predicted
    y[:, 2], p[:, 2] = np.where(y[:, 2] == 1, 0, y[:, 2]), p[:, 2] / 3  # nor is this one
    y[:, 3] = -100
    f1, precision = by_sklearn(p[:, :1], y[:, :1])
    assert labelled(p, y) == pytest.approx((f1 / 2, precision), rel=1e-6)
    assert np.isnan(labelled(p[:, 2:], y[:, 2:])).all()
    p, y = np.array([[np.nan, np.nan], [0.1, 0.9]]), np.array([[1, 0], [0, 1]])  # a prediction that is NaN is wrong
    assert labelled(p, y)[0] == pytest.approx((0 + 2 / 3) / 2)


@pytest.mark.parametrize("kind", [FedAvg, Local])
def test_a_run_has_the_scores_of_its_labels(kind: Any) -> None:
    x = RNG.normal(size=(200, 4))
    y = (x @ RNG.normal(size=(4, 3)) + RNG.normal(size=(200, 3)) > 0).astype(int)
    y[RNG.random(y.shape) < 0.1] = -100
    data = FederatedDataModule.from_arrays(x, y, np.arange(200) % 5, task="multilabel", unseen_fraction=0.2)
    model, trainer = kind(Linear(data.in_shape, data.n_outputs), data.n_clients), make_trainer(2)
    trainer.fit(model, data)
    trainer.test(model, data, verbose=False)
    found: Any = (trainer.predict(model, data) or [None])[0]
    table = model.clients
    for row in table.itertuples():
        own = found.client == row.id
        expected = by_sklearn(found.prediction[own], found.y[own])
        assert (row.test_macro_f1, row.test_mean_average_precision) == pytest.approx(expected, rel=1e-5)
    seen = np.isin(found.client, table.id[table.population == "seen"])
    results = run_results(model, data.federation)
    pooled = [results["label_scores"][name]["pooled"] for name in ("macro_f1", "mean_average_precision")]
    assert pooled == pytest.approx(by_sklearn(found.prediction[seen], found.y[seen]), rel=1e-5)
    mean = table.test_macro_f1[table.population == "seen"].mean()
    assert results["label_scores"]["macro_f1"] == {"pooled": pooled[0], "mean": pytest.approx(mean), "n_clients": 4}
    assert results["class_scores"] is None
