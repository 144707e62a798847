"""A run, from a composed configuration to a finished folder."""

import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
from hydra.utils import instantiate
from omegaconf import DictConfig
from pytorch_lightning.loggers import Logger
from pytorch_lightning.utilities import rank_zero_only

from fedem_lightning.data import FederatedDataModule
from fedem_lightning.evaluate.convergence import whole_run
from fedem_lightning.models.components import Backbone
from fedem_lightning.module.algorithm import FederatedAlgorithm
from fedem_lightning.module.round import sampling_of
from fedem_lightning.run import announcements, run_folder, trackers
from fedem_lightning.run.building import build_model, build_trainer, pick_devices, quieten, with_features
from fedem_lightning.run.callbacks import FinishRoundOnInterrupt
from fedem_lightning.run.command_line import resume_command, run_command
from fedem_lightning.run.gate import check_configuration, own_targets
from fedem_lightning.run.results import write_run
from fedem_lightning.run.summary import print_result, print_summary, privacy_line
from fedem_lightning.settings.errors import Interrupted, require
from fedem_lightning.settings.keys import dataset_name
from fedem_lightning.settings.startup import is_worker_rank
from fedem_lightning.state.processes import launch_settings, leave_processes

_PATIENCE = 10.0  # seconds that another process waits after an error: the first one says it, and ends the others


def run(
    config: DictConfig,
    folder: Path,
    choices: Mapping[str, str],
    overrides: list[str],
    flags: Sequence[str] = (),
    data: FederatedDataModule | None = None,
    network: Backbone | None = None,
) -> dict[str, Any]:
    """Trains, evaluates and reports; the user has typed `overrides`, and `flags` of Hydra, which made `choices`.

    `data` and `network` take the place of those that the configuration makes.

    It returns the content of results.json; {} in processes other than the first. UserError: the user's input is wrong,
    and no file has been overwritten; Interrupted: Ctrl-C or SIGTERM has stopped the run.
    """
    start = time.perf_counter()
    quieten()
    choices = {**choices, **own_targets(config, overrides)}
    check_configuration(config)
    with run_folder.only_run_in(folder):
        if not is_worker_rank():
            run_folder.check_run_folder(folder, config)
        if (finished := run_folder.finished_results(folder, config)) is not None:
            rank_zero_only(print)(f"{folder}: finished after round {finished['rounds']}, nothing is left to do")
            return finished
        checkpoint = run_folder.find_checkpoint(config.ckpt_path, folder)
        try:
            return _run(config, folder, choices, overrides, flags, checkpoint, start, data, network)
        except (KeyboardInterrupt, SystemExit):  # the latter is Lightning's answer to the former
            if is_worker_rank():
                return {}
            newest, command = run_folder.newest_checkpoint(folder), resume_command(folder, overrides, flags)
            if newest is None:
                raise Interrupted(f"stopped before the first checkpoint; start again with: {command}") from None
            raise Interrupted(f"stopped; continue after round {run_folder.rounds_of(newest)} with: {command}") from None
        except Exception:
            time.sleep(_PATIENCE if is_worker_rank() else 0)
            raise


