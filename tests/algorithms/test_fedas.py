"""FedAS: against NumPy, its degenerate cases, and what it refuses."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from fedem_lightning import MLP, ClientSGD, FedAS, FederatedDataModule, FedPer, UserError
from helpers.federations import make_data, make_model, make_trainer, parameters, train
from helpers.perceptron import (
    BODY,
    HEAD,
    SIZES,
    Clients,
    Model,
    assert_models_agree,
    by_complex_step,
    gradient,
    hidden,
    mean,
    part,
    plus,
    relu,
    served,
    start_of,
    unwrapped,
)

ROUNDS, ALIGN = 5, 0.4


def aligned(clients: Clients, phi: Model, previous: Model, t: int, k: int) -> Model:
    """One epoch towards the class means by the previous body."""
    x, y = clients.samples[t]
    means = {label: hidden(previous, x[y == label]).mean(axis=0) for label in np.unique(y)}

    def loss(w: Model, x: np.ndarray, y: np.ndarray) -> Any:
        z = relu(x @ w[BODY[0]].T + w[BODY[1]])
        return sum(((z[y == label] - means[label]) ** 2).mean() for label in np.unique(y))

    for x, y in clients.batches(t, k):
        phi = plus(phi, by_complex_step(partial(loss, x=x, y=y), phi, BODY), -ALIGN)
    return phi


def fisher(clients: Clients, model: Model, t: int, k: int) -> float:
    """The sum over batches of the squared norm of the gradient."""
    return sum(float((g**2).sum()) for x, y in clients.batches(t, k) for g in gradient(model, x, y).values())


def test_fedas_agrees_with_numpy() -> None:
    clients = Clients()
    sgd = ClientSGD(lr=clients.lr)
    options: dict[str, Any] = {"participation": 2, "client_optimizer": sgd, "align_lr": ALIGN, "local_epochs": 2}
    model = make_model(FedAS, clients.data, hidden=True, **options).double()
    w = unwrapped(start_of(model))
    first = part(w, HEAD)
    train(model, clients.data, ROUNDS)
    own: dict[int, Model] = {}
    for k in range(ROUNDS):
        cohort, weights = clients.cohort(k), []
        for t in cohort:
            phi = aligned(clients, part(w, BODY), own[t], t, k) if t in own else part(w, BODY)
            own[t] = clients.descend(phi | part(own.get(t, first), HEAD), t, k, epochs=2)
            weights.append(fisher(clients, own[t], t, k))
        w = w | mean((part(own[t], BODY) for t in cohort), weights)
    assert_models_agree(unwrapped(start_of(model)), w, rtol=0)
    for t in range(len(SIZES)):
        assert_models_agree(unwrapped(served(model, t)), own.get(t, w), rtol=0)


def same_clients() -> FederatedDataModule:
    """Four clients with the same samples."""
    one = make_data(sizes=(12,), fractions=(1.0, 0.0, 0.0))
    block = one.federation.block(torch.tensor([0]), "train")
    x, y = (np.concatenate([part.numpy()] * 4) for part in (block.x(torch.float64), block.y()))
    return FederatedDataModule.from_arrays(x, y, np.repeat(np.arange(4), 12), fractions=(1.0, 0.0, 0.0), n_classes=3)


def test_without_alignment_and_with_equal_weights_it_is_fedper() -> None:
    """Equal clients have equal traces; whole batches, as the order of samples depends on the client."""
    data = same_clients()
    options: dict[str, Any] = {"client_optimizer": ClientSGD(lr=0.3, momentum=0.9), "batch_size": 99, "local_epochs": 2}
    model = train(make_model(FedAS, data, hidden=True, align_lr=0.0, **options), data, 3)
    plain = train(make_model(FedPer, data, hidden=True, **options), data, 3)
    for t in range(4):
        assert_models_agree(unwrapped(served(model, t)), served(plain, t))


def test_a_body_that_gives_the_class_means_does_not_move() -> None:
    """Each class has one sample many times, so its mean is its feature: the client's own last body is aligned."""
    x, y = np.repeat([[0.5, -1.0, 2.0], [1.0, 1.0, 0.0]], 6, axis=0), np.repeat([0, 1], 6)
    data = FederatedDataModule.from_arrays(x, y, np.zeros(12, int), fractions=(1.0, 0.0, 0.0))
    found = []
    for align_lr in (0.0, 5.0):
        torch.manual_seed(0)
        model = FedAS(MLP((3,), 2, [5]), 1, align_lr=align_lr, batch_size=4, client_optimizer=ClientSGD(lr=0.1))
        found.append(parameters(train(model, data, 3).components))
    torch.testing.assert_close(*found, rtol=0, atol=1e-12)


def test_a_client_that_joins_later_trains_the_newest_body_and_the_first_head() -> None:
    data = make_data(sizes=(16,) * 4, unseen_fraction=0.25, fractions=(1.0, 0.0, 0.0))
    model = make_model(FedAS, data, hidden=True, client_optimizer=ClientSGD(lr=Clients.lr))
    trainer = make_trainer(2)
    trainer.fit(model, data)
    trainer.test(model, data, verbose=False)
    (t,) = data.federation.clients(seen=False).tolist()
    expected = Clients(data).descend(unwrapped(start_of(model)), t, 2)
    assert_models_agree(unwrapped(served(model, t)), expected)


def test_what_is_refused_is_one_line() -> None:
    numbers = FederatedDataModule.from_arrays(
        np.zeros((8, 4)), np.linspace(0, 1, 8), np.arange(8) % 2, task="regression"
    )
    with pytest.raises(UserError, match=r"dataset.task: FedAS needs classes as labels, .* got Regression"):
        train(FedAS(MLP((4,), 1), 2), numbers, 1)
    with pytest.raises(UserError, match="align_lr"):
        FedAS(MLP((4,), 3), 2, align_lr=-0.1)
