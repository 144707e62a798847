"""Clients that join without labels: densities in NumPy, training as FedEM's, the mixture weights of inputs alone."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedem_lightning import (
    ClientSGD,
    DensityFedEM,
    FedAvg,
    FedEM,
    FedPer,
    Finetune,
    Local,
    UserError,
    load_clients,
    save_run,
)
from fedem_lightning.personalize import main as personalize
from helpers import by_hand, perceptron
from helpers.federations import make_model, parameters, train, train_and_test

M, ROUNDS, ADDED = 3, 3, 1e-3


def model_of(kind: Any, **options: Any) -> Any:
    given = {"participation": 2, "client_optimizer": ClientSGD(lr=0.2), "hidden": True, "initialization": "random"}
    return make_model(kind, perceptron.Clients().data, n_components=M, **{**given, **options})


class Numpy(perceptron.Mixture):
    """FedEM's rounds; the Gaussians are those of the cohort's samples with the weights q."""

    def round(self, number: int) -> list[tuple[np.ndarray, np.ndarray]]:
        sent = super().round(number)
        q, x = np.concatenate([q for q, _ in sent]), np.concatenate([self.x_of(y) for _, y in sent])
        self.means = q.T @ x / q.sum(axis=0)[:, None]
        d = x[:, None, :] - self.means  # [n, M, d]
        self.variances = np.einsum("nm,nmd->md", q, d**2) / q.sum(axis=0)[:, None] + ADDED
        return sent

    def x_of(self, y: np.ndarray) -> np.ndarray:
        return next(x for x, labels in self.clients.samples if labels is y)

    def log_densities(self, x: np.ndarray) -> np.ndarray:
        d = x[:, None, :] - self.means
        return -0.5 * (d**2 / self.variances + np.log(2 * np.pi * self.variances)).sum(axis=2)


def test_training_is_fedems_to_the_bit() -> None:
    data = perceptron.Clients().data
    one, two = train(model_of(DensityFedEM), data, ROUNDS), train(model_of(FedEM), data, ROUNDS)
    assert torch.equal(parameters(one.components), parameters(two.components))
    assert torch.equal(one.pi, two.pi)


@pytest.mark.parametrize("engine", ["loop", "vmap"])
def test_gaussians_and_a_client_without_labels_agree_with_numpy(engine: str) -> None:
    """Unequal clients, a cohort of two, minibatches; then EM on p_t(x) = sum_m pi_m N(x; mu_m, Sigma_m)."""
    model, data = model_of(DensityFedEM, engine=engine), perceptron.Clients().data
    expected = Numpy(model, M)
    for number in range(ROUNDS):
        expected.round(number)
    train(model, data, ROUNDS)
    np.testing.assert_allclose(model.means.numpy(), expected.means, rtol=1e-12)
    np.testing.assert_allclose(model.variances.numpy(), expected.variances, rtol=1e-12)
    x = expected.clients.samples[1][0]
    pi = np.full(M, 1 / M)
    for _ in range(20):
        pi = by_hand.e_step(pi, -expected.log_densities(x)).mean(axis=0)
    np.testing.assert_allclose(model.personalize(x).weights.numpy(), pi, rtol=1e-12)


def test_the_command_takes_a_table_without_labels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows, data = perceptron.Clients().samples[1][0], perceptron.Clients().data
    model = train_and_test(model_of(DensityFedEM), data, ROUNDS)
    save_run(model, data, tmp_path / "run")
    np.savez(tmp_path / "new.npz", x=rows, client=np.array(["new"] * len(rows)))
    personalize([str(tmp_path / "run"), str(tmp_path / "new.npz"), "--out", str(tmp_path / "new.safetensors")])
    assert "1 client personalised on" in capsys.readouterr().out
    weights = load_clients(tmp_path / "new.safetensors").model("new").weights
    np.testing.assert_allclose(weights.numpy(), model.personalize(rows).weights.numpy(), rtol=1e-5)


NEEDS = (
    "y: expected the labels of the samples, got None; algorithm=fedem_density, fedgmm or feroma needs none (without an "
    "adaptation)"
)


@pytest.mark.parametrize(
    ("kind", "options"),
    [(FedEM, {}), (FedPer, {}), (Local, {}), (DensityFedEM, {"adaptation": Finetune()})],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_who_needs_labels_says_so(kind: Any, options: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = perceptron.Clients().data
    model = train_and_test(make_model(kind, data, hidden=True, **options), data, 1)
    x = perceptron.Clients().samples[1][0]
    with pytest.raises(UserError) as error:
        model.personalize(x)
    assert str(error.value) == NEEDS
    save_run(model, data, tmp_path / "run")
    np.savez(tmp_path / "new.npz", x=x, client=np.array(["new"] * len(x)))
    with pytest.raises(SystemExit):
        personalize([str(tmp_path / "run"), str(tmp_path / "new.npz"), "--out", str(tmp_path / "new.safetensors")])
    assert NEEDS in capsys.readouterr().err
    assert not (tmp_path / "new.safetensors").exists()


def test_a_global_model_needs_none() -> None:
    data, x = perceptron.Clients().data, perceptron.Clients().samples[1][0]
    model = train(make_model(FedAvg, data, hidden=True), data, 1)
    np.testing.assert_array_equal(model.personalize(x).predict(x), model.client("0").predict(x))
