"""Local training: rates, batches, keys of dropout, buffers, and the means of what is sent."""

import math
from collections import defaultdict
from typing import Any

import numpy as np
import pytest
import torch

from fedem_lightning import QFFL, ClientSGD, FedAvg, FedEM, FederatedDataModule, LoopEngine
from fedem_lightning.aggregate import Update, WeightedMean
from fedem_lightning.data.tasks import BinaryClassification, Classification
from helpers.by_hand import ALL_TRAIN, assert_agree, gradient, samples, three_rounds_of_fedem, vector
from helpers.federations import make_data, make_model, train

# --- the rate of a round ----------------------------------------------------------------------------------------------

RATES = {
    "multistep": [0.5, 0.5, 0.05, 0.005],
    "cosine": [0.5, 0.25 * (1 + math.sqrt(0.5)), 0.25, 0.25 * (1 - math.sqrt(0.5))],
}


@pytest.mark.parametrize("schedule", ["multistep", "cosine"])
@pytest.mark.parametrize("engine", ["loop", "vmap"])
def test_every_round_trains_at_its_own_rate(schedule: Any, engine: str) -> None:
    """One client, full batches: four rounds of two steps of gradient descent."""
    data = make_data(sizes=(9,), fractions=ALL_TRAIN)
    sgd = ClientSGD(lr=0.5, schedule=schedule)
    model = make_model(FedAvg, data, client_optimizer=sgd, batch_size=9, local_epochs=2, engine=engine).double()
    theta, (x, y) = vector(model.components[0]), samples(data, 0)
    for lr in RATES[schedule]:
        for _ in range(2):
            theta = theta - lr * gradient(theta, x, y)
    train(model, data, 4)
    assert_agree(vector(model.components[0]), theta)


# --- the order of samples ---------------------------------------------------------------------------------------------


class Listener(torch.nn.Module):
    """A linear layer that notes the samples it is trained on: a sample's first feature is its number."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(1, 2)
        self.heard: list[list[int]] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.heard.append([round(number) for number in x[:, 0].tolist()])
        return self.linear(x)


SIZES = (11, 11, 6)


def batches_met(block_size: int | None = None, **options: Any) -> dict[int, list[list[int]]]:
    """The batches that each client meets in two rounds; a sample is called by its number within its client."""
    client = np.repeat(np.arange(3), SIZES)
    x = np.arange(28.0)[:, None]
    data = FederatedDataModule.from_arrays(x, np.arange(28) % 2, client, fractions=ALL_TRAIN)
    sgd, engine = ClientSGD(lr=1e-4), LoopEngine(block_size=block_size)
    model = FedAvg(Listener(), 3, batch_size=4, client_optimizer=sgd, engine=engine, **options)
    train(model, data, 2)
    met = defaultdict(list)
    for batch in model.components[0].heard:
        assert len(set(client[batch])) == 1  # nobody meets another's samples
        t = client[batch[0]]
        met[t].append([i - sum(SIZES[:t]) for i in batch])
    return met


def test_a_client_meets_its_own_samples_once_a_pass_and_in_a_new_order_each_time() -> None:
    met = batches_met(local_epochs=2)
    orders = defaultdict(set)
    for t, size in enumerate(SIZES):
        steps = -(-size // 4)
        assert len(met[t]) == 2 * 2 * steps
        for start in range(0, len(met[t]), steps):  # two rounds of two passes
            one_pass = met[t][start : start + steps]
            assert [len(batch) for batch in one_pass] == [4] * (size // 4) + [size % 4]
            order = [i for batch in one_pass for i in batch]
            assert sorted(order) == list(range(size))
            assert order != sorted(order)
            orders[size].add(tuple(order))
    assert len(orders[11]) == 2 * 2 * 2  # two clients of this size, two rounds, two passes: all differ
    assert len(orders[6]) == 2 * 2


@pytest.mark.parametrize(("epochs", "seen"), [(0.5, {11: [6], 6: [3]}), (1.1, {11: [11, 2], 6: [6, 1]})])
def test_a_part_of_a_pass_meets_that_share_of_the_samples_drawn_anew_in_each_round(
    epochs: float, seen: dict[int, list[int]]
) -> None:
    met = batches_met(local_epochs=epochs)
    for t, size in enumerate(SIZES):
        sizes = [len(batch) for n in seen[size] for batch in np.split(np.arange(n), range(4, n, 4))]
        assert [len(batch) for batch in met[t]] == 2 * sizes  # two rounds
        rounds = [[i for batch in met[t][start:][: len(sizes)] for i in batch] for start in (0, len(sizes))]
        parts = [tuple(one[sum(seen[size][:-1]) :]) for one in rounds]
        assert all(len(set(part)) == seen[size][-1] for part in parts)
        assert parts[0] != parts[1]


def test_the_order_of_samples_does_not_depend_on_the_block_but_on_the_seed() -> None:
    together = batches_met(local_epochs=1.5)
    assert batches_met(1, local_epochs=1.5) == together
    assert batches_met(2, local_epochs=1.5) == together
    assert batches_met(local_epochs=1.5, seed=1) != together


# --- keys of dropout ------------------------------------------------------------------------------------------------


class Masked(torch.nn.Module):
    """Dropout before a linear layer; notes the masks it is trained with."""

    def __init__(self) -> None:
        super().__init__()
        self.dropout, self.linear = torch.nn.Dropout(0.5), torch.nn.Linear(4, 3)
        self.masks: list[tuple[bool, ...]] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            kept = self.dropout(torch.ones_like(x)) > 0
            self.masks.append(tuple(kept.flatten().tolist()))
        return self.linear(self.dropout(x))


def test_dropout_differs_between_rounds_clients_steps_and_components() -> None:
    data, masks = make_data(sizes=(10, 10), fractions=ALL_TRAIN), []
    changes: list[dict[str, Any]] = [{}, {"engine": LoopEngine(block_size=1)}, {"seed": 1}]
    for change in changes:
        options = {"engine": LoopEngine(), "local_epochs": 2, "batch_size": 10, **change}
        model = train(FedEM(Masked, 2, 2, initialization="random", **options), data, 2)
        masks.append(model.components[0].masks)
    assert len(masks[0]) == 2 * 2 * 2 * 2
    assert len(set(masks[0])) == len(masks[0])
    assert masks[1] == masks[0]
    assert not set(masks[2]) & set(masks[0])


# --- buffers ----------------------------------------------------------------------------------------------------------


class Normed(torch.nn.Module):
    """BatchNorm right at the input, so that its statistics depend on the samples alone."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = torch.nn.BatchNorm1d(4, momentum=0.1), torch.nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(self.norm(x))


