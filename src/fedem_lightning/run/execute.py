"""A run, from a composed configuration to a finished folder."""

import functools
import logging
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytorch_lightning as pl
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf, open_dict
from pytorch_lightning.loggers import Logger
from pytorch_lightning.utilities import rank_zero_only

from fedem_lightning.algorithms import FederatedAlgorithm
from fedem_lightning.algorithms.trainer_options import check_trainer
from fedem_lightning.callbacks import (
    FinishRoundOnInterrupt,
    LiveFigures,
    MappedCheckpoints,
    RoundCheckpoint,
    RoundProgress,
)
from fedem_lightning.data import FederatedDataModule
from fedem_lightning.errors import Interrupted, UserError, require, require_whole
from fedem_lightning.processes import launch_settings, leave_processes
from fedem_lightning.run import trackers
from fedem_lightning.run.devices import pick_devices
from fedem_lightning.run.figures import draw_figures, draw_rounds, run_title
from fedem_lightning.run.loggers import RoundCSVLogger
from fedem_lightning.run.mixture_weights import MixtureWeights
from fedem_lightning.run.results import SCHEMA_VERSION, run_results, save_results
from fedem_lightning.run.resuming import resume_command, run_command
from fedem_lightning.run.run_folder import (
    check_checkpoint,
    check_run_folder,
    find_checkpoint,
    finished_results,
    rounds_of,
    save_config,
)
from fedem_lightning.run.stopping import StopSignals
from fedem_lightning.run.summary import print_summary
from fedem_lightning.startup.rank import in_another_process


def run(
    config: DictConfig, folder: Path, choices: Mapping[str, str], overrides: list[str], flags: Sequence[str] = ()
) -> dict[str, Any]:
    """Trains, evaluates and reports.

    Args:
        config: the composed configuration.
        folder: the run's folder; it may exist, but must not hold another run.
        choices: choices of the groups algorithm, adaptation, dataset and backbone, by name; and the experiment, if any.
        overrides: overrides that the user typed.
        flags: options of Hydra that the user typed.

    Returns:
        The content of results.json; empty in processes other than the first.

    Raises:
        UserError: the user's input is wrong; no file has been overwritten.
        Interrupted: Ctrl-C or SIGTERM has stopped the run.

    """
    start, launched_before = time.perf_counter(), launch_settings()
    with StopSignals(folder, functools.partial(resume_command, folder, overrides, flags)) as stop:
        quieten_lightning()
        _check_settings(config)
        if not in_another_process():
            check_run_folder(folder, config)
        finished = finished_results(folder, config)
        if finished is not None:
            rank_zero_only(print)(f"{folder}: finished after round {finished['rounds']}, nothing is left to do")
            return finished
        checkpoint = find_checkpoint(config.ckpt_path, folder)
        pl.seed_everything(config.seed, verbose=False)
        data: FederatedDataModule = instantiate(config.dataset)
        model = build_model(config, data)
        model.statistics.begin(start)
        if checkpoint is not None:
            check_checkpoint(checkpoint, model, data.federation.digest())
            stop.resumed_rounds = rounds_of(checkpoint)
        callbacks = build_callbacks(config, folder, run_title({**choices, "seed": config.seed}))
        trainer = build_trainer(config, folder, callbacks, devices=pick_devices(config, model, data))
        stop.listen_for(trainer)
        if trainer.is_global_zero:
            save_config(folder, config, overrides)
            _announce(folder, model, data, trainer)
            _announce_rate(config, choices["algorithm"])
            if checkpoint is not None:
                print(f"resumed from round {stop.resumed_rounds}: {checkpoint}", flush=True)
        loggers = trainer.loggers[1:]  # beside metrics.csv
        for part in (model, data):
            vars(part)["_log_hyperparams"] = False  # loggers get the configuration instead
        try:
            if trainer.is_global_zero:
                trackers.begin(loggers, trackers.tracked(folder, config, choices, overrides, stop.resumed_rounds))
            _train_and_test(trainer, model, data, checkpoint, stop)
            if not trainer.is_global_zero:
                return {}
            names = {**choices, "experiment": choices.get("experiment"), "seed": config.seed}
            names |= {"fidelity": config.fidelity, "command": run_command(overrides, flags)}
            return _report(folder, model, data, loggers, names)
        except (UserError, Interrupted):
            stop.end_other_processes()
            if trainer.is_global_zero:
                raise
            return {}  # all processes end alike and the first reports why; after a failure here Lightning would kill it
        finally:
            if trainer.is_global_zero:
                trackers.close(loggers, sys.exception())
            leave_processes(launched_before)


def _check_settings(config: DictConfig) -> None:
    require_whole("seed", config.seed, at_least=0, below=2**32)
    require(config.fidelity in ("paper", "reference"), f"fidelity: expected paper or reference, got {config.fidelity}")
    require_whole("trainer.max_epochs", config.trainer.max_epochs, at_least=0)


def _announce(folder: Path, model: FederatedAlgorithm, data: FederatedDataModule, trainer: pl.Trainer) -> None:
    engine = model.resolve_engine(trainer.strategy.root_device)
    several = f", {trainer.world_size} processes" if trainer.world_size > 1 else ""
    print(f"{data.federation}; engine {engine.name} ({engine.reason}){several}; {folder}", flush=True)
    for name, store in model.client_stores().items():
        print(f"kept, {name}: {store}", flush=True)


