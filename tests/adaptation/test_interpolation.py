"""Dapper, Mapper and the separate interpolation: equations, degenerate cases, and Example E.1 of their paper."""

from typing import Any

import numpy as np
import pytest
import torch

from fedem_lightning import (
    AFL,
    KNN,
    Categorical,
    ClientSGD,
    Dapper,
    FedAvg,
    FedEM,
    FederatedDataModule,
    Finetune,
    HypCluster,
    Interpolate,
    LoopEngine,
    Mapper,
    UserError,
    VmapEngine,
)
from fedem_lightning.data.federation import Block
from fedem_lightning.evaluate.adapt.interpolate import MixtureStep, log_odds
from fedem_lightning.models.personal_models import OwnModels
from helpers.federations import block_of, make_data, make_model, parameters, table_of, train

SGD = ClientSGD(lr=0.5, momentum=0.9)


# --- Mapper -----------------------------------------------------------------------------------------------------------


def test_the_mixture_step_has_the_gradient_of_the_mixture() -> None:
    """-log(a p + b p') and its derivative by the loss l = -log p, against finite differences in NumPy."""
    a, fixed, own = np.array([0.0, 0.3, 0.7, 1.0]), np.array([0.2, 3.0, 100.0, 1.0]), np.array([1.5, 0.1, 2.0, 0.4])
    losses = torch.tensor(own, requires_grad=True)
    weight = log_odds(torch.tensor(a), torch.tensor(fixed))
    step = MixtureStep(torch.nn.Linear(1, 1), make_data().federation.task, ClientSGD(), 0.1)
    size = torch.tensor(4.0)
    (found,) = torch.autograd.grad(step.mean_loss(losses, weight, size), losses)
    expected = a * np.exp(-own) / (a * np.exp(-own) + (1 - a) * np.exp(-fixed)) / 4
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-12)
    padded = step.mean_loss(torch.cat([losses, losses[:1]]), torch.cat([weight, torch.zeros(1)]), size)
    (again,) = torch.autograd.grad(padded, losses)
    np.testing.assert_allclose(again.numpy(), expected, rtol=1e-12)


def test_one_round_of_mapper_in_numpy() -> None:
    """(10), (11) and (12) written out for a grid of two: one full-batch step each, for categorical distributions."""
    y = np.array([0, 0, 1, 2, 2, 2, 1, 0, 3, 3])
    client, split = np.array([0] * 6 + [1] * 4), np.zeros(10, dtype=int)
    data = FederatedDataModule.from_arrays(np.ones((10, 1)), y, client, split=split, n_classes=4)
    grid, lr = (0.4, 0.8), 0.7
    torch.manual_seed(0)
    model = Mapper(
        Categorical(n_outputs=4),
        n_clients=2,
        batch_size=10,
        client_optimizer=ClientSGD(lr=lr),
        adaptation=Interpolate(lambdas=grid, client_optimizer=ClientSGD(lr=lr)),
    )
    h_c = next(model.parameters()).detach().double().flatten().numpy().copy()
    start = {"logits.weight": torch.from_numpy(h_c.reshape(1, 1, 4, 1)).expand(2, 1, 4, 1).clone()}
    train(model, data, 1)

    def p(logits: np.ndarray) -> np.ndarray:
        return np.exp(logits) / np.exp(logits).sum()

    def step(moving: np.ndarray, fixed: np.ndarray, share: float, yt: np.ndarray) -> np.ndarray:
        ours, theirs = share * p(moving)[yt], (1 - share) * p(fixed)[yt]
        q = ours / (ours + theirs)
        return moving - lr * (q[:, None] * (p(moving) - np.eye(4)[yt])).mean(axis=0)

    total, shares = np.zeros(4), []
    for t in range(2):
        yt = y[client == t]
        candidates = []
        for lam in grid:
            h_l = step(h_c, h_c, lam, yt)
            loss = -np.log(lam * p(h_l)[yt] + (1 - lam) * p(h_c)[yt]).mean()
            candidates.append((loss, lam, h_l))
        _, lam, h_l = min(candidates, key=lambda candidate: candidate[0])
        shares.append(lam)
        total += len(yt) * step(h_c, h_l, 1 - lam, yt)
    np.testing.assert_allclose(next(model.parameters()).detach().flatten().numpy(), total / 10, rtol=1e-9)
    _, found = model.adaptation.fit(model, model.own_models(start, torch.ones(2, 1).double()), block_of(data))
    assert found.tolist() == shares


@pytest.mark.parametrize("engine", [LoopEngine(), VmapEngine()], ids=["loop", "vmap"])
def test_mapper_at_zero_is_fedavg(engine: Any) -> None:
    data = make_data()
    options: dict[str, Any] = {"client_optimizer": SGD, "participation": 0.75, "engine": engine}
    mapper = train(make_model(Mapper, data, adaptation=Interpolate(lambdas=(0.0,)), **options), data, 4)
    fedavg = train(make_model(FedAvg, data, **options), data, 4)
    torch.testing.assert_close(parameters(mapper.components), parameters(fedavg.components), rtol=1e-12, atol=1e-14)
    a, b = table_of(mapper, data), table_of(fedavg, data)
    np.testing.assert_allclose(a.test_loss, b.test_loss, rtol=1e-12)  # the central model alone


