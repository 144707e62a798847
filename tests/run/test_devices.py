"""On how many processes a run trains, and what is said about long runs."""

from typing import Any

import lightning_fabric
import pytest
import pytorch_lightning as pl
import torch
from omegaconf import OmegaConf

from fedem_lightning import CNN, FedAvg, FederatedDataModule
from fedem_lightning.module.trainer_options import check_trainer
from fedem_lightning.run.building import pick_accelerator, pick_devices
from fedem_lightning.settings.errors import UserError


def images(n: int = 8) -> FederatedDataModule:
    x = torch.randn(n, 1, 28, 28).numpy()
    return FederatedDataModule.from_arrays(x, torch.arange(n).numpy() % 3, torch.arange(n).numpy() % 4, n_classes=3)


def chosen(engine: str, asked: Any = 1, **trainer: Any) -> Any:
    model = FedAvg(CNN(3), n_clients=4, engine=engine)
    config = {"devices": asked, "accelerator": "cpu", **trainer}
    return pick_devices(OmegaConf.create({"trainer": config}), model, images())


@pytest.mark.parametrize(("asked", "nodes"), [("99", 1), (3, 2)])
def test_more_processes_than_clients_are_refused_before_they_start(asked: Any, nodes: int) -> None:
    n = int(asked) * nodes
    with pytest.raises(UserError, match=f"trainer.devices: {n} processes, but only 4 clients in a round"):
        chosen("loop", asked, num_nodes=nodes)


def test_on_an_accelerator_it_is_one_unless_asked() -> None:
    assert (chosen("loop", accelerator="gpu"), chosen("loop", "auto", accelerator="gpu")) == (1, "auto")


def test_on_a_mac_auto_is_the_cpu_and_mps_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (pl.accelerators.mps, lightning_fabric.accelerators.mps):
        monkeypatch.setattr(module.MPSAccelerator, "is_available", staticmethod(lambda: True))
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    assert [pick_accelerator(OmegaConf.create({"trainer": {"accelerator": a}})) for a in ("auto", "cpu", "mps")] == [
        *("cpu", "cpu", "mps")
    ]
    for accelerator in ("mps", "auto"):  # Lightning's auto takes it
        trainer = pl.Trainer(accelerator=accelerator, logger=False, enable_checkpointing=False)
        with pytest.raises(UserError, match=r"accelerator: a Mac's GPU \(mps\) has no float64, .* expected cpu"):
            check_trainer(trainer)
