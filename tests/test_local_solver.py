from typing import Any

import numpy as np
import pytest
import torch

from fedem_lightning import ClientSGD, FedAvg, FedEM, UserError
from fedem_lightning.aggregation import Sent, WeightedMean
from fedem_lightning.client_optimizers import SCHEDULES
from fedem_lightning.local_solver import Batches, LocalStep, shuffled_batches
from fedem_lightning.tasks import BinaryClassification, Classification
from helpers.federations import make_data, make_model, parameters, train
from helpers.reference import fedem_round, gradient

pytestmark = pytest.mark.fast


def client_batches(batches: Batches, c: int) -> list[torch.Tensor]:
    """The positions of client c's local steps, one after the other."""
    start, count = int(batches.counts[:c].sum()), int(batches.counts[c])
    return [part for order in batches.order for part in order[start : start + count].split(batches.size)]


def test_one_weighted_step_agrees_with_numpy() -> None:
    rng = np.random.default_rng(0)
    x, y, q = rng.normal(size=(6, 4)), rng.integers(3, size=6), rng.random(6)
    net = torch.nn.Linear(4, 3).double()
    weight, bias = (p.detach().numpy().copy() for p in net.parameters())
    step = LocalStep(net, Classification(3), ClientSGD(lr=0.3), lr=0.3)
    params: dict[str, torch.Tensor] = dict(net.named_parameters())
    size = torch.tensor(6.0, dtype=torch.float64)
    loss, _ = step.objective(params, {}, torch.tensor(x), torch.tensor(y), torch.tensor(q), size, torch.tensor(0))
    grads = list(torch.autograd.grad(loss, list(params.values())))
    after = {"params": {n: p.detach() for n, p in params.items()}, "buffers": {}, "momentum": {}}
    step.advance(after, lambda learner: grads)
    d_weight, d_bias = gradient(weight, bias, x, y, q)
    np.testing.assert_allclose(after["params"]["weight"].numpy(), weight - 0.3 * d_weight, rtol=1e-9)
    np.testing.assert_allclose(after["params"]["bias"].numpy(), bias - 0.3 * d_bias, rtol=1e-9)


def test_a_round_of_fedem_agrees_with_numpy() -> None:
    data = make_data(fractions=(1.0, 0.0, 0.0))
    model = make_model(FedEM, data, n_components=2, batch_size=100, client_optimizer=ClientSGD(lr=0.5)).double()
    thetas = [
        (c.linear.weight.detach().numpy().copy(), c.linear.bias.detach().numpy().copy()) for c in model.components
    ]
    federation = data.federation
    blocks = [federation.block(torch.tensor([t]), "train") for t in range(data.n_clients)]
    clients = [(b.x(torch.float64).numpy(), b.y().numpy()) for b in blocks]
    pi = np.full((data.n_clients, 2), 0.5)
    for _ in range(3):
        thetas, pi = fedem_round(thetas, pi, clients, lr=0.5)
    train(model, data, rounds=3)
    np.testing.assert_allclose(model.pi.numpy(), pi, rtol=1e-9)
    for component, (weight, bias) in zip(model.components, thetas, strict=True):
        np.testing.assert_allclose(component.linear.weight.detach().numpy(), weight, rtol=1e-9)
        np.testing.assert_allclose(component.linear.bias.detach().numpy(), bias, rtol=1e-9)


@pytest.mark.parametrize("epochs", [1, 3])
def test_one_client_is_centralised_sgd(epochs: int) -> None:
    data = make_data(sizes=(23,))
    options = ClientSGD(lr=0.2, momentum=0.9, weight_decay=0.01)
    model = make_model(FedAvg, data, client_optimizer=options, local_epochs=epochs).double()
    net = torch.nn.Linear(4, 3).double()
    net.load_state_dict({k.removeprefix("linear."): v for k, v in model.components[0].state_dict().items()})
    block = data.federation.block(torch.tensor([0]), "train")
    x, y = block.x(torch.float64), block.y()
    for round_ in range(4):
        optimizer = torch.optim.SGD(net.parameters(), lr=0.2, momentum=0.9, weight_decay=0.01)
        for rows in client_batches(shuffled_batches(block, 4, epochs, seed=0, round_=round_), 0):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(net(x[rows]), y[rows]).backward()
            optimizer.step()
    train(model, data, rounds=4)
    torch.testing.assert_close(parameters(model.components), parameters(net), rtol=1e-12, atol=1e-12)


def test_kept_momentum_is_sgd_over_rounds() -> None:
    """With one client, one step a round and kept momentum, rounds are the steps of one optimiser."""
    data = make_data(sizes=(10,), fractions=(1.0, 0.0, 0.0))
    options = ClientSGD(lr=0.2, momentum=0.9, state="keep")
    model = make_model(FedAvg, data, client_optimizer=options, batch_size=100).double()
    net = torch.nn.Linear(4, 3).double()
    net.load_state_dict({k.removeprefix("linear."): v for k, v in model.components[0].state_dict().items()})
    block = data.federation.block(torch.tensor([0]), "train")
    optimizer = torch.optim.SGD(net.parameters(), lr=0.2, momentum=0.9)
    for _ in range(5):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(net(block.x(torch.float64)), block.y()).backward()
        optimizer.step()
    train(model, data, rounds=5)
    torch.testing.assert_close(parameters(model.components), parameters(net), rtol=1e-12, atol=1e-12)
    restarted = make_model(FedAvg, data, client_optimizer=ClientSGD(lr=0.2, momentum=0.9), batch_size=100).double()
    assert not torch.allclose(parameters(train(restarted, data, rounds=5).components), parameters(net))


