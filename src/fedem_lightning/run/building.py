"""What a run consists of: the algorithm, its callbacks and the Trainer, made from a composed configuration."""

import functools
import logging
import os
import warnings
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
from hydra.utils import instantiate
from lightning_fabric.plugins.environments.lightning import LightningEnvironment
from omegaconf import DictConfig, OmegaConf, open_dict
from torch import nn

from fedem_lightning.aggregation import Aggregation, Mean
from fedem_lightning.algorithms import FederatedAlgorithm
from fedem_lightning.algorithms.trainer_options import check_trainer
from fedem_lightning.callbacks import MappedCheckpoints, RoundCheckpoint, RoundProgress
from fedem_lightning.callbacks.mixture_weights import SaveMixtureWeights
from fedem_lightning.data import FederatedDataModule
from fedem_lightning.records.recipes import remember
from fedem_lightning.run.devices import pick_accelerator
from fedem_lightning.run.metrics_file import RoundCSVLogger, SaveRow


def build_model(config: DictConfig, data: FederatedDataModule) -> FederatedAlgorithm:
    """Builds the algorithm with its backbone, whose `in_shape` and `n_outputs` come from the data if they are null."""
    backbone_config = config.backbone.copy()
    with open_dict(backbone_config):
        for key in ("in_shape", "n_outputs"):
            if key in backbone_config and backbone_config[key] is None:
                value = getattr(data, key)
                backbone_config[key] = list(value) if isinstance(value, tuple) else value
    backbone = functools.partial(_network, backbone_config)  # makes each component separately
    method = config.algorithm.copy()
    with open_dict(method):
        method.pop("title", None)  # of figures and tables
    model: FederatedAlgorithm = instantiate(
        method,
        backbone=backbone,
        n_clients=data.n_clients,
        adaptation=instantiate(config.adaptation) if config.get("adaptation") else None,
        engine=instantiate(config.engine),
        aggregation=_aggregation(config),
        compression=instantiate(config.compression) if config.get("compression") else None,
        faults=instantiate(config.faults) if config.get("faults") else None,
        networks={str(name): instantiate(network) for name, network in (config.get("network") or {}).items()},
        seed=config.seed,
    )
    model.remote = data.remote
    model.prepare_for(data.federation)
    return model


def _network(config: DictConfig) -> nn.Module:
    """The configured network. One of the user's class notes how it was made, so that checkpoints can say it."""
    network: nn.Module = instantiate(config)
    if not hasattr(network, "made_with") and not any(str(key).startswith("_") for key in config.keys() - {"_target_"}):
        arguments: dict[str, Any] = OmegaConf.to_container(config, resolve=True)  # type: ignore[assignment]
        remember(network, arguments.pop("_target_"), arguments)
    return network


def _aggregation(config: DictConfig) -> Aggregation:
    """The configured aggregation; the mean has no target, so that older runs without the group are its repetitions."""
    options = config.get("aggregation") or {}
    return instantiate(options) if "_target_" in options else Mean(**options)


def build_callbacks(config: DictConfig, folder: Path) -> list[pl.Callback]:
    """Builds the configured callbacks, and the one that every run has; they save in the run's folder.

    Args:
        config: the composed configuration.
        folder: the run's folder.

    """
    callbacks = [instantiate(c) for c in (config.get("callbacks") or {}).values() if c is not None]
    for callback in callbacks:
        if isinstance(callback, RoundCheckpoint) and callback.dirpath is None:
            callback.dirpath = folder / "checkpoints"
    callbacks += [SaveMixtureWeights(folder / "mixture_weights.npz"), SaveRow()]
    if config.trainer.get("enable_progress_bar") is False:
        callbacks = [c for c in callbacks if not isinstance(c, RoundProgress)]
    return callbacks


def build_trainer(config: DictConfig, folder: Path, callbacks: list[pl.Callback], **picked: Any) -> pl.Trainer:
    """Builds Lightning's Trainer with the run's callbacks, which writes metrics.csv.

    Args:
        config: the composed configuration.
        folder: the run's folder.
        callbacks: of the run.
        picked: what was picked for this machine, such as devices and precision.

    """
    trainer: pl.Trainer = instantiate(
        config.trainer,
        accelerator=pick_accelerator(config),
        **picked,
        callbacks=callbacks,
        logger=RoundCSVLogger(folder / "metrics.csv"),
        plugins=[MappedCheckpoints(), *_environment()],
        default_root_dir=str(folder),
    )
    check_trainer(trainer)
    return trainer


def _environment() -> list[LightningEnvironment]:
    """Under salloc or sbatch, of a process that `srun` has not started: it waits for no others."""
    launched = int(os.environ.get("SLURM_STEP_NUM_TASKS", 1)) > 1 or "TORCHELASTIC_RUN_ID" in os.environ
    return [] if launched or "SLURM_NTASKS" not in os.environ else [LightningEnvironment()]


def quieten_lightning() -> None:
    """Switches off Lightning's lines about devices and the like."""
    for name in ("pytorch_lightning", "lightning_fabric", "lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    # Lightning 2.6 uses a name that torch 2.15 has renamed
    warnings.filterwarnings("ignore", message=".*LeafSpec.*is deprecated")
    warnings.filterwarnings("ignore", message="GPU available but not used")  # whoever takes the CPU knows
    warnings.filterwarnings("ignore", message="The `srun` command is available")  # it was not used for this process
