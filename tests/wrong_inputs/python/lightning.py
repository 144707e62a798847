"""What users of Lightning try: data for the Trainer, its options, callbacks, resumes, calls of the model."""

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
from pytorch_lightning import callbacks as cb
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from fedem_lightning import FedAvg, FedEM, FederatedDataModule, Local
from fedem_lightning.callbacks import RoundCheckpoint
from helpers.federations import make_data, make_trainer
from wrong_inputs.python.call import Call
from wrong_inputs.python.parts import T, data, network, rows, saved, trained, vector

STAGES = ("fit", "validate", "test", "predict")


class Plain(pl.LightningDataModule):
    """A data module of batches."""

    def _loader(self) -> DataLoader[Any]:
        return loader()

    train_dataloader = val_dataloader = test_dataloader = predict_dataloader = _loader


def loader(batch_size: int = 4) -> DataLoader[Any]:
    """Batches of (x, y)."""
    x, y = rows(8)
    return DataLoader(TensorDataset(torch.from_numpy(x).float(), torch.from_numpy(y)), batch_size=batch_size)


EXPECTED = "expected a FederatedDataModule"
DATA: dict[str, tuple[Callable[[], Any], str]] = {
    "a loader": (loader, EXPECTED),
    "a loader of one batch": (lambda: loader(8), EXPECTED),
    "an empty loader": (lambda: DataLoader([]), EXPECTED),
    "a list of loaders": (lambda: [loader(), loader()], EXPECTED),
    "a dict of loaders": (lambda: {"a": loader(), "b": loader()}, EXPECTED),
    "a data module of batches": (Plain, EXPECTED),
    "a data set": (lambda: loader().dataset, EXPECTED),
    "arrays": (rows, EXPECTED),
    "an array": (lambda: rows()[0], EXPECTED),
    "a tensor": (lambda: torch.zeros(4, 4), EXPECTED),
    "a text": (lambda: "data.npz", EXPECTED),
    "a number": (lambda: 3, EXPECTED),
    "a federation": (lambda: data().federation, EXPECTED),
    "a list of federations": (lambda: [data().federation, data().federation], EXPECTED),
    "a list of data modules": (lambda: [data(), data()], EXPECTED),
    "an iterator": (lambda: iter([1, 2]), EXPECTED),
    "a class": (lambda: FederatedDataModule, EXPECTED),
    "a function": (lambda: data, EXPECTED),
    "nothing": (lambda: None, ""),
    "of fewer clients": (lambda: make_data(sizes=(12, 12)), "n_clients: the model was made for 4 clients"),
    "of other features": (lambda: make_data(sizes=(12,) * T, n_features=5), "backbone: it does not take samples"),
    "of other classes": (lambda: make_data(sizes=(12,) * T, n_classes=5), "backbone: Classification needs 5 outputs"),
    "of another task": (lambda: make_data(sizes=(12,) * T, n_classes=2, task="binary"), "backbone"),
    "a regression": (lambda: make_data(sizes=(12,) * T, task="regression"), "backbone"),
}
OPTIONS: dict[str, tuple[dict[str, Any], str | None]] = {
    "limit_train_batches=0.5": ({"limit_train_batches": 0.5}, "limit_train_batches"),
    "limit_val_batches=3": ({"limit_val_batches": 3}, "limit_val_batches"),
    "limit_test_batches=0": ({"limit_test_batches": 0}, "limit_test_batches"),
    "overfit_batches=1": ({"overfit_batches": 1}, "overfit_batches"),
    "gradient_clip_val=1": ({"gradient_clip_val": 1.0}, "gradient_clip_val"),
    "gradient_clip_algorithm": ({"gradient_clip_val": 1.0, "gradient_clip_algorithm": "value"}, "gradient_clip_val"),
    "accumulate_grad_batches=2": ({"accumulate_grad_batches": 2}, "accumulate_grad_batches"),
    "max_steps=2": ({"max_steps": 2}, "max_steps"),
    "max_steps=0": ({"max_steps": 0}, "max_steps"),
    "min_steps=2": ({"min_steps": 2}, "min_steps"),
    "fast_dev_run=3": ({"fast_dev_run": 3}, "fast_dev_run"),
    "val_check_interval=0.5": ({"val_check_interval": 0.5, "limit_val_batches": 1}, "val_check_interval"),
    "val_check_interval=5": ({"val_check_interval": 5, "limit_val_batches": 1}, ""),
    "check_val_every_n_epoch=0": ({"check_val_every_n_epoch": 0, "limit_val_batches": 1}, "check_val_every_n_epoch"),
    "check_val_every_n_epoch=0.5": (
        {"check_val_every_n_epoch": 0.5, "limit_val_batches": 1},
        "check_val_every_n_epoch",
    ),
    "precision=16": ({"precision": "16-mixed"}, None),
    "precision=bf16-true": ({"precision": "bf16-true"}, "precision"),
    "precision=16-true": ({"precision": "16-true"}, "precision"),
    "accelerator=no_such": ({"accelerator": "no_such"}, "accelerator"),
    "accelerator=cuda": ({"accelerator": "cuda"}, ""),
    "devices=0": ({"devices": 0}, "devices"),
    "devices=-2": ({"devices": -2}, "devices"),
    "strategy=no_such": ({"strategy": "no_such"}, "strategy"),
    "strategy=fsdp": ({"strategy": "fsdp"}, ""),
    "strategy=deepspeed": ({"strategy": "deepspeed"}, ""),
    "profiler=no_such": ({"profiler": "no_such"}, "profiler"),
    "max_epochs=-5": ({"max_epochs": -5}, "max_epochs"),
    "max_time": ({"max_time": "00:00:00:30"}, None),
    "deterministic": ({"deterministic": True}, None),
    "benchmark": ({"benchmark": False}, None),
    "detect_anomaly": ({"detect_anomaly": True}, None),
    "inference_mode=False": ({"inference_mode": False}, None),
    "reload_dataloaders": ({"reload_dataloaders_every_n_epochs": 1}, None),
    "use_distributed_sampler": ({"use_distributed_sampler": True}, None),
    "profiler=simple": ({"profiler": "simple"}, None),
    "num_sanity_val_steps=2": ({"num_sanity_val_steps": 2, "limit_val_batches": 1}, None),
    "enable_model_summary": ({"enable_model_summary": True}, None),
    "fast_dev_run=True": ({"fast_dev_run": True}, None),
    "precision=64": ({"precision": 64}, None),
    "precision=bf16": ({"precision": "bf16-mixed"}, None),
    "min_epochs": ({"min_epochs": 2}, None),
    "log_every_n_steps=1": ({"log_every_n_steps": 1}, None),
    "barebones": ({"barebones": True}, None),
}
"""Options, and what is said of them; None: they work."""