@pytest.mark.parametrize(
    ("name", "expected"),
    [("constant", [1, 1, 1, 1]), ("multistep", [1, 1, 0.1, 0.01]), ("cosine", [1, 0.853553, 0.5, 0.146447])],
)
def test_schedules(name: Any, expected: list[float]) -> None:
    assert [SCHEDULES[name](k / 4) for k in range(4)] == pytest.approx(expected, abs=1e-6)
    assert ClientSGD(lr=0.5, schedule=name).lr_at(2, 4) == pytest.approx(0.5 * expected[2], abs=1e-6)


@pytest.mark.parametrize(
    "options",
    [
        {"lr": 0},
        {"lr": float("nan")},
        {"momentum": 1.0},
        {"weight_decay": -1},
        {"state": "x"},
        {"schedule": "x"},
        {"lr": "a"},
    ],
)
def test_wrong_options_are_named(options: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=f"ClientSGD.{next(iter(options))}"):
        ClientSGD(**options)


def test_binary_task_is_the_two_class_task() -> None:
    logits, y = torch.randn(9, 1, dtype=torch.float64), torch.arange(9) % 2
    two = torch.cat([torch.zeros_like(logits), logits], dim=1)
    torch.testing.assert_close(BinaryClassification().predict(logits), Classification(2).predict(two))
    torch.testing.assert_close(BinaryClassification().losses(logits, y), Classification(2).losses(two, y))


def test_weight_decay_of_parameters_that_share_a_gradient() -> None:
    """Torch gives the biases of an LSTM one gradient; each decays by its own value."""
    a, b, g = torch.tensor([1.0]), torch.tensor([10.0]), torch.tensor([0.5])
    learner = {"params": {"a": a, "b": b}, "buffers": {}, "momentum": {}}
    ClientSGD(lr=1.0, weight_decay=0.1).descend(learner, [g, g], lr=1.0)
    assert (float(a), float(b)) == pytest.approx((1 - 0.5 - 0.1, 10 - 0.5 - 1.0))


def test_the_mean_of_many_bfloat16_models_is_exact() -> None:
    mean = WeightedMean()
    for _ in range(400):
        mean.add(Sent({"w": torch.ones(1, 1, 3, dtype=torch.bfloat16)}, torch.tensor([131])))
    found = mean.compute()
    assert found is not None
    assert found.models["w"].dtype == torch.bfloat16
    assert found.models["w"].tolist() == [[1, 1, 1]]


@pytest.mark.parametrize("views", [(True, True), (True, False), (False, True)])
@pytest.mark.parametrize("averages", ["one", "groups", "all"])
def test_the_mean_of_tensors_that_components_share(views: tuple[bool, bool], averages: str) -> None:
    rng, sent = np.random.default_rng(0), []
    for shares in views:  # of a block of four clients, the last of which diverged
        theta, phi, n = rng.normal(size=(4, 3, 2, 3)), rng.normal(size=(4, 3, 2)), rng.integers(1, 9, size=4)
        theta[3] = np.nan
        each = torch.tensor(theta)
        weights = torch.tensor(rng.random((4, 2))) if averages == "all" else torch.tensor(n)
        group = torch.tensor([0, 1, 1, 0]) if averages == "groups" else None
        models = {"theta": each[:, :1].expand_as(each) if shares else each, "phi": torch.tensor(phi)}
        sent.append(Sent(models, weights, group, 2 if averages == "groups" else 1, {"extra": torch.tensor(phi[:, 0])}))
    mean = WeightedMean()
    for block in sent:
        assert mean.add(block).tolist() == [True, True, True, False]
    means = mean.compute()
    assert means is not None
    share = torch.cat([b.weights for b in sent]).double().numpy().reshape(8, -1)  # [8, G]
    if averages == "groups":
        share = share * np.eye(2)[[0, 1, 1, 0, 0, 1, 1, 0]]
    share[[3, 7]] = 0
    share = share / share.sum(axis=0)
    for name in ("theta", "phi"):
        rows = np.nan_to_num(torch.cat([b.models[name] for b in sent]).numpy())  # [8, 3, ...]
        expected = np.einsum("tg,tm...->gm...", share, rows)
        np.testing.assert_allclose(means.models[name].numpy(), expected.reshape(-1, *rows.shape[2:]), rtol=1e-12)
    rows = torch.cat([b.extras["extra"] for b in sent]).numpy()
    np.testing.assert_allclose(means.extras["extra"].numpy(), share.T @ rows, rtol=1e-12)
    assert means.nonempty.tolist() == [True] * 3 * share.shape[1]