def _run(
    config: DictConfig,
    folder: Path,
    choices: Mapping[str, str],
    overrides: list[str],
    flags: Sequence[str],
    checkpoint: Path | None,
    start: float,
    data: FederatedDataModule | None,
    network: Backbone | None,
) -> dict[str, Any]:
    pl.seed_everything(config.seed, verbose=False)
    data = with_features(config, instantiate(config.dataset)) if data is None else data
    model = build_model(config, data, network)
    model.statistics.begun = start
    rates = announcements.learning_rates(config, choices, overrides, model)
    lines = [announcements.rate_line(rates, choices, config, data, (overrides, flags))] if rates else []
    choices = {**choices, "dataset": dataset_name(choices["dataset"], data.federation.notes.get("source"))}
    done = 0 if checkpoint is None else run_folder.rounds_of(checkpoint)
    if checkpoint is None:
        lines += _planned_privacy(model, len(data.federation.clients()), config.trainer.max_epochs)
    else:
        run_folder.check_checkpoint(checkpoint, model, data.federation)
        enough = config.trainer.max_epochs == -1 or config.trainer.max_epochs >= done
        require(enough, f"trainer.max_epochs: expected at least {done}, the rounds of {checkpoint}")
        lines.append(f"resumed from round {done}: {checkpoint}")
    trainer = build_trainer(config, folder, pick_devices(config, model, data))
    single = is_worker_rank() and trainer.world_size == 1
    require(not single, "trainer.devices: several processes were started, and the run is for one; give their number")
    launched, before = launch_settings(), run_folder.held_files(folder)
    results: dict[str, Any] = {}
    loggers: list[Logger] = []
    writes = trainer.is_global_zero and not trainer.fast_dev_run  # type: ignore[attr-defined]
    try:
        if writes:
            run_folder.begin_folder(folder, config, overrides)
        if trainer.is_global_zero:
            print(*announcements.first_lines(config, folder, model, data, trainer), *lines, sep="\n", flush=True)
        for logger in trackers.begin_loggers(config, folder, choices):
            loggers.append(logger)
        trainer.loggers = loggers
        _train_and_test(trainer, model, data, checkpoint)
        if writes:
            names: dict[str, Any] = {**choices, "experiment": choices.get("experiment"), "seed": config.seed}
            names |= {"fidelity": config.fidelity, "command": run_command(overrides, flags)}
            names["learning_rates"] = [rate._asdict() for rate in rates]
            title = config.algorithm.get("title")
            results = write_run(folder, names, model, data.federation)
            trackers.report(loggers, model.clients)
            print_summary(results, method=title)
            print(*announcements.last_lines(results, folder), sep="\n")
            print_result(results, title)
    except BaseException:
        if trainer.is_global_zero and whole_run(model)[0].rounds <= done:
            run_folder.leave_folder(folder, before)
        raise
    finally:
        _end_other_processes(trainer)
        trackers.close(loggers, sys.exception())
        leave_processes(*launched)
    return results


def _planned_privacy(model: FederatedAlgorithm, n_clients: int, rounds: int) -> list[str]:
    """A line on what the planned rounds will have spent, if a rule adds noise, and their number is known (not -1).

    The noise is chosen here, where it follows from an epsilon; what is refused is refused before the training.
    """
    planned = sampling_of(model, n_clients, rounds)
    model.aggregation.plan(planned)
    private = model.aggregation.report(planned).get("privacy") if rounds > 0 else None
    return [] if private is None else [f"planned {privacy_line(private, n_clients)}"]


def _train_and_test(
    trainer: pl.Trainer, model: FederatedAlgorithm, data: FederatedDataModule, checkpoint: Path | None
) -> None:
    """Runs the remaining rounds, then the test; KeyboardInterrupt if a signal has stopped the run after a round."""
    model.says_unfinished = False  # the last lines do
    for part in (model, data):
        vars(part)["_log_hyperparams"] = False  # loggers get the configuration instead
    callbacks: list[pl.Callback] = trainer.callbacks  # type: ignore[attr-defined]
    stops = [callback for callback in callbacks if isinstance(callback, FinishRoundOnInterrupt)]
    try:
        trainer.fit(model, data, ckpt_path=checkpoint, weights_only=True)
    except Exception:
        if trainer.world_size > 1 and any(stop.asked for stop in stops):
            raise KeyboardInterrupt from None  # another process has ended first, and an exchange with it has failed
        raise
    if any(stop.interrupted for stop in stops):
        raise KeyboardInterrupt
    trainer.loggers = []  # they have rounds only
    trainer.test(model, data, verbose=False)


def _end_other_processes(trainer: pl.Trainer) -> None:
    """Ends those that Lightning has started. It would end this one as well, once it finds that they have failed."""
    processes = getattr(trainer.strategy.launcher, "procs", [])
    ended = list(processes)
    processes.clear()  # Lightning's own list
    for process in ended:
        process.kill()
        process.wait()