class Finetuning(cb.BaseFinetuning):
    """Freezes the components for a round."""

    def freeze_before_training(self, pl_module: pl.LightningModule) -> None:
        self.freeze(pl_module.components)

    def finetune_function(self, pl_module: pl.LightningModule, epoch: int, optimizer: Any) -> None:
        self.unfreeze_and_add_param_group(pl_module.components, optimizer)


class Writer(cb.BasePredictionWriter):
    """Keeps predictions."""

    def write_on_epoch_end(self, trainer: Any, pl_module: Any, predictions: Any, batch_indices: Any) -> None:
        self.found = predictions


class Quantization(pl.Callback):
    """A callback under the name that Lightning had."""


Quantization.__name__ = "QuantizationAwareTraining"
CALLBACKS: dict[str, tuple[Callable[[Path], Any], str | None]] = {
    "ModelPruning": (lambda _: cb.ModelPruning("l1_unstructured", amount=0.5), "ModelPruning"),
    "ModelPruning, ln": (lambda _: cb.ModelPruning("random_unstructured", amount=2), "ModelPruning"),
    "BackboneFinetuning": (lambda _: cb.BackboneFinetuning(1), "BackboneFinetuning"),
    "BaseFinetuning": (lambda _: Finetuning(), "BaseFinetuning"),
    "StochasticWeightAveraging": (lambda _: cb.StochasticWeightAveraging(0.1), "StochasticWeightAveraging"),
    "GradientAccumulationScheduler": (lambda _: cb.GradientAccumulationScheduler({0: 2}), "GradientAccumulation"),
    "LearningRateFinder": (lambda _: cb.LearningRateFinder(), "LearningRateFinder"),
    "BatchSizeFinder": (lambda _: cb.BatchSizeFinder(), "BatchSizeFinder"),
    "WeightAveraging": (lambda _: cb.WeightAveraging(), "WeightAveraging"),
    "EMAWeightAveraging": (lambda _: cb.EMAWeightAveraging(), "WeightAveraging"),
    "QuantizationAwareTraining": (lambda _: Quantization(), "QuantizationAwareTraining"),
    "EarlyStopping of nothing": (lambda _: cb.EarlyStopping("no_such"), "no_such"),
    "EarlyStopping": (lambda _: cb.EarlyStopping("val_loss"), None),
    "ModelCheckpoint": (lambda folder: cb.ModelCheckpoint(folder), None),
    "ModelCheckpoint, best": (lambda folder: cb.ModelCheckpoint(folder, monitor="val_loss"), None),
    "ModelCheckpoint of nothing": (lambda folder: cb.ModelCheckpoint(folder, monitor="no_such"), "no_such"),
    "ModelCheckpoint by steps": (lambda folder: cb.ModelCheckpoint(folder, every_n_train_steps=1), None),
    "OnExceptionCheckpoint": (lambda folder: cb.OnExceptionCheckpoint(folder), None),
    "LearningRateMonitor": (lambda _: cb.LearningRateMonitor(), ""),  # without a logger
    "DeviceStatsMonitor": (lambda _: cb.DeviceStatsMonitor(), ""),
    "Timer": (lambda _: cb.Timer("00:00:01:00"), None),
    "Timer by steps": (lambda _: cb.Timer("00:00:01:00", interval="step"), None),
    "ThroughputMonitor": (lambda _: cb.ThroughputMonitor(lambda batch: 1), None),
    "LambdaCallback": (lambda _: cb.LambdaCallback(on_train_epoch_end=lambda *_: None), None),
    "ModelSummary": (lambda _: cb.ModelSummary(2), None),
    "RichModelSummary": (lambda _: cb.RichModelSummary(), None),
    "prediction writer": (lambda _: Writer("epoch"), None),
    "RoundCheckpoint": (lambda folder: RoundCheckpoint(1, dirpath=folder), None),
    "TQDMProgressBar": (lambda _: cb.TQDMProgressBar(), ""),  # with progress bars off
}
"""Lightning's callbacks, and what is said of them; None: they work."""


