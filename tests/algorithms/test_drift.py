"""Methods against the drift of local training: each against its equations in NumPy, and where it is another method."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hydra.utils import instantiate

from fedem_lightning import (
    MOON,
    ClientAdam,
    ClientSGD,
    FedAvg,
    FedDyn,
    FederatedAlgorithm,
    FedNova,
    Linear,
    Local,
    UserError,
)
from helpers import by_hand
from helpers.by_hand import ALL_TRAIN
from helpers.commands import composed
from helpers.federations import make_data, make_model, make_trainer, models_of, parameters, train
from helpers.perceptron import (
    BODY,
    SIZES,
    Clients,
    Model,
    assert_models_agree,
    gradient,
    hidden,
    mean,
    plus,
    served,
    start_of,
)

ROUNDS = 4


def users(model: Model) -> Model:
    """The tensors by the names that they have in the user's network."""
    return {name.removeprefix("network."): value for name, value in model.items()}


def trained(
    kind: type[FederatedAlgorithm], clients: Clients, rounds: int = ROUNDS, **options: Any
) -> tuple[Any, Model]:
    """The method after some rounds, and where it started."""
    given = {"participation": clients.participation, "client_optimizer": ClientSGD(lr=clients.lr), **options}
    model = make_model(kind, clients.data, hidden=True, **given).double()
    start = users(start_of(model))
    return train(model, clients.data, rounds), start


def sizes(cohort: list[int]) -> list[float]:
    return [SIZES[t] for t in cohort]


# --- MOON -------------------------------------------------------------------------------------------------------------


def directions(model: Model, x: np.ndarray) -> np.ndarray:
    """z / |z| of each sample; 0 where z is 0."""
    z = hidden(model, x)
    return np.array([row / np.linalg.norm(row) if row.any() else row for row in z])


def contrast_gradient(model: Model, x: np.ndarray, v: np.ndarray, mu: float) -> Model:
    """Of mu times the mean of log(1 + exp <z / |z|, v>), by the chain rule."""
    z, unit = hidden(model, x), directions(model, x)
    inner = (unit * v).sum(axis=1, keepdims=True)
    length = np.maximum(np.linalg.norm(z, axis=1, keepdims=True), 1e-300)
    back = mu / len(x) / (1 + np.exp(-inner)) * (v - inner * unit) / length * (z > 0)
    return dict(zip(BODY, (back.T @ x, back.sum(axis=0)), strict=True))


@pytest.mark.parametrize("engine", ["loop", "vmap"])
def test_moon_agrees_with_numpy(engine: str) -> None:
    clients, mu, tau = Clients(), 1.7, 0.5
    model, w = trained(MOON, clients, mu=mu, temperature=tau, local_epochs=2, engine=engine)
    last: dict[int, Model] = {}
    largest = 0.0
    for k in range(ROUNDS):
        cohort, ends = clients.cohort(k), []
        for t in cohort:
            theta, before = w, last.get(t, w)
            for x, y in clients.batches(t, k, 2):
                v = (directions(before, x) - directions(w, x)) / tau
                contrast = contrast_gradient(theta, x, v, mu)
                largest = max(largest, float(np.abs(contrast[BODY[0]]).max()))
                theta = plus(theta, plus(gradient(theta, x, y), contrast), -clients.lr)
            last[t] = theta
            ends.append(theta)
        w = mean(ends, sizes(cohort))
    assert largest > 1e-3  # else the test would see nothing
    assert_models_agree(users(start_of(model)), w)
    for t, theta in last.items():
        found = {name: rows[0].numpy() for name, rows in model.previous[torch.tensor(t)].items()}
        assert_models_agree(users(found), theta)


def test_the_gradient_of_the_contrast_is_that_of_the_papers_formula() -> None:
    clients = Clients()
    x, y = clients.samples[1]
    torch.manual_seed(1)
    nets = [users(start_of(make_model(MOON, clients.data, hidden=True).double())) for _ in range(1)]
    rng = np.random.default_rng(0)
    w, before, theta = ({n: v + rng.normal(size=v.shape) for n, v in nets[0].items()} for _ in range(3))
    tau = 0.5

    def l_of(model: Model) -> float:
        unit = directions(model, x)
        near, far = (np.exp((unit * directions(other, x)).sum(axis=1) / tau) for other in (w, before))
        return float(-np.log(near / (near + far)).mean())

    v = (directions(before, x) - directions(w, x)) / tau
    found, name = contrast_gradient(theta, x, v, 1.0), BODY[0]
    for place in np.ndindex(theta[name].shape):
        step = np.zeros_like(theta[name])
        step[place] = 1e-6
        slope = (l_of(plus(theta, {name: step})) - l_of(plus(theta, {name: step}, -1.0))) / 2e-6
        assert found[name][place] == pytest.approx(slope, abs=1e-8)
    assert len(y)


