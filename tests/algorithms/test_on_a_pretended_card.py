"""Every method on a device that is not the CPU: the CPU's bits, no mixed devices, and few waits of the CPU for it."""

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytorch_lightning as pl
import torch

from fedem_lightning import ClientSGD, FedEM, FederatedDataModule, LeNet5
from fedem_lightning.run.callbacks import RoundCheckpoint
from helpers.by_hand import ALL_TRAIN
from helpers.conformance import ROWS, Row
from helpers.every_method import A_FEW
from helpers.federations import make_trainer, train_and_test
from helpers.pretended_card import DEVICE, PretendedCard, card, card_trainer

SGD = ClientSGD(lr=0.5, momentum=0.9)

MOST_WAITS = {  # in a round after the first, of four clients in one block
    "Clustered": 39,
    "DFedEM": 22,
    "FedALA": 70,
    "FedAMP": 22,
    "FedAS": 28,
    "FedFOMO": 98,
    "FedPAC": 158,
    "FedProto": 23,
    "GPFL": 21,
    "MOCHA": 23,
    "MOON": 57,
    "Mapper": 20,
}
OTHERS = 20  # most waits of all other methods; FedAvg has 6


class Counts(pl.Callback):
    """Waits and kernels of every round."""

    def __init__(self, counted: PretendedCard) -> None:
        self.counted, self.waits, self.kernels = counted, [0], [0]

    def on_train_batch_start(self, *_: Any) -> None:
        self.waits[-1], self.kernels[-1] = self.counted.waits, self.counted.kernels

    def on_train_batch_end(self, *_: Any) -> None:
        self.waits[-1:] = [self.counted.waits - self.waits[-1], 0]
        self.kernels[-1:] = [self.counted.kernels - self.kernels[-1], 0]


def state_of(model: Any) -> dict[str, torch.Tensor]:
    """Its tensors on the CPU, copied."""
    return {name: tensor.detach().cpu().clone() for name, tensor in model.state_dict().items()}


def assert_same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    assert [name for name, tensor in expected.items() if not torch.equal(found[name], tensor)] == []


@A_FEW
def test_a_card_computes_the_cpus_bits_and_is_seldom_waited_for(row: Row) -> None:
    data = row.data()
    expected, model = (row.model(data, client_optimizer=SGD) for _ in range(2))
    train_and_test(expected, data, 2)
    with card() as counted:
        rounds = Counts(counted)
        trainer = card_trainer(2, callbacks=[rounds])
        trainer.fit(model, data)
        trainer.test(model, data, verbose=False)
        found = state_of(model)
    assert_same(found, state_of(expected))
    assert model.clients.test_loss.equals(expected.clients.test_loss)
    most = MOST_WAITS.get(row.kind.__name__, OTHERS) + 3 * ("personal" in row.options)  # reads and writes rows
    assert 0 < rounds.waits[1] <= most
    assert rounds.kernels[1] > 100


RESUMED = ("FedAvg", "Ditto", "Scaffold", "UserCentric", "DFedEM")


@pytest.mark.parametrize("name", ["FedEM", *(pytest.param(name, marks=pytest.mark.slow) for name in RESUMED)])
def test_a_run_on_a_card_goes_on_from_its_checkpoint(name: str, tmp_path: Path) -> None:
    row = next(row for row in ROWS if row.kind.__name__ == name)
    data = row.data()
    straight, second = (row.model(data, client_optimizer=SGD) for _ in range(2))
    with card():
        keep = RoundCheckpoint(1, keep=9, dirpath=tmp_path)
        card_trainer(2, callbacks=[keep], enable_checkpointing=True).fit(straight, data)
        card_trainer(2).fit(second, data, ckpt_path=tmp_path / "round-000001.ckpt", weights_only=True)
        found, expected = state_of(second), state_of(straight)
    assert_same(found, expected)


@pytest.mark.parametrize(("shape", "on_cpu", "on_card"), [((28, 28), 256, 4096), ((6,), 16384, 16384)])
def test_a_card_scores_large_parts_at_once(shape: tuple[int, ...], on_cpu: int, on_card: int) -> None:
    n = 20000
    x, y = np.zeros((n, *shape), dtype=np.float32), np.arange(n) % 2
    federation = FederatedDataModule.from_arrays(x, y, np.zeros(n, dtype=int), fractions=ALL_TRAIN).federation
    clients = torch.arange(1)
    assert len(next(federation.block(clients, "train").pieces()).index) == on_cpu
    with card():
        there = federation.to(DEVICE)
        assert len(next(there.block(clients.to(DEVICE), "train").pieces()).index) == on_card


def test_a_card_trains_the_components_of_a_convolution_together() -> None:
    """A third of the kernels of local steps for three components; equal to the CPU's but for the last bits."""
    rng = np.random.default_rng(0)
    x, y, client = rng.normal(size=(96, 1, 28, 28)), rng.integers(0, 5, 96), np.arange(96) % 4
    data = FederatedDataModule.from_arrays(x, y, client)
    found = {}
    for m in (1, 3):
        options: dict[str, Any] = {"initialization": "random", "client_optimizer": SGD, "batch_size": 16}
        make = functools.partial(LeNet5, data.n_outputs, data.in_shape)
        expected, model = (FedEM(make, data.n_clients, m, engine="vmap", **options) for _ in range(2))
        model.load_state_dict(expected.state_dict())
        make_trainer(2).fit(expected, data)
        with card() as counted:
            rounds = Counts(counted)
            card_trainer(2, callbacks=[rounds]).fit(model, data)
            state = state_of(model)
        found[m] = rounds.kernels[1]
        torch.testing.assert_close(state, state_of(expected), rtol=1e-9, atol=1e-12)
    assert found[3] < 1.5 * found[1]
