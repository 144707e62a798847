"""FedCP: against NumPy, its degenerate cases, and what it refuses."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from fedem_lightning import MLP, ClientSGD, FedCP, FederatedDataModule, FedPer, UserError
from helpers.federations import make_data, make_model, make_trainer, parameters, train
from helpers.perceptron import (
    HEAD,
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

ROUNDS, PENALTY = 3, 2.0
OWN = ("personal.weight", "personal.bias")


def direction(model: Model) -> np.ndarray:
    rows = model[OWN[0]].sum(axis=0)
    return rows / np.sqrt((rows**2).sum())


def logits(model: Model, v: np.ndarray, x: np.ndarray) -> np.ndarray:
    z = features(model, x)
    a = (v * z) @ model["policy.0.weight"].T + model["policy.0.bias"]
    away = a - a.mean(axis=1, keepdims=True)
    normal = away / np.sqrt((away**2).mean(axis=1, keepdims=True) + 1e-5)
    pairs = relu(normal * model["policy.1.weight"] + model["policy.1.bias"])
    r = 1 / (1 + np.exp(pairs[:, 5:] - pairs[:, :5]))
    return (r * z) @ model[OWN[0]].T + model[OWN[1]] + ((1 - r) * z) @ model[OUTER[0]].T + model[OUTER[1]]


def mmd(a: np.ndarray, b: np.ndarray) -> Any:
    def kernel(p: np.ndarray, q: np.ndarray) -> Any:
        squares = ((p[:, None] - q) ** 2).sum(axis=2)
        return sum(np.exp(-squares / (2 * width)) for width in (10, 15, 20, 50)).mean()

    return kernel(a, a) + kernel(b, b) - 2 * kernel(a, b)


def local(clients: Clients, received: Model, t: int, k: int, only: tuple[str, ...] = ()) -> Model:
    """A round's steps of client t."""
    v, model = direction(received), received
    names = only or tuple(name for name in model if name not in OUTER)

    def loss(w: Model, x: np.ndarray, y: np.ndarray) -> Any:
        return cross_entropy(logits(w, v, x), y) + PENALTY * mmd(features(w, x), features(received, x))

    for x, y in clients.batches(t, k):
        model = plus(model, by_complex_step(partial(loss, x=x, y=y), model, names), -clients.lr)
    return model


def test_fedcp_agrees_with_numpy() -> None:
    clients = Clients()
    options: dict[str, Any] = {"penalty": PENALTY, "client_optimizer": ClientSGD(lr=clients.lr)}
    model = make_model(FedCP, clients.data, hidden=True, participation=2, **options).double()
    w = start_of(model)
    train(model, clients.data, ROUNDS)
    heads = [part(w, OWN) for _ in SIZES]
    for k in range(ROUNDS):
        cohort = clients.cohort(k)
        found = [local(clients, w | heads[t], t, k) for t in cohort]
        for i, t in enumerate(cohort):
            heads[t] = part(found[i], OWN)
            found[i] |= {name: (found[i][own] + w[name]) / 2 for name, own in zip(OUTER, OWN, strict=True)}
        w = mean(found, (SIZES[t] for t in cohort))
    for t in range(len(SIZES)):
        assert_models_agree(served(model, t), w | heads[t], rtol=0)
        x, own = clients.samples[t][0], w | heads[t]
        z = logits(own, direction(own), x)
        predicted = model.predict(clients.data.federation.block(torch.tensor([t]), "train")).exp().numpy()
        np.testing.assert_allclose(predicted, np.exp(z) / np.exp(z).sum(axis=1, keepdims=True), atol=1e-12)


def test_the_first_step_of_a_round_feels_no_distance() -> None:
    """MMD^2 and its gradient are zero while phi is the received one; after a second step they are not."""
    data = make_data()
    for epochs, equal in ((1, True), (2, False)):
        options: dict[str, Any] = {"client_optimizer": ClientSGD(lr=0.3), "batch_size": 99, "local_epochs": epochs}
        with_it, without = (
            train(make_model(FedCP, data, hidden=True, penalty=p, **options), data, 1) for p in (5.0, 0.0)
        )
        distance = (parameters(with_it.components) - parameters(without.components)).abs().max()
        assert (float(distance) < 1e-14) == equal


def test_a_policy_that_gives_all_to_the_personal_head_is_fedper() -> None:
    """r = 1 and s = 0: h_G adds its bias, which is zero in the first round here."""
    data, options = (
        make_data(),
        {"hidden": True, "client_optimizer": ClientSGD(lr=0.3, momentum=0.9), "local_epochs": 2},
    )
    plain, model = make_model(FedPer, data, **options), make_model(FedCP, data, penalty=0.0, **options)
    network = model.components[0]
    with torch.no_grad():
        network.policy[1].weight.zero_()
        network.policy[1].bias[:5], network.policy[1].bias[5:] = 1e4, 0.0
        plain.components[0].layers[2].bias.zero_()
        for bias in (network.network.layers[2].bias, network.personal.bias):
            bias.zero_()
    model.own = model.per_client({name: model.received(torch.tensor([0]))[name][0] for name in model.private})
    plain.own = plain.per_client({name: plain.received(torch.tensor([0]))[name][0] for name in plain.private})
    train(model, data, 1), train(plain, data, 1)
    for t in range(4):
        own = served(model, t)
        found = unwrapped(part(own, PHI))
        found |= dict(zip(HEAD, (own[name] for name in OWN), strict=True))
        assert_models_agree(found, served(plain, t))


def test_a_client_that_joins_later_trains_its_head_from_the_common_one() -> None:
    data = make_data(sizes=(16,) * 4, unseen_fraction=0.25)
    options: dict[str, Any] = {"client_optimizer": ClientSGD(lr=Clients.lr)}
    model, trainer = make_model(FedCP, data, hidden=True, **options).double(), make_trainer(2)
    trainer.fit(model, data)
    trainer.test(model, data, verbose=False)
    (t,) = data.federation.clients(seen=False).tolist()
    w = start_of(model)
    w |= {own: w[name] for name, own in zip(OUTER, OWN, strict=True)}
    assert_models_agree(served(model, t), local(Clients(data), w, t, 2, only=OWN))


def test_what_is_sent_and_what_is_refused() -> None:
    data = make_data()
    model = train(make_model(FedCP, data, hidden=True), data, 2)
    assert model.statistics.up_bytes == model.statistics.down_bytes == 8 * 2 * 4 * (43 + 2 * 5 * 5 + 6 * 5)
    head = torch.nn.Sequential(torch.nn.Linear(5, 5), torch.nn.Linear(5, 3))
    with pytest.raises(UserError, match=r"^head: expected one linear layer, as needed here, got Sequential"):
        train(FedCP(torch.nn.Sequential(torch.nn.Linear(4, 5), head), 4, head=r"^1\."), data, 1)
    x = np.random.default_rng(0).normal(size=(24, 4))
    numbers = FederatedDataModule.from_arrays(x, x[:, 0], np.arange(24) % 3, task="regression")
    assert parameters(train(FedCP(MLP((4,), 1, [5]), 3), numbers, 2).components).isfinite().all()
