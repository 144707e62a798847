"""FedProx, L2SGD, q-FFL, AFL, APFL, pFedMe against their algorithms in NumPy, on minibatches."""

import warnings
from typing import Any

import numpy as np
import pytest
import torch

from fedem_lightning import AFL, APFL, L2SGD, QFFL, ClientSGD, FederatedDataModule, FedProx, PFedMe
from fedem_lightning.data.federation import Federation
from fedem_lightning.data.tasks import Classification
from helpers.by_hand import ALL_TRAIN, assert_agree, batches, descend, gradient, losses, row, samples, vector
from helpers.federations import make_data, make_model, train

pytestmark = pytest.mark.fast

SIZES = (6, 11, 5)
MULTISTEP = [0.2, 0.2, 0.02, 0.002]  # four rounds from a rate of 0.2 on


def three_clients() -> FederatedDataModule:
    return make_data(sizes=SIZES, fractions=ALL_TRAIN)


def mean_loss(theta: np.ndarray, data: FederatedDataModule, t: int) -> float:
    return float(losses(theta, *samples(data, t)).mean())


def average(models: list[np.ndarray]) -> np.ndarray:
    return np.average(models, axis=0, weights=SIZES)


# --- FedProx and L2SGD ------------------------------------------------------------------------------------------------


def test_two_rounds_of_fedprox_agree_with_numpy() -> None:
    data = three_clients()
    model = make_model(FedProx, data, mu=0.7, local_epochs=2, client_optimizer=ClientSGD(lr=0.3)).double()
    w = vector(model.components[0])
    for k in range(2):
        sent = []
        for t in range(3):
            (x, y), theta = samples(data, t), w
            for rows in batches(data, t, 4, 2, k):
                theta = theta - 0.3 * (gradient(theta, x[rows], y[rows]) + 0.7 * (theta - w))
            sent.append(theta)
        w = average(sent)
    train(model, data, 2)
    assert_agree(vector(model.components[0]), w)


def test_three_rounds_of_l2sgd_agree_with_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    data, steps = three_clients(), [2, 0, 3]
    monkeypatch.setattr(L2SGD, "local_steps_of", lambda self, federation, round_: steps[round_])
    model = make_model(L2SGD, data, pull=0.3, client_optimizer=ClientSGD(lr=0.2)).double()
    own = [vector(model.components[0])] * 3
    for k, n in enumerate(steps):
        for t in range(3):
            rows = batches(data, t, 4, 1, k, steps=n) if n else []
            own[t] = descend(own[t], *samples(data, t), rows, 0.2)
        mean = np.mean(own, axis=0)
        own = [0.7 * x + 0.3 * mean for x in own]
    train(model, data, 3)
    served = model.personal_models(torch.arange(3)).models
    for t in range(3):
        assert_agree(row(served, t), own[t])
    assert_agree(vector(model.components[0]), mean)


# --- q-FFL ------------------------------------------------------------------------------------------------------------


def delta_and_h(w: np.ndarray, w_t: np.ndarray, loss: float, q: float, lr: float) -> tuple[np.ndarray, float]:
    """What a client of q-FedAvg sends (Algorithm 2, with L = 1 / lr)."""
    dw = (w - w_t) / lr
    return loss**q * dw, q * loss ** (q - 1) * float(dw @ dw) + loss**q / lr


def qffl(data: FederatedDataModule, q: float, **options: Any) -> Any:
    sgd = ClientSGD(lr=0.2, schedule="multistep")
    return make_model(QFFL, data, q=q, client_optimizer=sgd, local_epochs=2, **options).double()


@pytest.mark.parametrize("q", [0.0, 0.5, 2.0])
def test_qffl_with_a_falling_rate_agrees_with_numpy(q: float) -> None:
    data = three_clients()
    model = qffl(data, q)
    w = vector(model.components[0])
    for k, lr in enumerate(MULTISTEP):
        sent = []
        for t in range(3):
            w_t = descend(w, *samples(data, t), batches(data, t, 4, 2, k), lr)
            sent.append(delta_and_h(w, w_t, mean_loss(w, data, t) + 1e-10, q, lr))
        w = w - sum(delta for delta, _ in sent) / sum(h for _, h in sent)
    train(model, data, 4)
    assert_agree(vector(model.components[0]), w)


