"""FedPAC: against NumPy, its combinations of heads, its degenerate cases, and what it refuses."""

import itertools
from typing import Any

import numpy as np
import pytest

from fedem_lightning import MLP, ClientSGD, FederatedDataModule, FedPAC, FedRep, UserError
from fedem_lightning.methods.fedpac import combination
from helpers.federations import make_data, make_model, make_trainer, train
from helpers.perceptron import (
    BODY,
    HEAD,
    SIZES,
    Clients,
    Model,
    assert_models_agree,
    gradient,
    hidden,
    mean,
    part,
    plus,
    served,
    start_of,
    unwrapped,
)

ROUNDS, PENALTY = 4, 0.8


def best(mu: np.ndarray, of_all: np.ndarray, variance: np.ndarray) -> np.ndarray:
    """The smallest of the minima on all faces of the simplex, each by its linear equations."""
    away = mu - of_all
    p, found = np.diag(variance) + away @ away.T, []
    for n in range(1, len(p) + 1):
        for face in map(list, itertools.combinations(range(len(p)), n)):
            a, x = np.zeros(len(p)), np.linalg.solve(p[np.ix_(face, face)], np.ones(n))
            a[face] = x / x.sum()
            if (a >= 0).all():
                found.append(a)
    return min(found, key=lambda a: a @ p @ a)


def statistics(model: Model, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, float, dict[int, np.ndarray]]:
    """mu [Y d], V and the class means."""
    z = hidden(model, x)
    means = {label: z[y == label].mean(axis=0) for label in np.unique(y)}
    mu = np.stack([(y == label).mean() * means.get(label, np.zeros(5)) for label in range(3)])
    return mu.ravel(), ((z**2).sum(axis=1).mean() - (mu**2).sum()) / len(y), means


def pulled(model: Model, x: np.ndarray, y: np.ndarray, centres: np.ndarray) -> Model:
    """The gradient of lambda |z - c_y|^2 / d."""
    z = hidden(model, x)
    back = 2 * PENALTY / 5 * (z - centres[y]) * (z > 0) / len(y)
    return {BODY[0]: back.T @ x, BODY[1]: back.sum(axis=0)}


def local(clients: Clients, model: Model, centres: dict[int, np.ndarray], t: int, k: int) -> Model:
    """An epoch of the head, then two of the body; `centres` are the c_y that are known."""
    x, y = clients.samples[t]
    means = statistics(model, x, y)[2]
    towards = np.stack([centres.get(label, means.get(label, np.zeros(5))) for label in range(3)])
    model = clients.descend(model, t, k, only=HEAD)
    for xb, yb in clients.batches(t, k, 2):
        more = pulled(model, xb, yb, towards) if centres else {}
        g = part(gradient(model, xb, yb), BODY)
        model = plus(model, plus(g, more), -clients.lr)
    return model


def test_fedpac_agrees_with_numpy() -> None:
    clients = Clients()
    clients.participation = 3
    options: dict[str, Any] = {"penalty": PENALTY, "local_epochs": 2, "participation": 3}
    model = make_model(FedPAC, clients.data, hidden=True, client_optimizer=ClientSGD(lr=clients.lr), **options).double()
    w = unwrapped(start_of(model))
    train(model, clients.data, ROUNDS)
    heads, centres = [part(w, HEAD) for _ in SIZES], dict[int, np.ndarray]()
    for k in range(ROUNDS):
        cohort = clients.cohort(k)
        known = [statistics(w | heads[t], *clients.samples[t]) for t in cohort]
        found = [local(clients, w | heads[t], centres, t, k) for t in cohort]
        mu, variance = np.stack([row[0] for row in known]), np.array([row[1] for row in known])
        for i, t in enumerate(cohort):
            heads[t] = mean((part(own, HEAD) for own in found), best(mu[i], mu, variance))
        z = np.concatenate([hidden(own, clients.samples[t][0]) for own, t in zip(found, cohort, strict=True)])
        y = np.concatenate([clients.samples[t][1] for t in cohort])
        centres |= {label: z[y == label].mean(axis=0) for label in np.unique(y)}
        w = w | mean((part(own, BODY) for own in found), (SIZES[t] for t in cohort))
    for label, centre in centres.items():
        np.testing.assert_allclose(model.prototypes[label].numpy(), centre, rtol=0, atol=1e-12)
    for t in range(len(SIZES)):
        assert_models_agree(unwrapped(served(model, t)), w | heads[t], rtol=0)


