"""Scores that are not finite are the worst, are counted, and are named; a model that is not finite is not scored."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from fedem_lightning import FedAvg
from fedem_lightning.data.tasks import BinaryClassification, Classification
from fedem_lightning.evaluate.summaries import not_finite, summarize
from fedem_lightning.run.summary import not_finite_lines
from helpers.federations import make_data, make_model, make_trainer, spoil, train
from helpers.report_runs import tables_in
from helpers.runs import make_run

ONES = np.ones(20, dtype=int)


@pytest.mark.parametrize("higher_is_better", [True, False])
def test_a_client_whose_loss_is_nan_is_the_worst(higher_is_better: bool) -> None:
    values = np.arange(20.0)
    for n_unknown in (1, 2, 20):
        values[3 : 3 + n_unknown] = np.nan
        values[:n_unknown] = np.nan if n_unknown == 20 else values[:n_unknown]
        sums = summarize(values, ONES, ONES, higher_is_better)
        assert math.isnan(sums["worst"])
        assert math.isnan(sums["mean"])
        assert math.isnan(sums["weighted"])
        second_worst = 0.0 if higher_is_better else 19.0  # the decile of 20 clients is that of the second one
        assert sums["bottom_decile"] == pytest.approx(second_worst if n_unknown == 1 else math.nan, nan_ok=True)


@pytest.mark.parametrize(
    ("task", "y"),
    [(Classification(3), [0, 1]), (BinaryClassification(), [0, 1]), (Classification(3, 2), [[0, 1], [0, 0]])],
)
def test_a_prediction_that_is_nan_is_wrong(task: Any, y: list[Any]) -> None:
    """Its largest entry is that of class 0 by torch's rule, so a sample of class 0 would count as right."""
    labels = torch.tensor(y)
    scores = task.scores(torch.full((*labels.shape, task.n_classes), math.nan), labels)
    assert scores["accuracy"].tolist() == [0.0, 0.0]
    assert scores["loss"].isnan().all()


def table() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "id": [str(i) for i in range(30)],
            "n_train": 5,
            "n_test": [0] + [2] * 29,
            "train_loss": [0.5] * 29 + [math.inf],
            "train_accuracy": 0.5,
            "test_loss": [math.nan] * 3 + [0.5] * 27,
            "test_accuracy": 0.5,
        }
    )


def test_such_clients_are_counted_and_named() -> None:
    found = not_finite(table(), ("train", "test"))
    assert found == {"train": 1, "test": 2, "clients": ["1", "2", "29"]}
    many = not_finite(table().assign(test_loss=math.nan), ("test",))
    assert many == {"test": 29, "clients": [str(i) for i in range(1, 21)]}


def test_the_summary_says_it() -> None:
    found = {"train": 1, "val": 0, "test": 2, "clients": ["a", "[red]\n"]}
    (line,) = not_finite_lines({"not_finite": found})
    assert line.startswith("2 clients' losses are not finite (a, [red]")
    assert "\n" not in line
    assert not_finite_lines({"not_finite": {"train": 0, "val": 0, "test": 0, "clients": []}}) == []
    assert not_finite_lines({}) == []  # of an earlier version


def test_the_report_says_it(tmp_path: Path) -> None:
    found = {"train": 0, "val": 0, "test": 1, "clients": ["north"]}
    make_run(tmp_path / "a", 0.7, "fedavg", 0, not_finite=found)
    make_run(tmp_path / "b", 0.7, "fedavg", 1)  # as an earlier version wrote it
    warnings = tables_in(tmp_path)[0].warnings
    assert warnings[-1:] == [f"FedAvg, seed 0: {not_finite_lines({'not_finite': found})[0]}"]


def test_a_client_with_a_bad_sample_is_in_the_table() -> None:
    """A test sample that became NaN after the data were checked."""
    data = make_data(sizes=(20, 20, 20))
    model = train(make_model(FedAvg, data), data, 1)
    spoil(data, math.nan, "test")
    make_trainer(1).test(model, data, verbose=False)
    assert not_finite(model.clients, ("train", "val", "test")) == {"train": 0, "val": 0, "test": 1, "clients": ["0"]}
    assert model.clients.test_accuracy.notna().all()
