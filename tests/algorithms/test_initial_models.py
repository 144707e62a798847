"""How FedEM's components begin: the warm-up, the groups of similar clients, and what "auto" takes where."""

from typing import Any

import numpy as np
import pytest
import torch

from fedem_lightning import FedAvg, FedEM, FederatedDataModule
from fedem_lightning.aggregate import PrivateMean
from fedem_lightning.local.optimizers import ClientSGD
from fedem_lightning.methods import initialization as start
from helpers import by_hand
from helpers.federations import grouped, make_data, make_model, make_trainer, parameters, train

SGD = ClientSGD(lr=0.3)


def mixture(data: Any, initialization: str = "auto", **options: Any) -> Any:
    return make_model(FedEM, data, initialization=initialization, **{"client_optimizer": SGD, **options})


def test_components_are_the_means_of_the_models_of_similar_clients() -> None:
    """Each client trains 20 epochs from component 0; in NumPy, weighted by samples, over the true groups."""
    data = grouped(n_clients=6, n_groups=2, n=40, fractions=by_hand.ALL_TRAIN)
    model = mixture(data, "clusters", n_components=2, batch_size=100)
    first = parameters(model.components[0]).numpy()
    model.statistics.plan(200)
    model.warmup_end.fill_(0)
    model.double().initialize(data.federation)
    clients = [by_hand.samples(data, t) for t in range(6)]
    alone = [by_hand.descend(first, x, y, [np.arange(len(y))] * start.EPOCHS, SGD.lr) for x, y in clients]
    expected = [np.mean(alone[g::2], axis=0) for g in range(2)]
    found = [parameters(component).numpy() for component in model.components]
    order = 1 if np.abs(found[0] - expected[0]).max() < 1e-9 else -1
    for theta, mean in zip(found, expected[::order], strict=True):
        np.testing.assert_allclose(theta, mean, rtol=1e-9, atol=1e-12)
    assert model.diagnostics["start"] == {"warmup_rounds": 0, "group_sizes": [3, 3]}
    assert torch.equal(model.pi, torch.full_like(model.pi, 0.5))


def test_the_warm_up_is_fedavg_until_validation_stops_it(capsys: pytest.CaptureFixture[str]) -> None:
    """One model is sent in its rounds; it ends once three rounds have lowered the loss by less than 3 %."""
    data = grouped()
    model = train(mixture(data), data, 60)
    rounds = int(model.warmup_end)
    assert start.PATIENCE < rounds < 0.2 * 60
    fedavg, losses = make_model(FedAvg, data, client_optimizer=SGD).double(), []
    for _ in range(rounds):
        make_trainer(1).fit(fedavg, data)
        block = data.federation.block(data.federation.clients(), "val")
        losses.append(float(fedavg.losses(block).mean()))
    np.testing.assert_allclose(model.warmup_losses.numpy(), losses[-start.PATIENCE - 1 :], rtol=1e-12)
    gains = [losses[r - start.PATIENCE] / losses[r] for r in range(start.PATIENCE, rounds)]
    assert gains[-1] <= 1 / (1 - start.LEAST_GAIN) < min([np.inf, *gains[:-1]])
    size = sum(p.numel() for p in model.components[0].parameters()) * 8 * data.n_clients
    assert model.statistics.up_bytes == size * (rounds + 1 + 3 * (60 - rounds))  # once in the special round
    assert model.statistics.special_rounds == 1
    assert capsys.readouterr().out.startswith("start: one FedAvg model, then a component for each of 3 groups")


