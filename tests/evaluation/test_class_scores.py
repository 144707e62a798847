"""The accuracy of each client's majority class, where classes are imbalanced."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from fedem_lightning import FedEM, FederatedDataModule, Local
from fedem_lightning.evaluate.client_table import majority
from fedem_lightning.run.summary import print_summary
from helpers.federations import make_data, make_model, train_and_test
from helpers.runs import run_small

RNG = np.random.default_rng(0)


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
def test_clients_worse_than_their_majority_are_counted(kind: type) -> None:
    data = rare(unseen=[4])
    model = train_and_test(make_model(kind, data), data, 2)
    table, found = model.clients, model.tested.classes
    seen = table[table.population == "seen"]
    assert found["worse_than_majority"] == pytest.approx((seen.test_accuracy < seen.test_majority_accuracy).mean())
    pooled = np.average(seen.test_majority_accuracy, weights=seen.n_test)
    assert found["majority_accuracy"]["pooled"] == pytest.approx(pooled)


def test_the_summary_says_it_where_it_matters(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    y = np.array(["no", "yes"])[(RNG.random(120) < 0.1).astype(int)]
    frame = pd.DataFrame({"a": RNG.normal(size=120), "c": np.arange(120) % 3, "y": y})
    frame.to_csv(tmp_path / "t.csv", index=False)
    keys = ["dataset=table", f"dataset.path={tmp_path / 't.csv'}", "dataset.label=y", "dataset.client=c"]
    results = run_small(tmp_path / "run", tmp_path, *keys, "algorithm=fedavg")
    said = " ".join(capsys.readouterr().out.split())
    assert "imbalanced classes: a client's majority class is right for" in said
    results["class_scores"]["imbalanced"] = False
    print_summary(results)
    assert "imbalanced" not in capsys.readouterr().out