def test_mapper_needs_its_own_adaptation() -> None:
    for wrong in (Finetune(), Interpolate("own")):
        with pytest.raises(UserError, match="adaptation: Mapper needs mapper, or none for its defaults"):
            make_model(Mapper, make_data(), adaptation=wrong)


# --- interpolation after training -------------------------------------------------------------------------------------


def test_a_grid_of_zero_serves_what_was_there() -> None:
    data = make_data()
    for kind in (FedAvg, FedEM, HypCluster):
        model = train(make_model(kind, data, client_optimizer=SGD), data, 3)
        plain = table_of(model, data)
        model.adaptation = Interpolate("own", lambdas=(0.0,))
        np.testing.assert_allclose(table_of(model, data).test_loss, plain.test_loss, rtol=1e-12)


# --- Dapper -----------------------------------------------------------------------------------------------------------


def drawn(adaptation: Dapper, model: Any, data: FederatedDataModule, value: float) -> Block:
    block = block_of(data)
    central = adaptation._central_samples(model, block)
    return adaptation._interpolated(model.seed, block, central, value)


def test_dapper_draws_each_element_from_its_own_samples_with_probability_lambda() -> None:
    data = make_data(sizes=(400, 300, 500))
    model, dapper = make_model(FedAvg, data), Dapper(ratio=5)
    own = block_of(data)
    for value in (0.0, 0.3, 1.0):
        mixed = drawn(dapper, model, data, value)
        assert mixed.counts().tolist() == (5 * own.counts()).tolist()
        shares = []
        for c in range(3):
            shares.append(np.isin(mixed.index[mixed.owner == c], own.index[own.owner == c]).mean())
        by_chance = own.counts().double() / own.counts().sum()
        np.testing.assert_allclose(shares, value + (1 - value) * by_chance, atol=0.06)
        assert np.isin(mixed.index, own.index).all()  # training samples only
    np.testing.assert_array_equal(drawn(dapper, model, data, 1.0).index, drawn(dapper, model, data, 1.0).index)


def test_dapper_after_hypcluster_draws_from_the_cluster() -> None:
    data = make_data(sizes=(40, 40, 40, 40))
    model = make_model(HypCluster, data, initialization="random")
    model.cluster.copy_(torch.tensor([0, 1, 0, 1]))
    mixed, own = drawn(Dapper(), model, data, 0.0), block_of(data)
    for c in range(4):
        allowed = own.index[own.owner % 2 == c % 2]
        assert np.isin(mixed.index[mixed.owner == c], allowed).all()


KINDS = [FedEM, *(pytest.param(kind, marks=pytest.mark.slow) for kind in (FedAvg, HypCluster))]


@pytest.mark.parametrize("adaptation", [Dapper(), Interpolate("own"), Interpolate("mixture"), Finetune(), KNN()])
@pytest.mark.parametrize("kind", KINDS)
def test_every_adaptation_follows_every_base_and_engines_agree(kind: Any, adaptation: Any) -> None:
    data = make_data(sizes=(30, 21, 44, 17), unseen_fraction=0.25)
    tables = []
    for engine in (LoopEngine(), VmapEngine(block_size=2)):
        model = make_model(kind, data, client_optimizer=ClientSGD(lr=0.1), engine=engine, adaptation=adaptation)
        train(model, data, 3)
        before = parameters(model.components)
        tables.append(table_of(model, data))
        assert torch.equal(parameters(model.components), before)
    assert tables[0].test_loss.notna().all()
    np.testing.assert_allclose(tables[0].test_loss, tables[1].test_loss, rtol=1e-6)


@pytest.mark.parametrize(("kind", "column"), [(FedAvg, "lambda"), (AFL, "adaptation_lambda")])
@pytest.mark.parametrize(
    "adaptation", [Dapper(lambdas=(0.1, 0.7)), Interpolate("own", (0.1, 0.7)), KNN(lambdas=(0.1, 0.7))]
)
def test_lambda_joins_the_clients_table_as_the_grid_has_it(kind: Any, column: str, adaptation: Any) -> None:
    """AFL has a column of this name, its own weights; in float32 0.1 would be 0.10000000149."""
    data = make_data(sizes=(30, 30))
    model = train(make_model(kind, data, adaptation=adaptation), data, 1, precision="32-true")
    assert set(table_of(model, data, "32-true")[column]) <= {0.1, 0.7}


def test_a_candidate_that_diverged_is_never_chosen() -> None:
    data = make_data(sizes=(30, 30))
    model = train(make_model(FedAvg, data, client_optimizer=SGD), data, 2)
    wild = Interpolate("own", (0.0, 1.0), client_optimizer=ClientSGD(lr=1e300, weight_decay=1e300))
    personal = wild.adapt(model, block_of(data))
    assert personal.mixture.tolist() == [[0.0, 1.0], [0.0, 1.0]]
    assert isinstance(personal, OwnModels)