def test_moon_without_its_term_and_in_first_rounds_is_fedavg() -> None:
    clients = Clients()
    fedavg, _ = trained(FedAvg, clients)
    without, _ = trained(MOON, clients, mu=0.0)
    assert_models_agree(users(start_of(without)), start_of(fedavg))
    fedavg, _ = trained(FedAvg, clients, rounds=1, local_epochs=3, participation=1.0)
    first, _ = trained(MOON, clients, rounds=1, local_epochs=3, participation=1.0, mu=5.0)
    assert_models_agree(users(start_of(first)), start_of(fedavg))


def test_features_that_are_zero_add_no_gradient() -> None:
    clients = Clients()
    model = make_model(MOON, clients.data, hidden=True, client_optimizer=ClientSGD(lr=0.2), mu=5.0)
    with torch.no_grad():
        for name, p in model.components[0].named_parameters():
            p.fill_(-10.0 if name.endswith("0.bias") else 0.0)  # no unit is on
    train(model, clients.data, 3)
    assert parameters(model).isfinite().all()
    served = model.components[0].state_dict()
    assert served["network.layers.0.weight"].abs().max() == 0


def test_unseen_clients_of_moon_have_w() -> None:
    data = make_data(sizes=(20,) * 4, unseen_fraction=0.25)
    model, trainer = make_model(MOON, data, hidden=True), make_trainer(2)
    trainer.fit(model, data)
    before = models_of(model)
    trainer.test(model, data, verbose=False)
    assert torch.equal(models_of(model), before)
    assert torch.equal(before[0], before[data.federation.clients(seen=False)[0]])


def test_moon_needs_a_body() -> None:
    with pytest.raises(UserError, match="no body is left"):
        MOON(Linear((4,), 3), 2)


# --- FedDyn -----------------------------------------------------------------------------------------------------------


def zeros(model: Model) -> Model:
    return {name: np.zeros_like(v) for name, v in model.items()}


def dynamic(alpha: float, g: Model, w: Model, theta: Model) -> Model:
    """The gradient of -<g, theta> + (alpha / 2) |theta - w|^2."""
    return {name: -g[name] + alpha * (theta[name] - w[name]) for name in theta}


@pytest.mark.parametrize("engine", ["loop", "vmap"])
def test_feddyn_agrees_with_numpy(engine: str) -> None:
    clients, alpha, n = Clients(), 0.3, len(SIZES)
    model, w = trained(FedDyn, clients, alpha=alpha, local_epochs=2, engine=engine)
    g, h = [zeros(w) for _ in SIZES], zeros(w)
    for k in range(ROUNDS):
        cohort, ends = clients.cohort(k), []
        for t in cohort:
            theta = clients.descend(w, t, k, epochs=2, pull=partial(dynamic, alpha, g[t], w))
            g[t] = plus(g[t], plus(theta, w, -1.0), -alpha)
            ends.append(theta)
        for theta in ends:
            h = plus(h, plus(theta, w, -1.0), -alpha / n)
        w = plus(mean(ends, [1.0] * len(ends)), h, -1 / alpha)
    assert_models_agree(start_of(model), w)
    np.testing.assert_allclose(model.mean_gradient.numpy(), np.concatenate([v.ravel() for v in h.values()]), atol=1e-12)
    for t in range(n):
        assert_models_agree({m: rows[0].numpy() for m, rows in model.gradients[torch.tensor(t)].items()}, g[t])
    assert_models_agree(h, mean(g, [1.0] * n))  # the invariant


@pytest.mark.parametrize("alpha", [1e-6, 0.3, 2.0])
@pytest.mark.parametrize("participation", [2, 4])
def test_the_first_round_of_feddyn_is_that_of_fedprox_with_a_larger_server_step(
    alpha: float, participation: int
) -> None:
    """With all clients and alpha -> 0 it is FedAvg with the server's rate 2, if sizes are equal."""
    clients = Clients()
    found, w = trained(FedDyn, clients, rounds=1, alpha=alpha, participation=participation)
    everybody = clients.cohort(0) if participation == 2 else range(len(SIZES))
    ends = [clients.descend(w, t, 0, pull=partial(dynamic, alpha, zeros(w), w)) for t in everybody]
    moved = plus(mean(ends, [1.0] * participation), w, -1.0)
    expected = plus(w, moved, 1 + participation / len(SIZES))
    for name, value in start_of(found).items():
        np.testing.assert_allclose(value, expected[name], rtol=0, atol=1e-12)


def test_feddyn_reaches_the_minimum_of_the_plain_mean() -> None:
    """With minima found exactly and client sampling; there g_t is each client's own gradient, and their mean is 0."""
    data = make_data(sizes=(9, 30, 14, 20), fractions=ALL_TRAIN)
    sgd = ClientSGD(lr=0.8, weight_decay=0.1)  # strongly convex
    options: dict[str, Any] = {"client_optimizer": sgd, "batch_size": 100, "local_steps": 25}
    model = train(make_model(FedDyn, data, alpha=0.5, participation=2, **options), data, 30)
    theta = by_hand.vector(model.components[0])
    grads = [by_hand.gradient(theta, *by_hand.samples(data, t)) + 0.1 * theta for t in range(4)]
    assert min(np.linalg.norm(one) for one in grads) > 0.05
    np.testing.assert_allclose(np.mean(grads, axis=0), 0.0, atol=1e-3)
    for t, own in enumerate(grads):
        kept = model.gradients[torch.tensor(t)].values()
        np.testing.assert_allclose(np.concatenate([row.numpy().ravel() for row in kept]), own, atol=1e-3)


