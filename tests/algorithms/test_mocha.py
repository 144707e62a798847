"""MOCHA against plain loops, its duality, and what it is in special cases."""

from typing import Any

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from torch import nn

from fedem_lightning import MLP, MOCHA, FederatedDataModule, Linear, UserError
from fedem_lightning.local.training import shuffled_batches
from helpers.federations import make_data, make_model, parameters, spoil, train

FIXED = {"inner_rounds": 10**6}  # Sigma stays as it is


def binary(sizes: tuple[int, ...] = (7, 12, 3, 20), **options: Any) -> FederatedDataModule:
    """All samples are training samples unless `fractions` says otherwise."""
    return make_data(sizes, **{"n_classes": 2, "task": "binary", "fractions": (1.0, 0.0, 0.0), **options})


def samples(data: FederatedDataModule, t: int) -> tuple[np.ndarray, np.ndarray]:
    """Client t's training samples with a 1 appended [n, d], and its labels -1, +1."""
    block = data.federation.block(torch.tensor([t]), "train")
    x = block.x(torch.float64).numpy()
    return np.hstack([x, np.ones((len(x), 1))]), 2.0 * block.y().numpy() - 1


class History(pl.Callback):
    """Round metrics in float64, and whether W = (1/lambda) B Sigma after every round."""

    def __init__(self) -> None:
        self.metrics: list[dict[str, float]] = []

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: Any) -> None:
        self.metrics.append(pl_module.round_metrics.means())
        expected = pl_module.b.T @ pl_module.sigma / pl_module.penalty
        torch.testing.assert_close(pl_module.w, expected.T, rtol=1e-12, atol=1e-14)
        torch.testing.assert_close(pl_module.sigma.trace(), torch.tensor(1.0).double(), rtol=0, atol=1e-7)

    def __getitem__(self, name: str) -> np.ndarray:
        return np.array([metrics[name] for metrics in self.metrics])


