"""On how many processes a run trains, and what is said about long runs."""

import io
from typing import Any

import lightning_fabric
import pytest
import pytorch_lightning as pl
import torch
from omegaconf import OmegaConf

from fedem_lightning import APFL, CNN, MLP, ClientSGD, FedAvg, FedEM, FederatedDataModule
from fedem_lightning.algorithms.trainer_options import check_trainer
from fedem_lightning.callbacks import RoundProgress, progress
from fedem_lightning.errors import UserError
from fedem_lightning.run import devices
from fedem_lightning.run.devices import arithmetic, pick_accelerator, pick_devices
from helpers.federations import make_data, make_trainer


def images(n: int = 8) -> FederatedDataModule:
    x = torch.randn(n, 1, 28, 28).numpy()
    return FederatedDataModule.from_arrays(x, torch.arange(n).numpy() % 3, torch.arange(n).numpy() % 4, n_classes=3)


def chosen(engine: str, rounds: int, asked: Any = None, state: Any = "restart", **trainer: Any) -> Any:
    data = images()
    sgd = ClientSGD(lr=0.1, momentum=0.9, state=state)
    model = FedAvg(CNN(3), n_clients=4, engine=engine, client_optimizer=sgd)
    config = {"devices": asked, "accelerator": "cpu", "precision": "32-true", "max_epochs": rounds, **trainer}
    return pick_devices(OmegaConf.create({"trainer": config}), model, data)


def test_a_long_run_one_by_one_takes_a_process_a_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "cores", lambda: 3)
    long = 10**6
    assert (chosen("loop", long), chosen("loop", 1)) == (3, 1)
    assert (chosen("vmap", long), chosen("vmap", long, "auto")) == (1, 1)
    assert (chosen("loop", long, 1), chosen("loop", 1, 2), chosen("loop", 1, "auto")) == (1, 2, 3)
    assert chosen("loop", long, num_nodes=2) == 1
    assert chosen("loop", long, state="keep") == 3
    monkeypatch.setattr("fedem_lightning.models.client_store.MEMORY_LIMIT", 10**6)
    assert (chosen("loop", long, state="keep"), chosen("loop", long, "auto", state="keep")) == (1, 3)
    monkeypatch.setattr(devices, "cores", lambda: 16)
    assert chosen("loop", long) == 4  # clients of a round
    monkeypatch.setattr(devices, "_in_a_launchers_worker", lambda: True)
    assert (chosen("loop", long), chosen("loop", long, 2)) == (1, 2)


@pytest.mark.parametrize(("asked", "nodes"), [(99, 1), ("99", 1), (5, 1), (3, 2)])
def test_more_processes_than_clients_are_refused_before_they_start(asked: Any, nodes: int) -> None:
    n = int(asked) * nodes
    with pytest.raises(UserError, match=f"trainer.devices: {n} processes, but only 4 clients in a round"):
        chosen("loop", 1, asked, num_nodes=nodes)


def test_on_an_accelerator_it_is_one_unless_asked() -> None:
    assert (chosen("loop", 10**6, accelerator="gpu"), chosen("loop", 1, "auto", accelerator="gpu")) == (1, "auto")


def test_on_a_mac_auto_is_the_cpu_and_mps_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (pl.accelerators.mps, lightning_fabric.accelerators.mps):
        monkeypatch.setattr(module.MPSAccelerator, "is_available", staticmethod(lambda: True))
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(devices, "cores", lambda: 3)
    assert [pick_accelerator(OmegaConf.create({"trainer": {"accelerator": a}})) for a in ("auto", "cpu", "mps")] == [
        *("cpu", "cpu", "mps")
    ]
    assert chosen("loop", 10**6, accelerator="auto") == 3
    for accelerator in ("mps", "auto"):  # Lightning's auto takes it
        trainer = pl.Trainer(accelerator=accelerator, logger=False, enable_checkpointing=False)
        with pytest.raises(UserError, match=r"accelerator: a Mac's GPU \(mps\) has no float64, .* expected cpu"):
            check_trainer(trainer)


def test_arithmetic_by_hand() -> None:
    """A dense layer multiplies and adds once for each weight, and once more for each of two gradients."""
    data = make_data()
    n_train = int(data.federation.splits["train"].counts(data.federation.clients()).sum())
    network = MLP((4,), 3, hidden=(6,))
    each = 3 * 2 * (4 * 6 + 6 * 3)
    assert (
        arithmetic(FedEM(network, n_clients=4, n_components=2, local_epochs=3, initialization="random"), data)
        == each * 2 * 3 * n_train
    )
    assert arithmetic(APFL(network, n_clients=4), data) == each * 2 * n_train
    half = FedEM(network, n_clients=4, n_components=2, local_epochs=3, participation=0.5, initialization="random")
    assert arithmetic(half, data) == each * 3 * n_train


class Clock:
    """Seconds that pass by themselves: one at every look."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        self.now += 1.0
        return self.now


class Enough(pl.Callback):
    """Ends a run after its second round, however many it announces."""

    def on_train_epoch_end(self, trainer: pl.Trainer, _: pl.LightningModule) -> None:
        trainer.should_stop = trainer.current_epoch == 1


def shown(monkeypatch: pytest.MonkeyPatch, terminal: bool, rounds: int, engine: str) -> str:
    """What is printed if every step of a client takes a second."""
    monkeypatch.setattr(progress, "time", Clock())
    screen, data = io.StringIO(), make_data()
    bar = RoundProgress(file=screen, force_terminal=terminal, width=150)
    trainer = make_trainer(rounds, callbacks=[bar, Enough()], enable_progress_bar=True, limit_val_batches=0)
    model = FedAvg(MLP((4,), 3), n_clients=4, batch_size=1, engine=engine, local_epochs=3)
    trainer.fit(model, data)
    return screen.getvalue()


def test_the_extrapolation_is_about_right(monkeypatch: pytest.MonkeyPatch) -> None:
    """34 training samples, 3 passes, batches of 1: a round takes about as many seconds as it has steps."""
    line = shown(monkeypatch, False, 50, "loop").splitlines()[0]
    n_steps = 3 * sum(make_data().federation.splits["train"].counts(torch.arange(4)).tolist())
    value, unit = line.removeprefix("about ").split()[:2]
    seconds = float(value) * {"s": 1, "min": 60}[unit]
    assert seconds == pytest.approx(n_steps, rel=0.5)


def test_a_short_run_is_not_announced(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "evaluation apart" not in shown(monkeypatch, False, 2, "loop")


def test_a_long_round_is_heard_of_every_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [line for line in shown(monkeypatch, False, 1, "loop").splitlines() if line.startswith("  clients: ")]
    assert len(lines) == 1
    assert "% after 1." in lines[0]


@pytest.mark.parametrize("engine", ["loop", "vmap"])
def test_the_share_of_a_round_moves_within_clients(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    amounts: list[float] = []
    monkeypatch.setattr(RoundProgress, "advance", lambda self, amount: amounts.append(amount))
    shown(monkeypatch, True, 1, engine)
    assert sum(amounts) == pytest.approx(4)
    assert max(amounts) <= 1
    assert len(amounts) > 4
