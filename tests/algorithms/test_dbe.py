"""FedDBE: against NumPy, its degenerate cases, what it sends, and clients that join later."""

from typing import Any

import numpy as np
import pytest
import torch

from fedem_lightning import MLP, ClientSGD, FedAvg, FedDBE, FederatedDataModule, Linear, UserError
from helpers.federations import make_data, make_model, make_trainer, parameters, train
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
    served,
    start_of,
    unwrapped,
    wrapped,
)

ROUNDS, PENALTY, RATE = 4, 0.7, 0.6
SHARED = (*PHI, *OUTER)


def logits(model: Model, x: np.ndarray) -> np.ndarray:
    return (features(model, x) + model["shift"]) @ model[SHARED[2]].T + model[SHARED[3]]


def local(clients: Clients, model: Model, zbar: np.ndarray, t: int, k: int, names: tuple[str, ...]) -> Model:
    """A round's steps of client t on the tensors `names`."""
    m = np.zeros(5)
    for x, y in clients.batches(t, k):

        def running(w: Model, x: np.ndarray = x, m: np.ndarray = m) -> np.ndarray:
            return (1 - RATE) * m + RATE * features(w, x).mean(axis=0)

        def loss(w: Model, x: np.ndarray = x, y: np.ndarray = y) -> Any:
            away = ((running(w) - zbar) ** 2).mean()
            return cross_entropy(logits(w, x), y) + PENALTY * away

        new = plus(model, by_complex_step(loss, model, names), -clients.lr)
        m, model = running(model), new
    return model


def test_dbe_agrees_with_numpy() -> None:
    clients = Clients()
    options: dict[str, Any] = {"penalty": PENALTY, "mean_rate": RATE, "client_optimizer": ClientSGD(lr=clients.lr)}
    model = make_model(FedDBE, clients.data, hidden=True, participation=2, **options).double()
    w = start_of(model)
    train(model, clients.data, ROUNDS)
    plain = unwrapped(part(w, SHARED))
    once = [wrapped(clients.descend(plain, t, 0)) for t in range(len(SIZES))]  # every client, without the shift
    means = [features(once[t], clients.samples[t][0]).mean(axis=0) for t in range(len(SIZES))]
    zbar = np.average(means, axis=0, weights=SIZES)
    np.testing.assert_allclose(model.consensus.numpy(), zbar, rtol=1e-12)
    shifts = [np.zeros(5) for _ in SIZES]
    for k in range(ROUNDS):
        cohort = clients.cohort(k)
        found = [local(clients, w | {"shift": shifts[t]}, zbar, t, k, (*SHARED, "shift")) for t in cohort]
        for t, own in zip(cohort, found, strict=True):
            shifts[t] = own["shift"]
        w = w | mean((part(own, SHARED) for own in found), (SIZES[t] for t in cohort))
    for t in range(len(SIZES)):
        assert_models_agree(served(model, t), w | {"shift": shifts[t]}, rtol=0)
    assert max(np.abs(shift).max() for shift in shifts) > 0.01


def test_without_its_penalty_and_with_shifts_that_stay_it_is_fedavg(monkeypatch: pytest.MonkeyPatch) -> None:
    data, options = make_data(), {"hidden": True, "client_optimizer": ClientSGD(lr=0.3, momentum=0.9)}
    fedavg = train(make_model(FedAvg, data, **options), data, 3)
    model = make_model(FedDBE, data, penalty=0.0, **options)
    sgd = model.local.sgd
    monkeypatch.setattr(model.local, "sgd", lambda *a, **given: sgd(*a, **{"only": model.shared, **given}))
    train(model, data, 3)
    torch.testing.assert_close(model.components[0].network.state_dict(), fedavg.components[0].state_dict())


def test_the_shift_is_a_shift_of_the_logits_for_a_linear_head() -> None:
    """A client's gradient of b is W^T (mean of softmax minus one-hot): that of a bias of the logits, through W."""
    clients = Clients()
    sgd = ClientSGD(lr=0.2)
    model = make_model(FedDBE, clients.data, hidden=True, penalty=0.0, batch_size=99, client_optimizer=sgd).double()
    w = start_of(model)
    train(model, clients.data, 1)
    for t in range(len(SIZES)):
        x, y = clients.samples[t]
        z = features(w, x) @ w[SHARED[2]].T + w[SHARED[3]]
        error = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True) - np.eye(3)[y]
        np.testing.assert_allclose(served(model, t)["shift"], -0.2 * error.mean(axis=0) @ w[SHARED[2]], atol=1e-12)


def test_a_client_that_joins_later_trains_its_shift_alone() -> None:
    data = make_data(sizes=(16,) * 4, unseen_fraction=0.25)
    model = make_model(FedDBE, data, hidden=True, penalty=1.0, client_optimizer=ClientSGD(lr=0.3))
    trainer = make_trainer(2)
    trainer.fit(model, data)
    before = parameters(model.components)
    trainer.test(model, data, verbose=False)
    assert torch.equal(parameters(model.components), before)
    (t,) = data.federation.clients(seen=False).tolist()
    own = served(model, t)
    assert_models_agree(part(own, SHARED), part(start_of(model), SHARED))
    assert np.abs(own["shift"]).max() > 0.001


def test_all_clients_send_their_mean_features_once() -> None:
    data = make_data()
    model = train(make_model(FedDBE, data, hidden=True, participation=2), data, 3)
    numbers = 4 * 5 + 5 + 5 * 3 + 3
    assert model.statistics.up_bytes == 8 * (4 * 5 + 3 * 2 * numbers)
    assert model.statistics.down_bytes == 8 * (4 * (numbers + 5) + 3 * 2 * numbers)


def test_what_is_refused_is_one_line() -> None:
    with pytest.raises(UserError, match="no body is left"):
        FedDBE(Linear((4,), 3), 2)
    with pytest.raises(UserError, match=r"^head: expected a linear layer, as needed here, got PReLU"):
        train(FedDBE(torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.PReLU()), 4), make_data(), 1)
    with pytest.raises(UserError, match="penalty"):
        FedDBE(MLP((4,), 3), 2, penalty=-1.0)


def test_real_targets_are_no_obstacle() -> None:
    x = np.random.default_rng(0).normal(size=(24, 4))
    data = FederatedDataModule.from_arrays(x, x[:, 0], np.arange(24) % 3, task="regression")
    model = FedDBE(MLP((4,), 1, [5]), 3, penalty=0.5)
    assert parameters(train(model, data, 2).components).isfinite().all()