@pytest.mark.parametrize("shared", [None, "body"])
def test_a_fifth_of_the_rounds_at_most_and_everything_equal_before(shared: str | None) -> None:
    data = make_data(sizes=(20, 20, 20, 20))
    fedavg = make_model(FedAvg, data, hidden=True, client_optimizer=ClientSGD(lr=0.05))
    model = mixture(data, hidden=True, shared=shared, client_optimizer=ClientSGD(lr=0.05))
    seen: list[int] = []
    step = model.server_update

    def watched(means: Any, round_: Any) -> None:
        step(means, round_)
        seen.append(len({tuple(parameters(c).tolist()) for c in model.components}))

    model.server_update = watched
    train(model, data, 20)
    assert int(model.warmup_end) == 4
    assert seen == [1] * 3 + [3] * 17
    before = train(fedavg, data, 4)
    again = mixture(data, hidden=True, shared=shared, client_optimizer=ClientSGD(lr=0.05))
    again.warm_up.differ = lambda *_: None
    torch.testing.assert_close(
        parameters(train(again, data, 4).components[2]), parameters(before.components[0]), rtol=1e-12, atol=1e-14
    )
    if shared:
        body = [c.layers[0].weight for c in model.components]
        assert all(torch.equal(body[0], other) for other in body[1:])


def test_a_run_that_was_stopped_in_the_warm_up_goes_on_with_the_same_bits(tmp_path: Any) -> None:
    data = grouped()
    straight = train(mixture(data), data, 60)
    assert int(straight.warmup_end) > 3
    model = mixture(data)
    trainer = make_trainer(3)
    model.on_fit_start = lambda: model.statistics.plan(60)  # a run of 60 rounds that ends after 3
    trainer.fit(model, data)
    trainer.save_checkpoint(tmp_path / "stopped.ckpt")
    resumed = mixture(data)
    make_trainer(60).fit(resumed, data, ckpt_path=tmp_path / "stopped.ckpt")
    assert int(resumed.warmup_end) == int(straight.warmup_end)
    assert torch.equal(parameters(resumed), parameters(straight))


@pytest.mark.parametrize("aggregation", ["median", PrivateMean()], ids=["median", "private"])
def test_where_single_models_are_not_to_be_seen_auto_is_random(
    aggregation: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    data = make_data(sizes=(20, 20, 20, 20))
    options: dict[str, Any] = {"aggregation": aggregation, "participation": 2}
    auto, paper = mixture(data, **options), mixture(data, "random", **options)
    assert auto.private_ok
    assert torch.equal(parameters(train(auto, data, 2)), parameters(train(paper, data, 2)))
    assert "start: components with random values, because the aggregation is no plain mean" in capsys.readouterr().out


def test_one_component_has_no_start(capsys: pytest.CaptureFixture[str]) -> None:
    data = make_data()
    model = train(mixture(data, n_components=1), data, 6)
    assert torch.equal(
        parameters(model.components),
        parameters(train(make_model(FedAvg, data, client_optimizer=SGD), data, 6).components),
    )
    assert "start" not in capsys.readouterr().out + str(model.diagnostics)


def test_fewer_clients_than_components_and_clients_that_are_all_the_same() -> None:
    data = make_data(sizes=(20, 20))
    model = train(mixture(data, n_components=4), data, 2)
    assert model.diagnostics["start"]["group_sizes"] == [1, 1, 0, 0]
    assert torch.isfinite(parameters(model)).all()
    x, y = np.random.default_rng(0).normal(size=(12, 4)), np.arange(12) % 3
    client = np.repeat(np.arange(5), 12)
    same = FederatedDataModule.from_arrays(np.tile(x, (5, 1)), np.tile(y, 5), client, fractions=by_hand.ALL_TRAIN)
    model = train(mixture(same, n_components=2, batch_size=100), same, 2)
    assert sum(model.diagnostics["start"]["group_sizes"]) == 5
    assert torch.isfinite(parameters(model)).all()


def test_a_client_unlike_all_others_is_no_group_of_its_own() -> None:
    """Nine clients of two kinds and one whose labels are noise: k-means alone would keep a group for that one."""
    rng = np.random.default_rng(0)
    losses = rng.normal(scale=0.01, size=(10, 10))
    losses[:5, :5] += 1
    losses[5:9, 5:] += 1
    losses[9, ::2] += 9
    group = start._groups(losses, np.arange(10), 2, seed=0)
    assert len(set(group[:5])) == len(set(group[5:9])) == 1
    assert group[0] != group[5]
