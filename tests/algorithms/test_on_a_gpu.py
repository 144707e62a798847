"""Every method on a GPU: the numbers of the CPU, the same bits twice, and a run that goes on from its checkpoint."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from fedem_lightning import CNN, ClientSGD, FedAvg, FedEM, FederatedDataModule
from fedem_lightning.run.callbacks import RoundCheckpoint
from helpers.conformance import Noisy, Row
from helpers.every_method import EVERY
from helpers.federations import make_data, make_trainer, parameters, train_and_test

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")

SGD = ClientSGD(lr=0.5, momentum=0.9)
SCORES = ["train_loss", "test_loss", "test_accuracy"]


def run(model: Any, data: FederatedDataModule, accelerator: str, **options: Any) -> tuple[torch.Tensor, pd.DataFrame]:
    """Two rounds and a test: everything the model holds, as float64 on the CPU, and the clients' scores."""
    train_and_test(model, data, 2, accelerator=accelerator, devices=1, **options)
    return parameters(model).cpu(), model.clients[SCORES]


def assert_close(found: tuple[torch.Tensor, pd.DataFrame], expected: tuple[torch.Tensor, pd.DataFrame]) -> None:
    torch.testing.assert_close(found[0], expected[0], rtol=1e-8, atol=1e-9)
    pd.testing.assert_frame_equal(found[1], expected[1], rtol=1e-8, atol=1e-9)


@EVERY
def test_a_gpu_computes_what_the_cpu_does(row: Row) -> None:
    data = row.data()
    expected = run(row.model(data, client_optimizer=SGD), data, "cpu")
    found = run(row.model(data, client_optimizer=SGD), data, "cuda")
    assert_close(found, expected)
    again = run(row.model(data, client_optimizer=SGD), data, "cuda")
    assert torch.equal(again[0], found[0])
    assert again[1].equals(found[1])


@EVERY
def test_a_run_on_a_gpu_goes_on_from_its_checkpoint(row: Row, tmp_path: Path) -> None:
    data, gpu = row.data(), {"accelerator": "cuda", "devices": 1}
    straight, second = (row.model(data, client_optimizer=SGD) for _ in range(2))
    keep = RoundCheckpoint(1, keep=9, dirpath=tmp_path)
    make_trainer(2, callbacks=[keep], enable_checkpointing=True, **gpu).fit(straight, data)
    make_trainer(2, **gpu).fit(second, data, ckpt_path=tmp_path / "round-000001.ckpt", weights_only=True)
    assert torch.equal(parameters(second), parameters(straight))


@pytest.mark.parametrize("engine", ["loop", "vmap"])
def test_engines_on_a_gpu_agree_with_the_cpu_on_noisy_networks(engine: str) -> None:
    data = make_data()
    torch.manual_seed(0)
    network = Noisy()
    made = [FedEM(network, data.n_clients, client_optimizer=SGD, batch_size=4, engine=engine) for _ in range(2)]
    assert_close(run(made[1], data, "cuda"), run(made[0], data, "cpu"))


@pytest.mark.parametrize("engine", ["loop", "vmap"])
def test_engines_on_a_gpu_agree_with_the_cpu_on_convolutions(engine: str) -> None:
    x = torch.randn(60, 1, 28, 28).numpy()
    data = FederatedDataModule.from_arrays(x, torch.arange(60).numpy() % 3, torch.arange(60).numpy() % 4, n_classes=3)
    torch.manual_seed(0)
    network, slow = CNN(3), ClientSGD(lr=0.05)
    made = [FedAvg(network, data.n_clients, client_optimizer=slow, batch_size=8, engine=engine) for _ in range(2)]
    assert_close(run(made[1], data, "cuda"), run(made[0], data, "cpu"))
