"""Frozen parameters (`requires_grad=False`) stay as they are, and training is that of the rest alone."""

import copy
import itertools
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedem_lightning import (
    MLP,
    ClientSGD,
    FedAvg,
    FedEM,
    FederatedAlgorithm,
    FederatedDataModule,
    FedGMM,
    Linear,
)
from fedem_lightning.models.parts import model_bytes
from fedem_lightning.module.round import draw_cohort
from fedem_lightning.run.callbacks import RoundCheckpoint
from helpers.conformance import ROWS, Row, with_groups
from helpers.every_method import SLOW, each
from helpers.federations import make_data, make_trainer, train, train_and_test

SGD = ClientSGD(lr=0.3, momentum=0.9, weight_decay=0.01, state="keep")


def body(norm: bool) -> nn.Sequential:
    """A fixed network from 4 features to 5, in double precision; with a BatchNorm that has seen data."""
    torch.manual_seed(1)
    layers = nn.Sequential(nn.Flatten(), nn.Linear(4, 5), nn.Tanh(), *([nn.BatchNorm1d(5)] if norm else [])).double()
    with torch.no_grad():
        layers.train()(torch.randn(64, 4, dtype=torch.float64))
    return layers.requires_grad_(False).eval()


def with_head(norm: bool) -> nn.Sequential:
    """The fixed body, and a last layer that trains; `Linear`'s own names."""
    return nn.Sequential(body(norm), head())


def head() -> Linear:
    torch.manual_seed(2)
    return Linear((5,), 3).double()


def federation(features: nn.Module | None = None) -> FederatedDataModule:
    """`make_data`, or the same clients with the outputs of `features` for samples."""
    sizes, rng = (7, 12, 3, 20), np.random.default_rng(5)
    client, x = np.repeat(np.arange(4), sizes), rng.normal(size=(42, 4))
    y = (x @ rng.normal(size=(4, 3))).argmax(axis=1)
    if features is not None:
        with torch.no_grad():
            x = features(torch.from_numpy(x)).numpy()
    return with_groups(FederatedDataModule.from_arrays(x, y, client, n_classes=3, domain=np.arange(42) % 2))


def frozen(network: nn.Module) -> dict[str, torch.Tensor]:
    return {name: t.clone() for name, t in network.state_dict().items() if name.startswith("0.")}


def in_the_whole(name: str) -> str:
    """The name that a tensor of the head alone has behind a body; FLoRAL names adapters by their layers."""
    for part, dot in (("network.", "."), ("a.", "/"), ("b.", "/"), ("d.", "/")):
        if name.startswith(part):
            return f"{part}1{dot}{name.removeprefix(part)}"
    return name if name == "router" else f"1.{name}"


def model_of(row: Row, network: nn.Module, data: FederatedDataModule, **options: Any) -> FederatedAlgorithm:
    """Each component is the network with a new head."""

    def backbone() -> nn.Module:
        copied = copy.deepcopy(network)
        next(layer for layer in copied.modules() if isinstance(layer, Linear)).linear.reset_parameters()
        return copied

    torch.manual_seed(0)
    return row.kind(backbone, n_clients=data.n_clients, **{**row.options, "batch_size": 4, **options})


