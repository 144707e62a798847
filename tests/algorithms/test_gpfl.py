"""GPFL: against NumPy, its degenerate cases, and what it refuses."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from fedem_lightning import GPFL, MLP, ClientSGD, FederatedDataModule, FedPer, UserError
from helpers.federations import make_data, make_model, make_trainer, train
from helpers.perceptron import (
    OUTER,
    PHI,
    SIZES,
    Clients,
    Model,
    assert_models_agree,
    by_complex_step,
    cross_entropy,
    features,
    mean,
    part,
    plus,
    relu,
    served,
    start_of,
    unwrapped,
)

ROUNDS, PENALTY, DECAY = 3, 0.3, 0.2


def of_condition(model: Model, part: str, c: np.ndarray) -> np.ndarray:
    """LayerNorm(ReLU(linear(c)))."""
    z = relu(model[f"condition.{part}.0.weight"] @ c + model[f"condition.{part}.0.bias"])
    away = z - z.mean()
    normal = away / np.sqrt((away**2).mean() + 1e-5)
    return normal * model[f"condition.{part}.2.weight"] + model[f"condition.{part}.2.bias"]


def conditioned(model: Model, z: np.ndarray, c: np.ndarray) -> np.ndarray:
    return relu((1 + of_condition(model, "gamma", c)) * z + of_condition(model, "beta", c))


def unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.maximum(np.sqrt((rows**2).sum(axis=1, keepdims=True)), 1e-12)


def objective(model: Model, received: np.ndarray, p: np.ndarray, x: np.ndarray, y: np.ndarray) -> Any:
    """The loss of a batch; `received` are the embeddings at the start of the round."""
    z = features(model, x)
    own = cross_entropy(conditioned(model, z, p) @ model[OUTER[0]].T + model[OUTER[1]], y)
    f = conditioned(model, z, received.mean(axis=0))
    angle = cross_entropy(unit(f) @ unit(model["embeddings"]).T, y)
    away = np.sqrt(((f - received[y]) ** 2).sum(axis=1)).mean()
    guides = [v for name, v in model.items() if name.startswith(("embeddings", "condition"))]
    return own + angle + PENALTY * away + DECAY / 2 * sum((v**2).sum() for v in guides)


def shares_of(y: np.ndarray) -> np.ndarray:
    return np.bincount(y, minlength=3) / len(y)


def local(clients: Clients, model: Model, t: int, k: int, only: tuple[str, ...] = ()) -> Model:
    """A round's steps of client t."""
    received = model["embeddings"]
    p = shares_of(clients.samples[t][1]) @ received
    for x, y in clients.batches(t, k):
        loss = partial(objective, received=received, p=p, x=x, y=y)
        model = plus(model, by_complex_step(loss, model, only or tuple(model)), -clients.lr)
    return model


def test_gpfl_agrees_with_numpy() -> None:
    clients = Clients()
    options: dict[str, Any] = {"penalty": PENALTY, "decay": DECAY, "client_optimizer": ClientSGD(lr=clients.lr)}
    model = make_model(GPFL, clients.data, hidden=True, participation=2, **options).double()
    w = start_of(model)
    train(model, clients.data, ROUNDS)
    heads, shares = [part(w, OUTER) for _ in SIZES], [np.full(3, 1 / 3) for _ in SIZES]
    for k in range(ROUNDS):
        cohort = clients.cohort(k)
        found = [local(clients, w | heads[t], t, k) for t in cohort]
        for t, own in zip(cohort, found, strict=True):
            heads[t], shares[t] = part(own, OUTER), shares_of(clients.samples[t][1])
        w = mean(found, (SIZES[t] for t in cohort))
    for t in range(len(SIZES)):
        assert_models_agree(served(model, t), w | heads[t] | {"shares": shares[t]}, rtol=0)
    t = clients.cohort(0)[0]
    x = clients.samples[t][0]
    z = conditioned(w, features(w, x), shares[t] @ w["embeddings"]) @ heads[t][OUTER[0]].T + heads[t][OUTER[1]]
    predicted = model.predict(clients.data.federation.block(torch.tensor([t]), "train")).exp().numpy()
    np.testing.assert_allclose(predicted, np.exp(z) / np.exp(z).sum(axis=1, keepdims=True), atol=1e-12)


def test_with_equal_embeddings_and_no_condition_a_step_is_fedpers() -> None:
    """gamma = beta = 0 after a ReLU; the cosines are equal, so the second loss is log Y and moves no feature."""
    data, options = make_data(), {"hidden": True, "batch_size": 99, "client_optimizer": ClientSGD(lr=0.3)}
    plain = make_model(FedPer, data, **options)
    model = make_model(GPFL, data, penalty=0.0, decay=0.0, **options)
    network = model.components[0]
    with torch.no_grad():
        network.embeddings[:] = network.embeddings[0].clone()
        for route in (network.condition.gamma, network.condition.beta):
            route[2].weight.zero_()
    train(model, data, 1), train(plain, data, 1)
    for t in range(4):
        own = served(model, t)
        assert_models_agree(unwrapped(part(own, (*PHI, *OUTER))), served(plain, t))


def test_uniform_labels_make_both_routes_one() -> None:
    rng = np.random.default_rng(0)
    data = FederatedDataModule.from_arrays(
        rng.normal(size=(24, 4)), np.arange(24) % 3, np.arange(24) // 12, fractions=(1.0, 0.0, 0.0)
    )
    model = train(make_model(GPFL, data, hidden=True), data, 1)
    network, e = model.components[0], model.components[0].embeddings
    z = torch.rand(7, 5, dtype=torch.float64)
    for t in range(2):
        p = torch.tensor(served(model, t)["shares"]).unsqueeze(0) @ e
        torch.testing.assert_close(network.condition(z, p), network.condition(z, e.mean(dim=0, keepdim=True)))


def test_a_client_that_joins_later_trains_its_head_alone() -> None:
    data = make_data(sizes=(16,) * 4, unseen_fraction=0.25)
    options: dict[str, Any] = {"penalty": PENALTY, "decay": DECAY, "client_optimizer": ClientSGD(lr=Clients.lr)}
    model, trainer = make_model(GPFL, data, hidden=True, **options).double(), make_trainer(2)
    trainer.fit(model, data)
    trainer.test(model, data, verbose=False)
    (t,) = data.federation.clients(seen=False).tolist()
    clients, w = Clients(data), start_of(model)
    expected = local(clients, w, t, 2, only=OUTER) | {"shares": shares_of(clients.samples[t][1])}
    assert_models_agree(served(model, t), expected)


def test_what_is_sent_and_what_is_refused() -> None:
    data = make_data()
    model = train(make_model(GPFL, data, hidden=True), data, 2)
    assert model.statistics.up_bytes == model.statistics.down_bytes == 8 * 2 * 4 * (25 + 3 * 5 + 2 * (25 + 5) + 4 * 5)
    numbers = FederatedDataModule.from_arrays(
        np.zeros((8, 4)), np.linspace(0, 1, 8), np.arange(8) % 2, task="regression"
    )
    with pytest.raises(UserError, match=r"dataset.task: GPFL needs classes as labels, .* got Regression"):
        train(GPFL(MLP((4,), 1), 2), numbers, 1)
    with pytest.raises(UserError, match="penalty"):
        GPFL(MLP((4,), 3), 2, penalty=-0.1)