class TwoWords(torch.nn.Module):
    """Labels of a sequence of two, each from a linear classifier of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(4, 3), torch.nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack([self.first(x), self.second(x)], dim=1)


def test_qffl_takes_a_sequences_loss_per_target() -> None:
    """F_t and the local steps are means over both positions: else L, which is of these steps, would not fit F_t."""
    x, y = np.random.default_rng(0).normal(size=(17, 4)), np.random.default_rng(1).integers(3, size=(17, 2))
    client, split, task = np.repeat([0, 1], [6, 11]), np.zeros(17, dtype=np.int8), Classification(3, n_targets=2)
    data = FederatedDataModule(Federation.from_arrays(x, y, client, split, task=task, names=("a", "b")))
    model: Any = QFFL(TwoWords(), 2, q=1.0, batch_size=100, local_epochs=2, client_optimizer=ClientSGD(lr=0.2)).double()
    words = model.components[0].first, model.components[0].second
    w = np.stack([vector(word) for word in words])
    for _ in range(2):
        sent = []
        for t in range(2):
            xt, yt, w_t = x[client == t], y[client == t], w
            loss = np.mean([losses(w[i], xt, yt[:, i]) for i in range(2)]) + 1e-10
            for _ in range(2):
                w_t = w_t - 0.2 * np.stack([gradient(w_t[i], xt, yt[:, i]) / 2 for i in range(2)])
            sent.append(delta_and_h(w.ravel(), w_t.ravel(), loss, 1.0, 0.2))
        w = w - (sum(delta for delta, _ in sent) / sum(h for _, h in sent)).reshape(2, 15)
    train(model, data, 2)
    for word, expected in zip(words, w, strict=True):
        assert_agree(vector(word), expected)


# --- AFL --------------------------------------------------------------------------------------------------------------


def nearest_on_simplex(v: np.ndarray) -> np.ndarray:
    """The projection by bisection: it is max(v - tau, 0) for the tau where this sums to 1."""
    low, high = v.max() - 1, v.max()
    for _ in range(200):
        tau = (low + high) / 2
        low, high = (tau, high) if np.maximum(v - tau, 0).sum() > 1 else (low, tau)
    return np.maximum(v - high, 0)


def test_two_rounds_of_afl_agree_with_numpy() -> None:
    data = three_clients()
    sgd, rate = ClientSGD(lr=0.4), 6.0
    model = make_model(AFL, data, weights_lr=rate, batch_size=100, client_optimizer=sgd).double()
    w, weights, rounds = vector(model.components[0]), np.full(3, 1 / 3), []
    for _ in range(2):
        f = np.array([mean_loss(w, data, t) for t in range(3)])
        w = w - 0.4 * sum(weights[t] * gradient(w, *samples(data, t)) for t in range(3))
        weights = nearest_on_simplex(weights + rate * f)
        rounds.append(w)
    train(model, data, 2)
    assert 0 < np.count_nonzero(weights) < 3  # the projection has cut something off
    assert_agree(vector(model.components[0]), w)
    assert_agree(model.weights.numpy(), weights)
    assert_agree(model.losses_of_clients.numpy(), f)
    assert_agree(row(model.personal_models(torch.arange(3)).models, 0), np.mean(rounds, axis=0))


# --- APFL -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lr", [0.1, 5.0])
def test_a_round_of_apfl_agrees_with_numpy(lr: float) -> None:
    """Two local steps; alpha moves at the first one alone, and a large rate drives it to the ends of [0, 1]."""
    data, rows = three_clients(), np.random.default_rng(0).normal(size=(3, 15))
    options: dict[str, Any] = {"alpha": 0.375, "client_optimizer": ClientSGD(lr=lr), "local_steps": 2}
    model, v = make_model(APFL, data, **options).double(), list(rows)
    own = torch.from_numpy(rows).unsqueeze(1)  # which already differ from w and from one another
    model.own[torch.arange(3)] = {"linear.weight": own[..., :12].reshape(3, 1, 3, 4), "linear.bias": own[..., 12:]}
    w, sent, alphas = vector(model.components[0]), [], []
    for t in range(3):
        (x, y), w_t, alpha = samples(data, t), w, 0.375
        for j, rows in enumerate(batches(data, t, 4, 1, 0, steps=2)):
            v_bar = alpha * v[t] + (1 - alpha) * w_t
            g_w, g_bar = gradient(w_t, x[rows], y[rows]), gradient(v_bar, x[rows], y[rows])
            slope = float((v[t] - w_t) @ g_bar)
            w_t, v[t] = w_t - lr * g_w, v[t] - lr * alpha * g_bar
            if j == 0:
                alpha = min(1.0, max(0.0, alpha - lr * slope))
        sent.append(w_t)
        alphas.append(alpha)
    w = average(sent)
    train(model, data, 1)
    assert ({0.0, 1.0} & set(alphas) != set()) == (lr == 5.0)
    assert_agree(vector(model.components[0]), w)
    assert_agree(model.alpha.numpy(), np.array(alphas))
    own, served = model.own[torch.arange(3)], model.personal_models(torch.arange(3)).models
    for t in range(3):
        assert_agree(row(own, t), v[t])
        assert_agree(row(served, t), alphas[t] * v[t] + (1 - alphas[t]) * w)


# --- pFedMe ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("outer_lr", [0.2, 0.5], ids=["eta lambda 0.4", "eta lambda 1"])
def test_two_rounds_of_pfedme_agree_with_numpy(outer_lr: float) -> None:
    """Personal and sent models differ, unless eta lambda = 1: then w becomes theta after every batch."""
    data, penalty = three_clients(), 2.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of eta lambda = 1
        options: dict[str, Any] = {"penalty": penalty, "outer_lr": outer_lr, "inner_steps": 3}
        model = make_model(PFedMe, data, client_optimizer=ClientSGD(lr=0.1), **options).double()
        shared, theta, sent = vector(model.components[0]), [np.zeros(15)] * 3, [np.zeros(15)] * 3
        for k in range(2):
            for t in range(3):
                x, y = samples(data, t)
                theta[t] = sent[t] = shared
                for rows in batches(data, t, 4, 1, k):
                    for _ in range(3):
                        pull = penalty * (theta[t] - sent[t])
                        theta[t] = theta[t] - 0.1 * (gradient(theta[t], x[rows], y[rows]) + pull)
                    sent[t] = sent[t] - outer_lr * penalty * (sent[t] - theta[t])
            shared = average(sent)
        train(model, data, 2)
    assert_agree(vector(model.components[0]), shared)
    personal = model.personal_models(torch.arange(3)).models
    for t in range(3):
        assert_agree(row(personal, t), theta[t])
    mean = average([row(personal, t) for t in range(3)])  # of what clients keep; the server's is of what they send
    gap = np.abs(mean - vector(model.components[0])).max()
    assert gap < 1e-12 if outer_lr == 0.5 else gap > 1e-3
