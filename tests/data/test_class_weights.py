"""Weights of classes: in the loss of local training, not in the likelihood, not in scores."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from numpy.testing import assert_allclose
from sklearn.utils.class_weight import compute_class_weight

from fedem_lightning import MOCHA, ClientSGD, FedEM, Local, TableDataModule, UserError
from fedem_lightning.data.own_data import class_weights
from fedem_lightning.data.tasks import BinaryClassification, Classification, training_loss
from fedem_lightning.local.engine import LoopEngine, VmapEngine
from helpers.by_hand import three_rounds_of_fedem
from helpers.federations import make_data, make_model, parameters, train

WEIGHTS = [0.2, 1.0, 3.0]


def test_balanced_weights_are_scikit_learns() -> None:
    y = np.repeat([0, 1, 2], [50, 8, 3])
    found = class_weights("balanced", y, n_classes=4)
    assert found is not None
    assert_allclose(found[:3], compute_class_weight("balanced", classes=np.arange(3), y=y))
    assert found[3] == 1.0  # nobody has it
    assert np.mean([found[label] for label in y]) == pytest.approx(1)


def test_a_misspelt_choice_is_refused_and_an_array_is_noted_as_a_list() -> None:
    with pytest.raises(UserError, match=r"^class_weights: expected balanced, or a list .*, got 'balance'"):
        make_data(class_weights="balance")
    data = make_data(class_weights=torch.tensor([1.0, 2.0, 3.0]))
    assert data.hparams["data"]["class_weights"] == data.federation.notes["class_weights"] == [1.0, 2.0, 3.0]


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_training_loss_is_torchs_and_the_likelihood_is_not_weighted(smoothing: float) -> None:
    z, y = torch.randn(20, 3, dtype=torch.float64), torch.arange(20) % 3
    task = Classification(3, 1, WEIGHTS, smoothing, weigh_training_only=True)
    loss = torch.nn.CrossEntropyLoss(torch.tensor(WEIGHTS).double(), reduction="none", label_smoothing=smoothing)
    assert_allclose(training_loss(task).losses(z, y), loss(z, y))
    plain = torch.nn.CrossEntropyLoss(reduction="none", label_smoothing=smoothing)
    assert_allclose(task.losses(z, y), plain(z, y))
    logit, label = z[:, :1], y % 2
    binary = BinaryClassification(2, 1, WEIGHTS[:2], weigh_training_only=True)
    two = torch.cat([torch.zeros_like(logit), logit], dim=1)
    weighted = torch.nn.CrossEntropyLoss(torch.tensor(WEIGHTS[:2]).double(), reduction="none")
    assert_allclose(training_loss(binary).losses(logit, label), weighted(two, label))
    assert_allclose(binary.losses(logit, label), plain(two, label) if not smoothing else binary.losses(logit, label))


@pytest.mark.parametrize("engine", [LoopEngine(), VmapEngine()], ids=["loop", "vmap"])
def test_fedem_weighs_gradients_and_not_responsibilities(engine: Any) -> None:
    data = make_data(fractions=(1.0, 0.0, 0.0), class_weights=WEIGHTS)
    optimizer = ClientSGD(lr=0.5)
    model = make_model(FedEM, data, n_components=2, batch_size=100, client_optimizer=optimizer, engine=engine).double()
    three_rounds_of_fedem(data, model, 0.5, WEIGHTS)


def test_equal_weights_change_nothing_and_tuning_has_the_weights() -> None:
    found = []
    for weights in (None, [1.0, 1.0, 1.0], WEIGHTS):
        data = make_data(class_weights=weights)
        found.append(parameters(train(make_model(Local, data), data, rounds=2)))
    assert torch.equal(found[0], found[1])
    assert not torch.allclose(found[0], found[2])


def test_balanced_weights_are_those_of_the_training_samples_that_train() -> None:
    data = make_data(sizes=(40, 40), unseen=[1], class_weights="balanced")
    block = data.federation.block(torch.tensor([0]), "train")
    task = data.federation.task
    assert isinstance(task, Classification)
    assert task.class_weights == class_weights("balanced", block.y().numpy(), 3)


def test_weights_of_a_table_and_what_is_refused(tmp_path: Path) -> None:
    y = np.array(["no", "yes"])[(np.arange(60) % 6 == 0).astype(int)]
    frame = pd.DataFrame({"a": np.arange(60) / 60, "c": np.arange(60) % 2, "y": y})
    frame.to_csv(tmp_path / "t.csv", index=False)
    data = TableDataModule(tmp_path / "t.csv", "y", "c", task="binary", class_weights="balanced")
    task = data.federation.task
    assert isinstance(task, BinaryClassification)
    assert task.class_weights is not None
    assert task.class_weights[1] > task.class_weights[0]
    for options, line in (
        ({"class_weights": [1.0]}, "class_weights: expected balanced or 2 numbers, one for each class, got 1"),
        ({"class_weights": "balanced", "task": "regression"}, "only classification and binary have them"),
    ):
        with pytest.raises(UserError, match=line):
            TableDataModule(tmp_path / "t.csv", "a" if "task" in options else "y", "c", **options)


def test_mocha_refuses_weights() -> None:
    data = make_data(n_classes=2, task="binary", class_weights="balanced")
    with pytest.raises(UserError, match=r"dataset.class_weights: MOCHA's loss"):
        train(make_model(MOCHA, data), data, rounds=1)


def test_counted_weights_are_released_and_given_ones_are_not() -> None:
    assert make_data(class_weights="balanced").federation.released == (
        "class weights, from the frequencies of all clients' labels; give numbers",
    )
    assert make_data(class_weights=WEIGHTS).federation.released == make_data().federation.released == ()
