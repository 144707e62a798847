"""FedAMP and HeurFedAMP: against NumPy, where they are Local or FedAvg, unseen clients, and what is refused."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from fedem_lightning import MLP, ClientSGD, FedAMP, FedAvg, Local, UserError
from helpers.federations import make_data, make_model, make_trainer, models_of, train
from helpers.perceptron import SIZES, Clients, Model, assert_models_agree, mean, served, start_of

ROUNDS = 4


def flat(model: Model) -> np.ndarray:
    return np.concatenate([v.ravel() for v in model.values()])


def by_distance(models: list[Model], i: int, alpha: float, sigma: float) -> np.ndarray:
    """xi_i of FedAMP, [T]."""
    w = [flat(model) for model in models]
    xi = np.array([alpha / sigma * np.exp(-((w[i] - own) ** 2).sum() / sigma) for own in w])
    xi[i] = 0
    xi[i] = 1 - xi.sum()
    return xi


def by_cosine(models: list[Model], i: int, own: float, sigma: float) -> np.ndarray:
    """xi_i of HeurFedAMP, [T]."""
    w = [flat(model) / np.linalg.norm(flat(model)) for model in models]
    e = np.array([np.exp(sigma * float(w[i] @ other)) * (j != i) for j, other in enumerate(w)])
    xi = (1 - own) * e / e.sum()
    xi[i] = own
    return xi


def pulled(u: Model, penalty: float, w: Model) -> Model:
    return {name: penalty * (w[name] - u[name]) for name in w}


@pytest.mark.parametrize("engine", ["loop", "vmap"])
@pytest.mark.parametrize("start", ["own", "cloud"])
@pytest.mark.parametrize("weights", ["distance", "cosine"])
def test_fedamp_agrees_with_numpy(weights: str, start: str, engine: str) -> None:
    clients, sigma, penalty = Clients(), 2.0, 0.6
    special: dict[str, Any] = {"alpha": 0.6} if weights == "distance" else {"self_weight": 0.4}
    rule = partial(by_distance, alpha=0.6) if weights == "distance" else partial(by_cosine, own=0.4)
    sgd = ClientSGD(lr=clients.lr)
    options: dict[str, Any] = {"sigma": sigma, "penalty": penalty, "weights": weights, "start": start, **special}
    options |= {"participation": clients.participation, "client_optimizer": sgd, "local_epochs": 2, "engine": engine}
    model = make_model(FedAMP, clients.data, hidden=True, **options).double()
    models, uneven = [start_of(model) for _ in SIZES], 0.0
    train(model, clients.data, ROUNDS)
    for k in range(ROUNDS):
        received = list(models)
        for t in clients.cohort(k):
            xi = rule(received, t, sigma=sigma)
            others = np.delete(xi, t)
            uneven = max(uneven, float(others.max() - others.min()))
            u = mean(received, xi)
            first = received[t] if start == "own" else u
            models[t] = clients.descend(first, t, k, epochs=2, pull=partial(pulled, u, penalty))
    assert uneven > 1e-3  # else the test would see nothing of the weights
    for t, expected in enumerate(models):
        assert_models_agree(served(model, t), expected)


def test_without_penalty_from_its_own_model_it_is_local() -> None:
    clients = Clients()
    options: dict[str, Any] = {"participation": 2, "client_optimizer": ClientSGD(lr=0.2)}
    found, alone = (
        train(make_model(kind, clients.data, hidden=True, **given, **options), clients.data, 4)
        for kind, given in ((FedAMP, {"penalty": 0.0}), (Local, {}))
    )
    torch.testing.assert_close(models_of(found), models_of(alone), rtol=1e-12, atol=1e-12)


def test_with_even_weights_from_the_cloud_it_is_fedavg_of_equal_clients() -> None:
    """The mean of all models is that of FedAvg, which begins the next round."""
    data = make_data(sizes=(16,) * 4, fractions=(1.0, 0.0, 0.0))
    options: dict[str, Any] = {"client_optimizer": ClientSGD(lr=0.2)}
    fedavg = train(make_model(FedAvg, data, **options), data, 4)
    for weights, sigma in (("cosine", 1e-12), ("distance", 1e12)):
        given: dict[str, Any] = {"penalty": 0.0, "start": "cloud", "weights": weights, "sigma": sigma}
        found = train(make_model(FedAMP, data, **given, **options), data, 4)
        torch.testing.assert_close(models_of(found).mean(dim=0), models_of(fedavg)[0], rtol=1e-9, atol=1e-10)


def test_an_unseen_client_takes_a_round_from_the_mean() -> None:
    clients = Clients()
    data = make_data(sizes=(20,) * 4, unseen_fraction=0.25, fractions=(1.0, 0.0, 0.0))
    clients.data = data
    (new,) = data.federation.clients(seen=False).tolist()
    model = make_model(FedAMP, data, hidden=True, penalty=0.6, client_optimizer=ClientSGD(lr=0.2)).double()
    train(model, data, 3)
    known = [served(model, t) for t in range(4) if t != new]
    for _ in range(2):  # a second call starts anew
        model.personalize_clients(data.federation, torch.tensor([new]))
    block = data.federation.block(torch.tensor([new]), "train")
    clients.samples = {new: (block.x(torch.float64).numpy(), block.y().numpy())}  # type: ignore[assignment]
    u = mean(known, [1.0] * 3)
    assert_models_agree(served(model, new), clients.descend(u, new, 3, pull=partial(pulled, u, 0.6)))


def test_one_client_has_its_own_model_alone() -> None:
    data = make_data(sizes=(20,))
    for weights in ("distance", "cosine"):
        model = make_model(FedAMP, data, weights=weights).double()
        xi = model.attention(torch.tensor([0]), torch.tensor([0]))
        assert xi.tolist() == [[1.0]]


def test_every_client_receives_a_model_of_its_own() -> None:
    data = make_data(sizes=(9,) * 5)
    model = train(make_model(FedAMP, data, participation=3), data, 2)
    assert model.statistics.up_bytes == model.statistics.down_bytes == 2 * 3 * 15 * 8


def test_weights_that_may_be_negative_are_refused() -> None:
    data = make_data()
    make = partial(FedAMP, MLP((4,), 3, [5]), 4, sigma=2.0)
    with pytest.raises(UserError, match=r"algorithm\.alpha: FedAMP needs at most 0\.666667, sigma / 3, .* got 0\.7"):
        train(make(alpha=0.7), data, 1)
    train(make(alpha=0.66), data, 1)
    make_trainer(1).fit(make(alpha=9.0, weights="cosine"), data)