def test_combinations_of_heads() -> None:
    rng = np.random.default_rng(0)
    mu, variance = rng.normal(size=(2, 6)), np.array([0.3, 0.7])
    distance = ((mu[0] - mu[1]) ** 2).sum()
    first = (variance[1] + distance) / (variance.sum() + distance)
    np.testing.assert_allclose(combination(mu[0], mu, variance), [first, 1 - first], atol=1e-12)
    np.testing.assert_allclose(combination(mu[0], mu[[0, 0, 0]], np.ones(3)), np.ones(3) / 3, atol=1e-12)
    np.testing.assert_allclose(combination(np.zeros(6), np.zeros((4, 6)), np.zeros(4)), np.ones(4) / 4, atol=1e-12)
    for scale in (1e-3, 0.3, 1.0, 100.0):
        mu, variance = scale * rng.normal(size=(6, 9)), rng.uniform(0.01, 1, 6)
        for row in mu:
            np.testing.assert_allclose(combination(row, mu, variance), best(row, mu, variance), atol=1e-12)


def test_without_alignment_and_alone_it_is_fedrep() -> None:
    """One client combines its own head alone: alpha = 1."""
    data, options = make_data(sizes=(23,)), {"hidden": True, "client_optimizer": ClientSGD(lr=0.3), "local_epochs": 2}
    found, plain = (
        train(make_model(kind, data, **options, **own), data, 3)
        for kind, own in ((FedPAC, {"penalty": 0.0}), (FedRep, {}))
    )
    assert_models_agree(unwrapped(served(found, 0)), served(plain, 0))


def test_a_client_that_joins_later_combines_the_last_cohorts_heads_and_trains_that() -> None:
    data = make_data(sizes=(16,) * 5, unseen_fraction=0.2)
    options: dict[str, Any] = {"client_optimizer": ClientSGD(lr=Clients.lr), "participation": 2}
    model, trainer = make_model(FedPAC, data, hidden=True, **options).double(), make_trainer(3)
    trainer.fit(model, data)
    trainer.test(model, data, verbose=False)
    (t,), others = data.federation.clients(seen=False).tolist(), model.last.nonzero().squeeze(1)
    assert len(others) == 2
    clients, w = Clients(data), unwrapped(start_of(model))
    mu = statistics(w, *clients.samples[t])[0]
    alpha = best(mu, model.mu[others].flatten(1).numpy(), model.variance[others].numpy())
    heads = [unwrapped({n: v[0].numpy() for n, v in model.sent[other].items()}) for other in others]
    expected = clients.descend(w | mean(heads, alpha), t, 3, only=HEAD)
    assert_models_agree(unwrapped(served(model, t)), expected)


def test_what_is_sent_and_what_is_refused() -> None:
    data = make_data()
    model = train(make_model(FedPAC, data, hidden=True), data, 2)
    assert model.statistics.up_bytes == 8 * 2 * 4 * (43 + 2 * 15 + 3 + 1)
    assert model.statistics.down_bytes == 8 * 4 * (43 + 43 + 15)
    numbers = FederatedDataModule.from_arrays(
        np.zeros((8, 4)), np.linspace(0, 1, 8), np.arange(8) % 2, task="regression"
    )
    with pytest.raises(UserError, match=r"dataset.task: FedPAC needs classes as labels, .* got Regression"):
        train(FedPAC(MLP((4,), 1), 2), numbers, 1)
