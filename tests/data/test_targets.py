"""Real targets are standardised for the networks; whatever users read is in the units of y."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from numpy.testing import assert_allclose

from fedem_lightning import (
    FedEM,
    Local,
    load,
    load_clients,
    predict,
)
from fedem_lightning import FederatedDataModule as Arrays
from fedem_lightning.data.schema import Schema
from fedem_lightning.data.tasks import Regression
from fedem_lightning.evaluate import __main__ as evaluate
from fedem_lightning.local.optimizers import ClientSGD
from fedem_lightning.serving.model_files import write_clients
from fedem_lightning.settings.errors import UserError
from helpers.federations import make_model, make_trainer, stored, train

client_of, split_of = np.repeat([f"shop {t}" for t in range(8)], 50), np.tile([0, 0, 0, 1, 2], 80)
X = np.random.default_rng(0).normal(size=(400, 3))
PARTS = (split_of == 0, split_of > 0)
RULES = np.array([[80.0, 50, 30], [80.0, -50, 30]])[np.repeat(np.arange(8), 50) % 2]
SALES = 500 + (RULES * X).sum(axis=1) + np.random.default_rng(1).normal(0, 10, 400)  # deviation 100


def shops(y: np.ndarray = SALES, **options: Any) -> Arrays:
    return Arrays.from_arrays(X, y, client_of, **{"split": split_of, "task": "regression", **options})


def task_of(data: Arrays) -> Any:
    return data.federation.task


def test_equations_in_the_units_of_y() -> None:
    rng, shift, scale = np.random.default_rng(0), np.array([500.0, -2.0]), np.array([100.0, 0.5])
    outputs, y = rng.normal(size=(6, 2)), shift + scale * rng.normal(size=(6, 2))
    y[1, 0] = np.nan
    mean, known = shift + scale * outputs, ~np.isnan(y)
    squares = np.where(known, (np.where(known, y, 0) - mean) ** 2, 0)
    h, target = torch.from_numpy(outputs), torch.from_numpy(y)
    task, wanted = Regression(2, 1, shift.tolist(), scale.tolist()), (squares / scale**2).sum(axis=1) / 2
    assert_allclose(task.losses(h, target), wanted)
    assert_allclose(task.predict(h), mean)
    assert_allclose(task.outputs(task.predict(h)), outputs)
    scores = task.scores(torch.from_numpy(mean), target)
    assert_allclose(scores["loss"], wanted)
    assert_allclose(scores["mse"], squares.sum(axis=1) / known.sum(axis=1))
    half = Regression(1, 1, [500.0], [1.0]).predict(torch.tensor([[0.5]], dtype=torch.bfloat16))
    assert half.tolist() == [[500.5]]  # in half precision it would be 500


def test_shift_and_scale_are_those_of_training_rows_of_clients_that_train() -> None:
    data = shops(np.where(split_of == 0, SALES, 1e6), unseen=["shop 3"])
    rows = SALES[(split_of == 0) & (client_of != "shop 3")]
    assert_allclose(task_of(data).shift, [rows.mean()])
    assert_allclose(task_of(data).scale, [rows.std()])
    assert stored(shops().federation).y.tolist() == SALES.tolist()
    assert shops().federation.notes["targets"].startswith("networks learn (y - mean) / deviation, mean 4")
    assert "the targets' mean and deviation" in shops().federation.released[0]
    several = task_of(shops(np.stack([SALES, np.full(400, 7.0), np.full(400, np.nan)], axis=1)))
    assert_allclose([several.shift[1:], several.scale[1:]], [[7, 0], [1, 1]])
    raw = shops(standardize_targets=False)
    assert (task_of(raw), raw.federation.released) == (Regression(), ())


@pytest.mark.parametrize("kind", [FedEM, Local])
def test_all_that_users_read_is_in_the_units_of_y(kind: Any, tmp_path: Path) -> None:
    data, last = shops(unseen=["shop 7"]), client_of == "shop 7"
    model, trainer = train(make_model(kind, data, client_optimizer=ClientSGD(lr=0.1)), data, 30), make_trainer(30)
    assert trainer.test(model, data, verbose=False)[0]["test/mse"] < 0.1 * SALES.var()
    trainer.save_checkpoint(tmp_path / "model.ckpt")
    again, file = load(tmp_path / "model.ckpt"), tmp_path / "c.safetensors"
    steps: Any = (trainer.predict(model, data) or [])[0]
    write_clients(file, again.trained_model.clients_models())
    rows: dict[str, Any] = {"x": X, "y": SALES, "client": client_of, "split": split_of}
    np.savez(tmp_path / "rows.npz", **{name: values[~last] for name, values in rows.items()})
    predict.main([str(file), str(tmp_path / "rows.npz"), "--out", str(tmp_path / "p.csv")])
    evaluate.main([str(file), str(tmp_path / "rows.npz"), "--out", str(tmp_path / "scores")])
    written, scores = pd.read_csv(tmp_path / "p.csv"), pd.read_csv(tmp_path / "scores" / "clients.csv").set_index("id")
    table, sigma = model.clients.set_index("id"), task_of(data).scale[0]
    for name in ("shop 0", "shop 5"):
        mine, test = client_of == name, (client_of == name) & (split_of == 2)
        mean = model.client(name).predict(X[test])[:, 0]
        assert_allclose(steps.prediction[steps.client == name][:, 0], mean, rtol=1e-5)
        for other in (again.client(name), load_clients(file).model(name)):
            assert_allclose(other.predict(X[test])[:, 0], mean, rtol=1e-5)
        assert_allclose(written["mean"][written.client == name], model.client(name).predict(X[mine])[:, 0], rtol=1e-5)
        for found in (table.test_mse[name], scores.test_mse[name], table.test_loss[name] * 2 * sigma**2):
            assert_allclose(found, ((mean - SALES[test]) ** 2).mean(), rtol=1e-4)
    new = again.personalize(X[last & (split_of < 2)], SALES[last & (split_of < 2)], "new").predict(X[last])[:, 0]
    assert ((new - SALES[last]) ** 2).mean() < SALES.var() * (0.2 if kind is FedEM else 2)


def test_a_model_of_before_serves_as_before_and_does_not_go_on_in_other_units(tmp_path: Path) -> None:
    raw = shops(SALES / 100, standardize_targets=False)
    model = train(make_model(FedEM, raw, client_optimizer=ClientSGD(lr=0.1)), raw, 3)
    state = model.schema.state()
    for name in ("shift", "scale"):
        del state["task"][name]  # as versions before wrote it
    model.schema = Schema.from_state(state)
    assert model.schema.task == Regression()
    wanted = make_trainer(3).test(model, raw, verbose=False)
    assert make_trainer(3).test(model, shops(SALES / 100), verbose=False) == wanted  # scored with the units it learned
    with pytest.raises(UserError, match=r"dataset.standardize_targets: the model was trained with false, expected the"):
        make_trainer(5).fit(model, shops(SALES / 100))