# a network whose body is frozen has no body that trains; FedGMM's clients have models of another form
@each([r for r in ROWS if r.sgd and not r.hidden and r.kind is not FedGMM], SLOW)
@pytest.mark.parametrize(
    ("engine", "norm"),
    [
        pytest.param("loop", True, id="loop"),
        pytest.param("vmap", True, id="vmap", marks=pytest.mark.slow),  # engines agree: test_algorithms.py
        pytest.param("vmap", False, id="stacked"),
    ],
)
def test_training_is_that_of_the_head_alone_on_the_bodys_features(row: Row, engine: str, norm: bool) -> None:
    options = {"client_optimizer": SGD, "engine": engine}
    whole, alone = federation(), federation(body(norm))
    a, b = model_of(row, with_head(norm), whole, **options), model_of(row, head(), alone, **options)
    for model, data in ((a, whole), (b, alone)):
        train_and_test(model, data, 2)
    clients = torch.arange(4)
    found, expected = a.personal_models(clients).models, b.personal_models(clients).models
    assert {in_the_whole(name) for name in expected} == set(found)
    for name, rows in expected.items():
        torch.testing.assert_close(found[in_the_whole(name)], rows, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(a.clients.test_loss, b.clients.test_loss, rtol=1e-9)
    for component in a.components:
        for name, tensor in frozen(component).items():
            assert torch.equal(tensor, with_head(norm).state_dict()[name]), name


@pytest.mark.parametrize("frozen_part", ["weight", "bias"])
def test_a_layer_may_be_frozen_in_part(frozen_part: str) -> None:
    """The stack multiplies a frozen weight and adds each learner's own bias, or the other way round."""
    data, found = make_data(), {}
    for engine in ("loop", "vmap"):
        torch.manual_seed(0)
        network = MLP(data.in_shape, data.n_outputs, hidden=(6,))
        for name, p in network.named_parameters():
            p.requires_grad_(not name.endswith(frozen_part))
        before = copy.deepcopy(network.state_dict())
        model = FedEM(network, n_clients=4, n_components=2, client_optimizer=SGD, batch_size=4, engine=engine)
        train(model, data, 2)
        assert model.local.engine.name == engine
        found[engine] = model.components.state_dict()
        for name, tensor in before.items():
            stays = name.endswith(frozen_part)
            assert torch.equal(found[engine][f"0.{name}"], tensor.double()) == stays
            assert torch.equal(found[engine][f"0.{name}"], found[engine][f"1.{name}"]) == stays
    torch.testing.assert_close(found["vmap"], found["loop"], rtol=1e-9, atol=1e-12)


def test_frozen_parameters_are_sent_once() -> None:
    data = federation()
    head_bytes, body_bytes = (5 * 3 + 3) * 8, (4 * 5 + 5) * 8
    options: dict[str, Any] = {"participation": 2, "client_optimizer": SGD, "batch_size": 4}
    heads = itertools.count()

    def drawn() -> nn.Module:
        network = with_head(False)
        with torch.no_grad():
            next(network[-1].parameters()).add_(next(heads))
        return network

    model = FedEM(drawn, n_clients=4, n_components=2, initialization="random", **options)
    train(model, data, 3)
    cohorts = [set(draw_cohort(model, data.federation, r).tolist()) for r in range(3)]
    reached = set.union(*cohorts)
    first_rounds = sum(not cohorts[r] <= set.union(set(), *cohorts[:r]) for r in range(3))
    assert model_bytes(model.components[0]) == head_bytes
    assert model.statistics.up_bytes == 3 * 2 * 2 * head_bytes
    assert model.statistics.down_bytes == 3 * 2 * 2 * head_bytes + len(reached) * body_bytes
    assert model.statistics.air_bytes == 3 * (2 * 2 + 2) * head_bytes + first_rounds * body_bytes


def test_a_resumed_run_knows_who_has_the_frozen_parameters(tmp_path: Any) -> None:
    def fresh() -> FedAvg:
        return FedAvg(with_head(True), n_clients=4, participation=2, client_optimizer=SGD, batch_size=4)

    data, whole = federation(), train(fresh(), federation(), 4)
    save = RoundCheckpoint(every_n_rounds=2, dirpath=tmp_path)
    train(fresh(), data, 2, callbacks=[save], enable_checkpointing=True)
    resumed = fresh()
    make_trainer(4).fit(resumed, federation(), ckpt_path=str(tmp_path / "round-000002.ckpt"), weights_only=True)
    assert resumed.statistics.down_bytes == whole.statistics.down_bytes
    torch.testing.assert_close(resumed.state_dict(), whole.state_dict(), rtol=0, atol=0)
