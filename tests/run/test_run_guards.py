"""Details of runs and their results that other tests would let slip."""

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pytorch_lightning import Callback, LightningModule, Trainer

from fedem_lightning import ClientSGD, FedAvg, FedEM
from fedem_lightning.evaluate.component_diagnostics import recovery_scores
from fedem_lightning.run.callbacks import RoundCheckpoint
from fedem_lightning.run.execute import run
from fedem_lightning.run.results import run_results
from fedem_lightning.state.history import RoundMetrics
from fedem_lightning.state.processes import Processes
from helpers.commands import composed
from helpers.federations import make_data, make_model, make_trainer

# --- results of a run -------------------------------------------------------------------------------------------------


def test_group_accuracy_is_that_of_the_clients_that_train() -> None:
    """Three of four are right; neither of the two unseen ones is."""
    truth = {"group": np.array([0, 1, 0, 1, 0, 1])}
    seen = np.array([True, True, True, False, True, False])
    pi = np.array([[0.1, 0.9], [0.8, 0.2], [0.3, 0.7], [0.1, 0.9], [0.6, 0.4], [0.2, 0.8]])
    scores = recovery_scores(pi, None, truth, seen)
    assert scores == {"match": [1, 0], "group_accuracy": 0.75}


def test_components_are_judged_by_the_clients_that_train() -> None:
    """Component 1 is dead among them, though all unseen clients have it."""
    data = make_data(sizes=(30,) * 6, unseen_fraction=1 / 3)
    model, trainer = make_model(FedEM, data, n_components=2, client_optimizer=ClientSGD(lr=0.1)), make_trainer(1)
    trainer.fit(model, data)
    trainer.test(model, data, verbose=False)
    seen = data.federation.seen
    model.pi[seen] = torch.tensor([1.0, 0.0]).to(model.pi)
    model.pi[~seen] = torch.tensor([0.0, 1.0]).to(model.pi)
    components = run_results(model, data.federation)["components"]
    assert components["mean_weights"] == [1.0, 0.0]
    assert components["dead"] == [1]


# --- resumed runs -----------------------------------------------------------------------------------------------------


def test_training_seconds_are_saved_and_counted_on(tmp_path: Path) -> None:
    class Pause(Callback):
        """Something that takes time between two rounds."""

        def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
            time.sleep(0.5 if trainer.current_epoch == 1 else 0)

    data = make_data()
    callbacks = [Pause(), RoundCheckpoint(1, keep=9, dirpath=tmp_path)]
    trainer = make_trainer(4, callbacks=callbacks, enable_checkpointing=True)
    trainer.fit(make_model(FedAvg, data), data)
    path = tmp_path / "round-000002.ckpt"
    checkpoint = torch.load(path, weights_only=True)
    saved = checkpoint["statistics"]
    assert len(saved["round_seconds"]) == 2
    before = torch.load(tmp_path / "round-000001.ckpt", weights_only=True)["statistics"]["training_seconds"]
    assert saved["training_seconds"] - before >= saved["round_seconds"][1] + 0.5  # rounds, and what lies between them
    saved["training_seconds"] = 1e6
    torch.save(checkpoint, path)
    resumed = make_model(FedAvg, data)
    make_trainer(4).fit(resumed, data, ckpt_path=path, weights_only=True)
    assert len(resumed.statistics.round_seconds) == 4
    assert resumed.statistics.training_seconds >= 1e6 + sum(resumed.statistics.round_seconds[2:])


def test_a_resumed_run_does_only_the_rounds_that_are_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = ["dataset.n_clients=4", "dataset.dimension=5", "dataset.test_size=9", "algorithm=fedavg"]
    small += ["callbacks.checkpoint.every_n_rounds=1", "trainer.accelerator=cpu"]
    done: list[int] = []
    step = FedAvg.training_step

    def counted(model: FedAvg, *arguments: Any) -> None:
        done.append(model.current_epoch)
        step(model, *arguments)

    monkeypatch.setattr(FedAvg, "training_step", counted)
    choices = {"algorithm": "fedavg", "adaptation": "none", "dataset": "synthetic", "backbone": "linear"}
    for rounds, more in ((2, []), (3, ["ckpt_path=auto"])):
        run(composed(*small, *more, f"trainer.max_epochs={rounds}"), tmp_path / "run", choices, [])
    assert done == [0, 1, 2]


# --- processes --------------------------------------------------------------------------------------------------------


class WithAnother(Processes):
    """Two processes, the other of which has gathered `other`."""

    def __init__(self, other: list[Any]) -> None:
        super().__init__(rank=0, size=2)
        self.other = other

    def sum(self, tensors: Any) -> None:
        for tensor in tensors:
            tensor += torch.tensor(self.other, dtype=tensor.dtype)


def test_metrics_are_means_over_the_samples_of_all_processes() -> None:
    metrics = RoundMetrics()
    metrics.add("objective", torch.tensor([1.0, 2.0]))
    metrics.add("gap", torch.tensor([5.0]))
    metrics.add("objective", torch.tensor([3.0]))
    metrics.reduce(WithAnother([[14.0, 2], [1.0, 3]]), torch.device("cpu"))  # sums, numbers of samples
    assert metrics.means() == {"objective": 20 / 5, "gap": 6 / 4}
