"""`loop` and `vmap` compute the same numbers, whatever the blocks and the order of clients."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedem_lightning import (
    MLP,
    AutoEngine,
    CharLSTM,
    ClientSGD,
    Engine,
    FedAvg,
    FedEM,
    FederatedAlgorithm,
    Finetune,
    Local,
    LoopEngine,
    MobileNetV2,
    ReferenceCNN,
    VmapEngine,
)
from fedem_lightning.models.components import make_components
from fedem_lightning.models.mixture_network import MixtureNetwork
from helpers.federations import make_data, make_model, make_trainer, parameters, train

ENGINES = [VmapEngine(), VmapEngine(block_size=1), VmapEngine(block_size=3), LoopEngine(block_size=2)]
TOLERANCE = {"64-true": 1e-9, "32-true": 1e-4}


def relative_difference(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).norm() / b.norm())


@pytest.mark.parametrize("kind", [FedEM, *(pytest.param(kind, marks=pytest.mark.slow) for kind in (FedAvg, Local))])
@pytest.mark.parametrize("engine", ENGINES, ids=["vmap", "vmap-1", "vmap-3", "loop-2"])
@pytest.mark.parametrize("precision", TOLERANCE)
def test_engines_agree_after_five_rounds(kind: type, engine: Engine, precision: str) -> None:
    data = make_data(sizes=(7, 12, 3, 20, 9))
    options: dict[str, Any] = {
        "client_optimizer": ClientSGD(lr=0.5, momentum=0.9, weight_decay=1e-3, state="keep"),
        "local_epochs": 1.6,
        "participation": 3,
    }
    expected = train(make_model(kind, data, engine=LoopEngine(), **options), data, 5, precision=precision)
    found = train(make_model(kind, data, engine=engine, **options), data, 5, precision=precision)
    assert relative_difference(parameters(found), parameters(expected)) <= TOLERANCE[precision]


class DropoutNet(nn.Module):
    """Two dropout layers, as a user would write them."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.3), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


class Unstackable(nn.Module):
    """Decides by a value, which torch.func cannot stack."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = x @ self.weight
        return out if bool(out.sum() > -1e9) else -out


def test_what_cannot_be_stacked_falls_back_to_loop_and_says_so_once() -> None:
    data = make_data()

    def trained(engine: str) -> FederatedAlgorithm:
        torch.manual_seed(0)
        return train(FedAvg(Unstackable(), data.n_clients, engine=engine, batch_size=4), data, 3)

    with pytest.warns(UserWarning, match="vmap cannot stack this backbone, loop takes over") as said:
        found = trained("vmap")
    assert sum("loop takes over" in str(warning.message) for warning in said) == 1
    assert found.local.engine.name == "loop"
    assert torch.equal(parameters(found), parameters(trained("loop")))


@pytest.mark.parametrize(
    ("backbone", "device", "expected"),
    [
        (MLP((4,), 3), "cpu", "vmap"),
        (MLP((784,), 62, hidden=(2048,)), "cpu", "loop"),
        (ReferenceCNN(4), "cpu", "loop"),
        (ReferenceCNN(4), "cuda", "vmap"),
        (nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8)), "cpu", "vmap"),
        (CharLSTM(80), "cuda", "vmap"),
        (CharLSTM(80), "cpu", "vmap"),
        (MobileNetV2(10), "cpu", "loop"),
        (nn.LSTM(4, 8), "cuda", "loop"),
        (
            MixtureNetwork(make_components(MLP((784,), 62, hidden=(200,)), 3, seed=0), ["layers.0.weight"]),
            "cpu",
            "vmap",
        ),
    ],
)
def test_auto_follows_its_rule(backbone: nn.Module, device: str, expected: str) -> None:
    chosen = AutoEngine(block_size=7).resolve(backbone, torch.device(device))
    assert (chosen.name, chosen.block_size) == (expected, 7)


def test_blocks_follow_the_memory_budget() -> None:
    data = make_data(sizes=(4,) * 10)
    federation = data.federation
    engine = LoopEngine(memory_gb=1e-6)  # 1000 bytes
    blocks = list(engine.blocks(federation, torch.arange(10), learner_bytes=100, batch_size=1))
    assert [len(b.clients) for b in blocks] == [3, 3, 3, 1]  # 2 copies x 100 + 4 x 4 features x 4 bytes: 264 a client
    assert torch.equal(torch.cat([b.clients for b in blocks]), torch.arange(10))


class Residual(nn.Module):
    """Adds its input to what a layer made of it; a stack whose learners share the input cannot."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x + self.inner(x).relu())


class Centred(nn.Sequential):
    """Mixes the samples of a batch, without any layer that says so."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(4, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        centred: torch.Tensor = self[0](x - x.mean(dim=0))
        return centred


class Twice(nn.Module):
    """Two layers whose gradients torch hands out as one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.a(x) + self.b(x)


@pytest.mark.parametrize("kind", [DropoutNet, lambda: MLP((4,), 3, (8, 8)), Residual, Centred, Twice])
@pytest.mark.parametrize("n_components", [1, 3])
@pytest.mark.parametrize("batch_size", [4, 25])
def test_linear_networks_agree_however_they_are_stacked(
    kind: Callable[[], nn.Module], n_components: int, batch_size: int
) -> None:
    """The largest client is stepped alone at first: that its models agree does not show that clients do not mix."""
    data = make_data(sizes=(30, 12, 12, 11), fractions=(1.0, 0.0, 0.0))

    def trained(engine: Engine) -> torch.Tensor:
        torch.manual_seed(0)
        options: dict[str, Any] = {"client_optimizer": ClientSGD(lr=0.5, weight_decay=0.1), "batch_size": batch_size}
        model = FedEM(kind, 4, n_components, initialization="random", engine=engine, **options)
        return parameters(train(model, data, 3))

    assert relative_difference(trained(VmapEngine()), trained(LoopEngine())) <= 1e-9


def test_an_engine_that_two_models_share_stacks_the_network_of_each() -> None:
    data, shared, found = make_data(), VmapEngine(), []
    for engines in ((shared, shared), (VmapEngine(), VmapEngine())):
        torch.manual_seed(0)
        bodies = [nn.Sequential(nn.Linear(4, 5), layer, nn.Linear(5, 3)) for layer in (nn.ReLU(), nn.Tanh())]
        models = [
            train(FedAvg(body, 4, engine=engine, adaptation=Finetune()), data, 1)
            for body, engine in zip(bodies, engines, strict=True)
        ]
        make_trainer(0).test(models[0], data, verbose=False)
        found.append(models[0].clients.test_loss.to_numpy())
    np.testing.assert_array_equal(*found)