def _stage(stage: str, make: Callable[[], Any], _: Path) -> Any:
    return getattr(make_trainer(1, "32-true", limit_val_batches=1), stage)(FedAvg(network(), T), make())


def _options(options: dict[str, Any], _: Path) -> bool:
    torch.manual_seed(0)
    model = FedAvg(network(), T)
    before = vector(model)
    quiet: dict[str, Any] = {} if "barebones" in options else {"logger": False, "enable_checkpointing": False}
    quiet |= {} if "barebones" in options else {"enable_progress_bar": False, "enable_model_summary": False}
    every = {"max_epochs": 1, "accelerator": "cpu", "limit_val_batches": 0, **quiet, **options}
    pl.Trainer(**every).fit(model, data())
    return bool((vector(model) != before).any())


def _callback(kind: type, make: Callable[[Path], Any], folder: Path) -> bool:
    torch.manual_seed(0)
    model, plain = (kind(network(), T) for _ in range(2))
    make_trainer(3, "32-true").fit(plain, data())
    options = {"enable_checkpointing": True, "limit_val_batches": 1}
    make_trainer(3, "32-true", callbacks=[make(folder)], **options).fit(model, data())
    return bool((vector(model) == vector(plain)).all())


def calls() -> Iterator[Call]:
    """All of them."""
    for stage in STAGES:
        for name, (make, says) in DATA.items():
            yield Call(f"data/{stage}/{name}", functools.partial(_stage, stage, make), says=says)
    for name, (options, told) in OPTIONS.items():
        act = functools.partial(_options, options)
        yield Call(f"trainer/{name}", act, says=told, right=lambda trained: trained)
    for kind in (FedAvg, Local):
        for name, (callback, told) in CALLBACKS.items():
            act = functools.partial(_callback, kind, callback)
            yield Call(f"callbacks/{kind.__name__}/{name}", act, says=told, right=lambda equal: equal)
    for name, (call, told) in _calls().items():
        yield Call(f"hooks/{name}", call, says=told)


def _resume(folder: Path, kind: type, given: Any, **options: Any) -> None:
    make_trainer(2, "32-true").fit(kind(network(), T, **options), data(), ckpt_path=given, weights_only=True)


