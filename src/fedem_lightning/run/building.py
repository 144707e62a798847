"""What a run consists of: the algorithm, its callbacks and the Trainer, made from a composed configuration."""

import functools
import logging
import os
import pkgutil
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from hydra.utils import instantiate
from lightning_fabric.plugins.environments.lightning import LightningEnvironment
from omegaconf import DictConfig, OmegaConf, open_dict
from pytorch_lightning.accelerators import MPSAccelerator
from torch import nn

from fedem_lightning.data import FederatedDataModule
from fedem_lightning.data.federation import Federation
from fedem_lightning.data.randomness import share_of
from fedem_lightning.models.backbones.pretrained import Pretrained
from fedem_lightning.models.components import Backbone
from fedem_lightning.models.embedded import embedded
from fedem_lightning.module.algorithm import FederatedAlgorithm
from fedem_lightning.module.fitting import prepare
from fedem_lightning.module.trainer_options import check_trainer
from fedem_lightning.run.callbacks import MappedCheckpoints, RoundProgress
from fedem_lightning.run.trackers import MetricsFile
from fedem_lightning.settings.errors import require
from fedem_lightning.settings.keys import LOOKS
from fedem_lightning.settings.recipes import remember

GLOBAL_SAMPLES = 1000
"""Test samples of all clients on which each client's model is scored with `scores=global`."""


def with_features(config: DictConfig, data: FederatedDataModule) -> FederatedDataModule:
    """The data as clients train on them: where the body is frozen, its features in place of the samples."""
    network = config.backbone.copy()
    frozen = pkgutil.resolve_name(network["_target_"]) is Pretrained and network.get("trains", "head") == "head"
    if not frozen or data.remote is not None:
        return data
    with open_dict(network), torch.random.fork_rng(devices=[]):  # the components draw as they would without it
        network.n_outputs = network.get("n_outputs") or data.n_outputs
        device = torch.device("cpu") if on_cpu(config) else torch.accelerator.current_accelerator()
        return embedded(data, _network(network).to(device))  # type: ignore[arg-type]


def build_model(config: DictConfig, data: FederatedDataModule, given: Backbone | None = None) -> FederatedAlgorithm:
    """Builds the algorithm with its backbone, whose `in_shape` and `n_outputs` come from the data if they are null.

    A network that is `given` takes the place of the configured one.
    """
    network, method = config.backbone.copy(), config.algorithm.copy()
    with open_dict(network), open_dict(method):
        for key in ("in_shape", "n_outputs"):
            if key in network and network[key] is None:
                value = getattr(data, key)
                network[key] = list(value) if isinstance(value, tuple) else value
        for key in LOOKS:
            method.pop(key.removeprefix("algorithm."), None)
        if method.get("batch_size") == "auto":
            method.batch_size = _batch_size(data.federation)
    optional = ("adaptation", "aggregation", "compression", "faults")
    model: FederatedAlgorithm = instantiate(
        method,
        backbone=given or functools.partial(_network, network),  # makes each component separately
        n_clients=data.n_clients,
        engine=instantiate(config.engine),
        **{part: instantiate(config[part]) if config.get(part) else None for part in optional},
        seed=config.seed,
    )
    model.networks = {str(name): instantiate(part) for name, part in (config.get("network") or {}).items()}
    model.remote = data.remote
    model.global_samples = GLOBAL_SAMPLES if config.get("scores") == "global" else 0
    prepare(model, data.federation)
    return model


def _batch_size(federation: Federation) -> int:
    """A fifth of the median client's training samples, but 8 to 128: about five steps are a pass over its samples."""
    n_train = federation.splits["train"].counts(federation.clients())
    return min(128, max(8, round(float(n_train.median()) / 5)))


def _network(config: DictConfig) -> nn.Module:
    """The configured network. One of the user's class notes how it was made, so that checkpoints can say it."""
    network: nn.Module = instantiate(config)
    if not hasattr(network, "made_with") and not any(str(key).startswith("_") for key in config.keys() - {"_target_"}):
        arguments: dict[str, Any] = OmegaConf.to_container(config, resolve=True)  # type: ignore[assignment]
        remember(network, arguments.pop("_target_"), arguments)
    return network


def pick_accelerator(config: DictConfig) -> str:
    """The Trainer's accelerator: the CPU where auto would take a Mac's GPU, which has no float64."""
    accelerator = config.trainer.get("accelerator", "auto")
    return "cpu" if accelerator == "auto" and MPSAccelerator.is_available() else accelerator


def on_cpu(config: DictConfig) -> bool:
    """Whether the Trainer takes the CPU."""
    accelerator = pick_accelerator(config)
    return accelerator == "cpu" or (accelerator == "auto" and not torch.accelerator.is_available())


def pick_devices(config: DictConfig, model: FederatedAlgorithm, data: FederatedDataModule) -> Any:
    """The Trainer's devices; UserError: on a CPU there are more processes than clients in a round."""
    devices, n_nodes = config.trainer.devices, config.trainer.get("num_nodes", 1)
    if devices in (None, "auto") or not on_cpu(config) or model.remote is not None:
        return devices or 1
    n_clients = share_of(model.participation, len(data.federation.clients()))
    n = len(devices) if isinstance(devices, Sequence) and not isinstance(devices, str) else int(devices)
    fits = n * n_nodes <= n_clients or model.aggregation.samples_independently
    require(fits, f"trainer.devices: {n * n_nodes} processes, but only {n_clients} clients in a round")
    return devices


def build_trainer(config: DictConfig, folder: Path, devices: Any) -> pl.Trainer:
    """Builds Lightning's Trainer with the configured callbacks, and those that every run has; it writes metrics.csv."""
    callbacks = [instantiate(c) for c in (config.get("callbacks") or {}).values() if c is not None]
    if config.trainer.get("enable_progress_bar") is False:
        callbacks = [c for c in callbacks if not isinstance(c, RoundProgress)]
    if not config.trainer.get("fast_dev_run"):
        callbacks.append(MetricsFile(folder / "metrics.csv"))
    trainer: pl.Trainer = instantiate(
        config.trainer,
        accelerator=pick_accelerator(config),
        devices=devices,
        callbacks=callbacks,
        logger=False,
        plugins=[MappedCheckpoints(), *_environment()],
        default_root_dir=str(folder),
    )
    check_trainer(trainer)  # before a launcher starts processes
    return trainer


def _environment() -> list[LightningEnvironment]:
    """Under salloc or sbatch, of a process that `srun` has not started: it waits for no others."""
    launched = int(os.environ.get("SLURM_STEP_NUM_TASKS", 1)) > 1 or "TORCHELASTIC_RUN_ID" in os.environ
    return [] if launched or "SLURM_NTASKS" not in os.environ else [LightningEnvironment()]


def quieten() -> None:
    """Switches off Lightning's lines about devices and the like, and Hugging Face's bars and tables of weights."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    for name in ("pytorch_lightning", "lightning_fabric", "lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", message="GPU available but not used")  # whoever takes the CPU knows
    warnings.filterwarnings("ignore", message="The `srun` command is available")  # it was not used for this process