def reference(data: FederatedDataModule, lam: float, inner: int, rounds: int) -> dict[str, Any]:
    """Algorithm 1 sample by sample, client by client, in the paper's alpha, delta w and y."""
    clients = [samples(data, t) for t in range(data.n_clients)]
    T, d = len(clients), clients[0][0].shape[1]
    alpha, W, B = [np.zeros(len(y)) for _, y in clients], np.zeros((d, T)), np.zeros((d, T))
    sigma, safety, gaps = np.eye(T) / T, 1.0, []
    for k in range(rounds):
        gaps.append((primal(clients, W, sigma, lam) - dual(clients, alpha, W, sigma, lam)) / T)
        delta_B = np.zeros((d, T))
        for t, (x, y) in enumerate(clients):
            n, delta_w = len(y), np.zeros(d)
            block = data.federation.block(torch.tensor([t]), "train")
            for i in shuffled_batches(block, 1, 1, seed=0, round_=k).order[0].tolist()[: max(1, n // 2)]:
                m = y[i] * (x[i] @ (W[:, t] + safety * delta_w))
                c = safety * sigma[t, t] * (x[i] @ x[i]) / (lam * n)
                new = alpha[t][i] + y[i] * (1 / (1 + np.exp(m)) - alpha[t][i] * y[i]) / max(1.0, 0.25 + c)
                delta_w += sigma[t, t] * (new - alpha[t][i]) * x[i] / (lam * n)
                delta_B[:, t] += (new - alpha[t][i]) * x[i] / n
                alpha[t][i] = new
        B += delta_B
        for t in range(T):
            for s in range(T):
                W[:, t] += sigma[t, s] * delta_B[:, s] / lam
        if (k + 1) % inner == 0:
            values, vectors = np.linalg.eigh(W.T @ W)
            root = vectors @ np.diag(np.sqrt(np.maximum(values, 1e-7))) @ vectors.T
            sigma = root / np.trace(root)
            safety = max(sum(abs(sigma[t, s]) for s in range(T)) / sigma[t, t] for t in range(T))
            W = B @ sigma / lam
    return {"alpha": alpha, "w": W.T, "b": B.T, "sigma": sigma, "gaps": gaps}


def primal(clients: list[Any], W: np.ndarray, sigma: np.ndarray, lam: float) -> float:
    value = lam / 2 * np.trace(W @ np.linalg.inv(sigma) @ W.T)
    for t, (x, y) in enumerate(clients):
        m = y * (x @ W[:, t])
        value += np.mean(np.log1p(np.exp(-m)))
    return value


def dual(clients: list[Any], alpha: list[Any], W: np.ndarray, sigma: np.ndarray, lam: float) -> float:
    value = -lam / 2 * np.trace(W @ np.linalg.inv(sigma) @ W.T)
    for t, (_, y) in enumerate(clients):
        a = alpha[t] * y
        inside = a[(a > 0) & (a < 1)]
        entropy = -np.sum(inside * np.log(inside) + (1 - inside) * np.log(1 - inside))
        value += entropy / len(a)
    return value


def test_rounds_equal_plain_loops() -> None:
    data, history = binary(sizes=(5, 12)), History()
    model = make_model(MOCHA, data, penalty=0.1, inner_rounds=2)
    train(model, data, 5, callbacks=[history])
    expected = reference(data, lam=0.1, inner=2, rounds=5)
    for name in ("b", "w", "sigma"):
        np.testing.assert_allclose(model.get_buffer(name), expected[name], rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(history["duality_gap"], expected["gaps"], rtol=1e-9, atol=1e-12)
    assert model.alpha.shape == (2, 12)
    for t, alpha in enumerate(expected["alpha"]):
        np.testing.assert_allclose(model.alpha[t, : len(alpha)], alpha, rtol=1e-9, atol=1e-12)
        assert not model.alpha[t, len(alpha) :].any()
    assert float(model.safety) > 1


def test_the_duality_gap_closes_when_sigma_is_fixed() -> None:
    """And the dual never falls: sigma' keeps the clients' simultaneous steps safe."""
    data, history = binary(), History()
    model = make_model(MOCHA, data, penalty=0.3, **FIXED).double()
    root = torch.randn(4, 4, dtype=torch.float64)
    sigma = root @ root.T + torch.eye(4)
    model.sigma.copy_((sigma + sigma.T) / (2 * sigma.trace()))
    train(model, data, 80, callbacks=[history])
    gap = history["duality_gap"]
    assert (gap > -1e-14).all()
    np.testing.assert_allclose(gap, history["primal"] - history["dual"], atol=1e-12)
    assert gap[0] == pytest.approx(np.log(2))
    assert gap[-1] < 1e-6
    assert (np.diff(history["dual"]) > -1e-14).all()


@pytest.mark.parametrize("bias", [True, False])
def test_clients_serve_their_own_linear_models(bias: bool) -> None:
    data = binary(fractions=(0.5, 0.2, 0.3))
    model = train(MOCHA(nn.Sequential(nn.Flatten(), nn.Linear(4, 1, bias=bias)), 4), data, 3)
    block = data.federation.block(torch.tensor([3, 1]), "test")
    found, x = model.predict(block).exp().numpy(), block.x(torch.float64).numpy()
    for i, t in enumerate(block.clients[block.owner].tolist()):
        w = model.w[t].numpy()
        p = 1 / (1 + np.exp(-(x[i] @ w[:4] + (w[4] if bias else 0.0))))
        np.testing.assert_allclose(found[i], [1 - p, p], rtol=1e-9)


def test_updates_that_are_not_finite_are_rejected() -> None:
    data, history = binary(sizes=(9, 9, 9)), History()
    spoil(data, float("nan"))  # of client 0
    model = train(make_model(MOCHA, data), data, 2, callbacks=[history])
    assert model.statistics.rejections.total >= 1  # not each round visits the sample
    assert model.b[1:].any(dim=1).all()
    assert parameters(model).isfinite().all()


def test_what_it_is_not_defined_for() -> None:
    data = binary(sizes=(9,) * 4, unseen_fraction=0.25)
    with pytest.raises(UserError, match="unseen_fraction: MOCHA has no model for clients that did not train"):
        train(make_model(MOCHA, data), data, 1)
    multi = make_data()
    with pytest.raises(UserError, match="one linear layer with one output"):
        make_model(MOCHA, multi)
    with pytest.raises(UserError, match="two classes and one logit"):
        train(MOCHA(Linear((4,), 1), 4), multi, 1)
    with pytest.raises(UserError, match="a linear layer of 4 features, got 3"):
        train(MOCHA(Linear((3,), 1), 4), binary(), 1)
    for backbone in (MLP((4,), 1), nn.Sequential(nn.Linear(4, 1), nn.Sigmoid()), nn.Conv2d(1, 1, 3)):
        with pytest.raises(UserError, match="one linear layer with one output"):
            MOCHA(backbone, 4)
