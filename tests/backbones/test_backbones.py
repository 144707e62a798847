"""Every backbone: its size, and the same numbers from every engine."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedem_lightning import (
    CNN,
    LSTM,
    MLP,
    CharLSTM,
    ClientSGD,
    Engine,
    FedEM,
    FederatedDataModule,
    LeNet5,
    Linear,
    LoopEngine,
    MobileNetV2,
    ReferenceCNN,
    ResNet18,
    VmapEngine,
)
from fedem_lightning.data.federation import Federation
from fedem_lightning.data.samples import Windows
from fedem_lightning.data.tasks import Classification
from fedem_lightning.models.components import make_components
from helpers.federations import parameters, train

SIZES = [  # PAPERS: published or counted from the published layers
    (lambda: CNN(62), 1_206_590),
    (lambda: ReferenceCNN(62), 2_278_334),
    (lambda: LeNet5(62, (1, 28, 28)), 66_126),
    (lambda: LeNet5(10, (3, 32, 32)), 62_006),
    (lambda: LeNet5(10, (3, 32, 32), width=1.75), 187_495),
    (lambda: MobileNetV2(10), 2_236_682),
    (lambda: MobileNetV2(100), 2_351_972),
    (lambda: CharLSTM(80), 819_920),
    (lambda: CharLSTM(100), 825_220),
    (lambda: Linear((150,), 1), 151),
]


@pytest.mark.parametrize(("make", "size"), SIZES)
def test_number_of_parameters(make: Callable[[], nn.Module], size: int) -> None:
    assert sum(p.numel() for p in make().parameters()) == size


def images(channels: int, side: int, sizes: tuple[int, ...] = (9, 4, 7)) -> FederatedDataModule:
    """Clients whose last batch of four has one, four and three samples."""
    rng = np.random.default_rng(0)
    n = sum(sizes)
    shape = (n, side, side) if channels == 1 else (n, side, side, channels)
    data = FederatedDataModule.from_arrays(
        rng.integers(256, size=shape).astype(np.uint8),
        rng.integers(3, size=n),
        np.repeat(np.arange(len(sizes)), sizes),
        n_classes=3,
        fractions=(1.0, 0.0, 0.0),
    )
    return data


def characters() -> FederatedDataModule:
    rng = np.random.default_rng(0)
    start = np.array([0, 3, 6, 20, 24, 40])
    return FederatedDataModule(
        Federation.from_samples(
            Windows(torch.from_numpy(rng.integers(5, size=60).astype(np.uint8)), length=7),
            np.array([0, 0, 0, 1, 1, 2]),
            np.zeros(6, int),
            position=start,
            task=Classification(5, n_targets=7),
            names=["a", "b", "c"],
        )
    )


BACKBONES: dict[str, tuple[Callable[[], nn.Module], Callable[[], FederatedDataModule]]] = {
    "linear": (lambda: Linear((1, 8, 8), 3), lambda: images(1, 8)),
    "mlp": (lambda: MLP((1, 8, 8), 3), lambda: images(1, 8)),
    "cnn": (lambda: CNN(3, (1, 12, 12)), lambda: images(1, 12)),
    "cnn_reference": (lambda: ReferenceCNN(3, (1, 16, 16)), lambda: images(1, 16)),
    "lenet": (lambda: LeNet5(3, (1, 28, 28)), lambda: images(1, 28)),
    "mobilenet_v2": (lambda: MobileNetV2(3), lambda: images(3, 32)),
    "resnet18": (lambda: ResNet18(3), lambda: images(3, 16)),
    "lstm": (lambda: CharLSTM(5, hidden=6), characters),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name == "resnet18" else name for name in BACKBONES]
)
def test_every_engine_gives_the_same_numbers(name: str) -> None:
    make, make_data = BACKBONES[name]
    data, large = make_data(), name in ("mobilenet_v2", "resnet18")

    def trained(engine: Engine) -> tuple[torch.Tensor, str]:
        torch.manual_seed(0)
        optimizer = ClientSGD(lr=0.001, momentum=0.9)
        model = FedEM(make(), 3, 1 if large else 2, batch_size=4, client_optimizer=optimizer, engine=engine)
        train(model, data, 1 if large else 2)
        return parameters(model), model.local.engine.name

    expected, _ = trained(LoopEngine())
    found, ran = trained(VmapEngine())
    assert ran == "vmap"
    # MobileNet's 52 BatchNorms over few values magnify: a change of 1e-15 in its start comes out as 4e-7
    tolerance = 1e-5 if name == "mobilenet_v2" else 1e-9
    assert float((found - expected).norm() / expected.norm()) <= tolerance
    assert expected.isfinite().all()


def test_our_lstm_is_torchs() -> None:
    theirs = nn.LSTM(4, 6, num_layers=2, batch_first=True).double()
    x = torch.randn(3, 5, 4, dtype=torch.float64)
    expected, (h, c) = theirs(x)
    components: Any = make_components(nn.Sequential(theirs), 1, seed=0)
    ours = components[0][0]
    assert type(ours) is LSTM
    found, (h2, c2) = ours(x)
    for a, b in ((found, expected), (h2, h), (c2, c)):
        torch.testing.assert_close(a, b)
    torch.testing.assert_close(ours(x[0])[0], theirs(x[0])[0])
    started, _ = ours(x, (h, c))
    torch.testing.assert_close(started, theirs(x, (h, c))[0])
    assert type(make_components(nn.LSTM(4, 6, bidirectional=True), 1, seed=0)[0]) is nn.LSTM