def _announce_rate(config: DictConfig, name: str) -> None:
    """Says which learning rate a method has that would take the experiment's, if the experiment had one for it."""
    optimizer = config.algorithm.client_optimizer
    asks = f"learning_rates.{name}" in str(OmegaConf.to_container(optimizer, resolve=False))
    if asks and name not in config.learning_rates:
        print(f"clients' learning rate: {optimizer.lr:g}, {name}'s own: learning_rates has none for it", flush=True)


def _train_and_test(
    trainer: pl.Trainer,
    model: FederatedAlgorithm,
    data: FederatedDataModule,
    checkpoint: Path | None,
    stop: StopSignals,
) -> None:
    """Runs the remaining rounds, and then the test.

    Raises:
        Interrupted: the run was stopped by a signal, and has finished its round.

    """
    trainer.fit(model, data, ckpt_path=checkpoint, weights_only=True)
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        if isinstance(callback, FinishRoundOnInterrupt) and callback.interrupted:
            raise Interrupted(stop.message(callback.signal_name))
    trainer.loggers = []  # they have rounds only; the results follow
    trainer.test(model, data, verbose=False)


def build_model(config: DictConfig, data: FederatedDataModule) -> FederatedAlgorithm:
    """Builds the algorithm with its backbone, whose `in_shape` and `n_outputs` come from the data if they are null."""
    backbone_config = config.backbone.copy()
    with open_dict(backbone_config):
        for key in ("in_shape", "n_outputs"):
            if key in backbone_config and backbone_config[key] is None:
                value = getattr(data, key)
                backbone_config[key] = list(value) if isinstance(value, tuple) else value
    backbone = functools.partial(instantiate, backbone_config)  # makes each component separately
    model: FederatedAlgorithm = instantiate(
        config.algorithm,
        backbone=backbone,
        n_clients=data.n_clients,
        adaptation=instantiate(config.adaptation) if config.adaptation else None,
        engine=instantiate(config.engine),
        networks={str(name): instantiate(network) for name, network in (config.get("network") or {}).items()},
        seed=config.seed,
    )
    model.prepare_for(data.federation)
    return model


def build_callbacks(config: DictConfig, folder: Path, title: str = "") -> list[pl.Callback]:
    """Builds the configured callbacks, and the one that every run has; they save in the run's folder.

    Args:
        config: the composed configuration.
        folder: the run's folder.
        title: of the figures of the unfinished run.

    """
    callbacks = [instantiate(c) for c in (config.callbacks or {}).values() if c is not None]
    for callback in callbacks:
        if isinstance(callback, RoundCheckpoint) and callback.dirpath is None:
            callback.dirpath = folder / "checkpoints"
        if isinstance(callback, LiveFigures) and callback.draw is None:
            callback.draw = functools.partial(draw_rounds, folder, title)
    callbacks.append(MixtureWeights(folder / "mixture_weights.npz"))
    if config.trainer.get("enable_progress_bar") is False:
        callbacks = [c for c in callbacks if not isinstance(c, RoundProgress)]
    return callbacks


def build_trainer(config: DictConfig, folder: Path, callbacks: list[pl.Callback], devices: Any) -> pl.Trainer:
    """Builds Lightning's Trainer with the run's callbacks and loggers (always with metrics.csv)."""
    loggers: list[Logger] = [RoundCSVLogger(folder / "metrics.csv")]
    for options in (config.logger or {}).values():
        if options is not None:
            loggers.append(instantiate(options, save_dir=str(folder)))
    callbacks = [*callbacks, trackers.SendRounds()] if len(loggers) > 1 else callbacks
    trainer: pl.Trainer = instantiate(
        config.trainer,
        devices=devices,
        callbacks=callbacks,
        logger=loggers,
        plugins=[MappedCheckpoints()],
        default_root_dir=str(folder),
    )
    check_trainer(trainer)
    return trainer


def _report(
    folder: Path,
    model: FederatedAlgorithm,
    data: FederatedDataModule,
    loggers: Sequence[Logger],
    names: dict[str, Any],
) -> dict[str, Any]:
    results = {"schema_version": SCHEMA_VERSION, **names, **run_results(model, data.federation)}
    artifacts = model.artifacts(data.federation)
    if model.test_samples is not None:
        artifacts["test_samples"] = model.test_samples.arrays()
    figures = draw_figures(folder, results, model.clients, artifacts)
    results["seconds"]["total"] = model.statistics.total_seconds()
    save_results(folder, results, model.clients, artifacts)
    trackers.report(loggers, _outcome(folder, results, model, figures))
    print_summary(results)
    print(f"results, figures and checkpoints: {folder}")
    return results


def _outcome(folder: Path, results: dict[str, Any], model: FederatedAlgorithm, figures: list[Path]) -> trackers.Outcome:
    curves = folder / "metrics.csv"
    scores = trackers.best_and_last(pd.read_csv(curves)) if curves.exists() else {}
    files = [folder / "results.json", folder / "clients.parquet"]
    numbers = trackers.flat_numbers(results)
    return trackers.Outcome(results["rounds"], scores, numbers, model.clients, figures, files)


def quieten_lightning() -> None:
    """Switches off Lightning's lines about devices and the like."""
    for name in ("pytorch_lightning", "lightning_fabric", "lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    # Lightning 2.6 uses a name that torch 2.15 has renamed
    warnings.filterwarnings("ignore", message=".*LeafSpec.*is deprecated")