def _text(folder: Path) -> Path:
    path = folder.parent / f"{folder.name}.ckpt"
    path.write_text("hello")
    return path


def _calls() -> dict[str, tuple[Callable[[Path], Any], str | None]]:
    """Single ones: (the call, what it says; None: it works)."""
    x, _ = rows()
    fresh: Callable[[], Any] = lambda: FedAvg(network(), T)  # noqa: E731
    return {
        "model(x)": (lambda _: trained()(torch.zeros(2, 4)), "model(x)"),
        "model()": (lambda _: trained()(), "model(x)"),
        "predict(x)": (lambda _: trained().predict(x), "predict"),
        "predict(tensor)": (lambda _: trained().predict(torch.zeros(2, 4)), "predict"),
        "predict(federation)": (lambda _: trained().predict(data().federation), "predict"),
        "predict(None)": (lambda _: trained().predict(None), "predict"),
        "fit without data": (lambda _: make_trainer(1).fit(fresh()), ""),
        "fit without model": (lambda _: make_trainer(1).fit(None, data()), ""),
        "fit of a class": (lambda _: make_trainer(1).fit(FedAvg, data()), ""),
        "fit of the network": (lambda _: make_trainer(1).fit(network(), data()), ""),
        "fit with both": (lambda _: make_trainer(1).fit(fresh(), loader(), datamodule=data()), ""),
        "fit, the wrong way round": (lambda _: make_trainer(1).fit(data(), fresh()), ""),
        "validate with another loader": (
            lambda _: make_trainer(1, limit_val_batches=1).fit(fresh(), data(), loader()),
            "",
        ),
        "resume from nowhere": (lambda folder: _resume(folder, FedAvg, folder / "no.ckpt"), "no.ckpt"),
        "resume from a folder": (lambda folder: _resume(folder, FedAvg, folder), "ckpt_path"),
        "resume from a text": (lambda folder: _resume(folder, FedAvg, _text(folder)), "ckpt_path"),
        "resume, another method": (lambda _: _resume(_, FedEM, _saved()), "was written by FedAvg"),
        "resume, last": (lambda _: _resume(_, FedAvg, "last"), None),
        "resume, best": (lambda _: _resume(_, FedAvg, "best"), ""),
        "resume, hpc": (lambda _: _resume(_, FedAvg, "hpc"), ""),
        "test, best": (lambda _: make_trainer(1).test(fresh(), data(), ckpt_path="best"), ""),
        "resume, a number": (lambda _: _resume(_, FedAvg, 3), "ckpt_path"),
        "to_onnx": (lambda _: trained().to_onnx(_ / "a.onnx", torch.zeros(1, 4)), "to_onnx"),
        "to_torchscript": (lambda _: trained().to_torchscript(), "to_torchscript"),
        "torch.compile": (
            lambda _: make_trainer(1, "32-true").fit(torch.compile(fresh(), backend="eager"), data()),
            "torch.compile",
        ),
        "example_input_array": (lambda _: _with_example(fresh()), ""),
        "freeze": (lambda _: _frozen(fresh()), ""),
        "eval": (lambda _: make_trainer(1, "32-true").fit(fresh().eval(), data()), None),
        "half": (lambda _: make_trainer(1, "32-true").fit(fresh().half(), data()), None),
        "double": (lambda _: make_trainer(1, "32-true").fit(fresh().double(), data()), None),
        "no_grad": (lambda _: torch.no_grad()(lambda: make_trainer(1, "32-true").fit(fresh(), data()))(), None),
        "inference_mode": (lambda _: torch.inference_mode()(lambda: make_trainer(1).fit(fresh(), data()))(), ""),
        "components replaced": (lambda _: _replaced(fresh()), ""),
        "numpy seed": (lambda _: FedAvg(network(), np.int64(T), seed=np.int64(3)), None),
    }


@functools.cache
def _saved() -> Path:
    import tempfile

    return saved(Path(tempfile.mkdtemp(prefix="python-call-")))


def _with_example(model: Any) -> None:
    model.example_input_array = torch.zeros(1, 4)
    make_trainer(1, "32-true", enable_model_summary=True).fit(model, data())


def _frozen(model: Any) -> None:
    model.freeze()
    make_trainer(1, "32-true").fit(model, data())


def _replaced(model: Any) -> None:
    model.components = nn.ModuleList([nn.Linear(4, 2)])
    make_trainer(1, "32-true").fit(model, data())