@pytest.mark.parametrize(
    ("kind", "options", "by_size"),
    [
        (FedAvg, {}, True),
        (FedAvg, {"server_optimizer": lambda p: torch.optim.Adam(p, lr=0.1)}, True),
        (FedAvg, {"server_optimizer": lambda p: torch.optim.SGD(p, lr=0.5)}, True),
        (QFFL, {"q": 1.0}, False),  # its clients count alike
    ],
    ids=["mean", "adam", "half a step", "q-FFL"],
)
def test_running_statistics_become_the_clients_mean(kind: Any, options: dict[str, Any], by_size: bool) -> None:
    """Three rounds of two full batches: r <- 0.9 r + 0.1 (statistic of x_t), twice; then the mean over clients."""
    data = make_data(sizes=(7, 12, 3), fractions=ALL_TRAIN)
    model = kind(Normed(), 3, batch_size=100, local_epochs=2, client_optimizer=ClientSGD(lr=0.1), **options)
    start = model.components[0].linear.weight.detach().clone()
    train(model, data, 3)
    mean, variance = np.zeros(4), np.ones(4)
    weights = np.array([7, 12, 3]) / 22 if by_size else np.ones(3) / 3
    x = [samples(data, t)[0] for t in range(3)]
    for _ in range(3):
        mean = sum(w * (0.81 * mean + 0.19 * xt.mean(axis=0)) for w, xt in zip(weights, x, strict=True))
        variance = sum(w * (0.81 * variance + 0.19 * xt.var(axis=0, ddof=1)) for w, xt in zip(weights, x, strict=True))
    norm = model.components[0].norm
    assert_agree(norm.running_mean.numpy(), mean)
    assert_agree(norm.running_var.numpy(), variance)
    assert int(norm.num_batches_tracked) == 6
    assert not torch.equal(model.components[0].linear.weight, start.double())


# --- against plain torch and NumPy -----------------------------------------------------------------------------------


def test_a_round_of_fedem_agrees_with_numpy() -> None:
    data = make_data(fractions=(1.0, 0.0, 0.0))
    model = make_model(FedEM, data, n_components=2, batch_size=100, client_optimizer=ClientSGD(lr=0.5)).double()
    three_rounds_of_fedem(data, model, 0.5)


def test_binary_task_is_the_two_class_task() -> None:
    logits, y = torch.randn(9, 1, dtype=torch.float64), torch.arange(9) % 2
    two = torch.cat([torch.zeros_like(logits), logits], dim=1)
    torch.testing.assert_close(BinaryClassification().predict(logits), Classification(2).predict(two))
    torch.testing.assert_close(BinaryClassification().losses(logits, y), Classification(2).losses(two, y))


def test_the_mean_of_many_bfloat16_models_is_exact() -> None:
    mean = WeightedMean()
    for _ in range(400):
        mean.add(Update({"w": torch.ones(1, 1, 3, dtype=torch.bfloat16)}, torch.tensor([131]), {}))
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
        how: Any = (group, 2 if averages == "groups" else 1, {"extra": torch.tensor(phi[:, 0])})
        sent.append(Update(models, weights, {}, *how))
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