# --- FedNova ----------------------------------------------------------------------------------------------------------


def norm_of(tau: int, rho: float, step: float) -> float:
    """a_t of the docstring; `step` is eta mu."""
    if rho:
        return (tau - rho * (1 - rho**tau) / (1 - rho)) / (1 - rho)
    return (1 - (1 - step) ** tau) / step if step else float(tau)


@pytest.mark.parametrize("engine", ["loop", "vmap"])
@pytest.mark.parametrize("effective", ["steps", "weights"])
@pytest.mark.parametrize(("rho", "mu"), [(0.0, 0.0), (0.8, 0.0), (0.0, 0.7)])
def test_fednova_agrees_with_numpy(rho: float, mu: float, effective: str, engine: str) -> None:
    clients = Clients()
    sgd = ClientSGD(lr=clients.lr, momentum=rho)
    options: dict[str, Any] = {"client_optimizer": sgd, "local_epochs": 2, "engine": engine}
    model, w = trained(FedNova, clients, mu=mu, effective=effective, **options)
    taus = set()
    for k in range(ROUNDS):
        cohort, ways, lengths = clients.cohort(k), [], []
        p = np.array(sizes(cohort)) / sum(sizes(cohort))
        for t in cohort:
            theta, b, batches = w, zeros(w), clients.batches(t, k, 2)
            for x, y in batches:
                g = plus(gradient(theta, x, y), plus(theta, w, -1.0), mu)
                b = {name: rho * v + g[name] for name, v in b.items()}
                theta = plus(theta, b, -clients.lr)
            a = norm_of(len(batches), rho, clients.lr * mu)
            ways.append({name: v / a for name, v in plus(w, theta, -1.0).items()})
            lengths.append(len(batches) if effective == "steps" else a)
            taus.add(len(batches))
        w = plus(w, mean(ways, p), -float(p @ lengths))
    assert len(taus) > 1
    assert_models_agree(start_of(model), w)


def test_fednova_with_equal_steps_is_fedavg() -> None:
    clients = Clients()
    for rho, effective in ((0.0, "steps"), (0.9, "weights")):
        options: dict[str, Any] = {"client_optimizer": ClientSGD(lr=0.2, momentum=rho), "local_steps": 5}
        nova, _ = trained(FedNova, clients, effective=effective, **options)
        fedavg, _ = trained(FedAvg, clients, **options)
        assert_models_agree(start_of(nova), start_of(fedavg))


def test_fednova_with_one_sample_a_step_weighs_clients_alike() -> None:
    """tau_t = n_t: w moves by (sum n^2 / n^2) times the sum of theta_t - w, a review of the paper."""
    clients = Clients()
    options: dict[str, Any] = {"batch_size": 1, "participation": 1.0, "client_optimizer": ClientSGD(lr=0.05)}
    nova, w = trained(FedNova, clients, rounds=1, **options)
    alone, _ = trained(Local, clients, rounds=1, **options)
    n = np.array(SIZES, dtype=float)
    ways = [plus(served(alone, t), w, -1.0) for t in range(len(n))]
    expected = plus(w, mean(ways, [1.0] * len(n)), len(n) * float((n**2).sum() / n.sum() ** 2))
    assert_models_agree(start_of(nova), expected)


def test_fednova_refuses_solvers_whose_weights_it_does_not_know() -> None:
    make, data = partial(FedNova, Linear((4,), 3), 4), make_data()
    cases: list[tuple[dict[str, Any], str]] = [
        ({"client_optimizer": ClientSGD(momentum=0.9), "mu": 0.1}, r"client_optimizer\.momentum: .* got 0\.9"),
        ({"client_optimizer": ClientSGD(lr=0.5), "mu": 2.0}, r"algorithm\.mu: expected less than 1 / lr, 2, got 2"),
    ]
    for options, line in cases:
        with pytest.raises(UserError, match=line):
            make(**options)
    with pytest.raises(UserError, match="FedNova needs plain gradient steps"):
        train(make(client_optimizer=ClientAdam()), data, 1)


# --- FedAvgM ----------------------------------------------------------------------------------------------------------


def test_fedavgm_agrees_with_numpy() -> None:
    clients, config = Clients(), composed("algorithm=fedavgm").algorithm
    model, w = trained(FedAvg, clients, server_optimizer=instantiate(config.server_optimizer))
    v = zeros(w)
    for k in range(ROUNDS):
        cohort = clients.cohort(k)
        moved = plus(w, mean((clients.descend(w, t, k) for t in cohort), sizes(cohort)), -1.0)
        v = {name: 0.9 * v[name] + moved[name] for name in v}
        w = plus(w, v, -1.0)
    assert_models_agree(start_of(model), w)
    assert config._target_ == "fedem_lightning.FedAvg"
