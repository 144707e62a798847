"""A run, from a composed configuration to a finished folder."""

import functools
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
from hydra.utils import instantiate
from omegaconf import DictConfig
from pytorch_lightning.utilities import rank_zero_only

from fedem_lightning.algorithms import FederatedAlgorithm
from fedem_lightning.callbacks import FinishRoundOnInterrupt
from fedem_lightning.cohort import sampling_of
from fedem_lightning.data import FederatedDataModule
from fedem_lightning.errors import Interrupted, UserError
from fedem_lightning.processes import launch_settings, leave_processes
from fedem_lightning.run.announcing import announce, say
from fedem_lightning.run.building import build_callbacks, build_model, build_trainer, quieten_lightning
from fedem_lightning.run.devices import asked_processes, pick_devices, pick_precision, require_group
from fedem_lightning.run.failures import TRACE
from fedem_lightning.run.gate import check_configuration
from fedem_lightning.run.job_folders import PACKAGE, resume_command, run_command
from fedem_lightning.run.learning_rates import learning_rates, rate_line, to_tune
from fedem_lightning.run.metrics_file import rows_of
from fedem_lightning.run.own_targets import own_backbone, own_client_optimizers
from fedem_lightning.run.results import write_run
from fedem_lightning.run.resuming import (
    check_checkpoint,
    check_not_back,
    continued,
    find_checkpoint,
    rounds_of,
    save_config,
)
from fedem_lightning.run.run_folder import check_run_folder, finished_results, left_as_it_was, only_run_in
from fedem_lightning.run.stopping import StopSignals
from fedem_lightning.run.summary import print_result, print_summary, privacy_line
from fedem_lightning.run.trackers import Trackers
from fedem_lightning.startup.process import decide, is_worker_rank


def run(
    config: DictConfig,
    folder: Path,
    choices: Mapping[str, str],
    overrides: list[str],
    flags: Sequence[str] = (),
    module: str = PACKAGE,
) -> dict[str, Any]:
    """Trains, evaluates and reports.

    Args:
        config: the composed configuration.
        folder: the run's folder; it may exist, but must not hold another run.
        choices: choices of the groups algorithm, adaptation, dataset and backbone, by name; and the experiment, if any.
        overrides: overrides that the user typed.
        flags: options of Hydra, or of `module`, that the user typed.
        module: the command that the user has called.

    Returns:
        The content of results.json; empty in processes other than the first.

    Raises:
        UserError: the user's input is wrong; no file has been overwritten.
        Interrupted: Ctrl-C or SIGTERM has stopped the run.

    """
    start, launched_before = time.perf_counter(), launch_settings()
    quieten_lightning()
    choices = {**choices, **own_backbone(config, overrides)}
    own_client_optimizers(config, overrides)
    check_configuration(config)
    size = decide(asked_processes(config))
    resume = functools.partial(resume_command, folder, overrides, flags, module=module)
    with StopSignals(folder, resume) as stop, only_run_in(folder):
        finished = _finished_before(folder, config)
        if finished is not None:
            return finished
        checkpoint = find_checkpoint(config.ckpt_path, folder)
        check_not_back(folder, checkpoint, config)
        trackers = Trackers(config, folder, choices, overrides)
        pl.seed_everything(config.seed, verbose=False)
        data: FederatedDataModule = instantiate(config.dataset)
        model = build_model(config, data)
        model.statistics.begin(start)
        rates = learning_rates(config, choices, overrides, model)
        way_to_choose = to_tune(data, overrides, flags if module == PACKAGE else (), rates)
        if checkpoint is not None:
            check_checkpoint(checkpoint, model, data.federation)
            stop.resumed_rounds = rounds_of(checkpoint)
        title = config.algorithm.get("title")
        callbacks = [*build_callbacks(config, folder), trackers]
        picked = {"devices": pick_devices(config, model, data), "precision": pick_precision(config, model)}
        trainer = build_trainer(config, folder, callbacks, **picked)
        require_group(trainer, size)
        clients = data.federation.clients()
        private = _planned_privacy(model, len(clients), config.trainer.max_epochs) if checkpoint is None else None
        stop.listen_for(trainer)
        names = _names(config, choices) | {"command": run_command(overrides, flags, module)}
        names["learning_rates"] = [rate._asdict() for rate in rates]
        results: dict[str, Any] = {}
        with left_as_it_was(folder, lambda: model.statistics.rounds > stop.resumed_rounds):
            if trainer.is_global_zero:
                _begin_files(folder, config, overrides, trainer, stop.resumed_rounds)
                (folder / TRACE).unlink(missing_ok=True)  # of an earlier attempt
                announce(config, folder, model, data, trainer)
                if rates:
                    say(rate_line(rates, choices, way_to_choose))
                if private is not None:
                    say(f"planned {privacy_line(private, len(clients))}")
                if checkpoint is not None:
                    say(f"resumed from round {stop.resumed_rounds}: {checkpoint}")
            with _ended_together(trainer, trackers, stop, launched_before):
                _train_and_test(trainer, model, data, checkpoint, stop)
                stop.others_may_end()
                if trainer.is_global_zero:
                    results = _report(folder, model, data, trackers, names, title)
        return results


def _planned_privacy(model: FederatedAlgorithm, n_clients: int, rounds: int) -> dict[str, Any] | None:
    """What the planned rounds will have spent; None: no rule adds noise, or nobody knows their number (-1).

    The noise is chosen here, where it follows from an epsilon; what is refused is refused before the training.
    """
    planned = sampling_of(model, n_clients, rounds)
    model.aggregation.plan(planned)
    return model.aggregation.report(planned).get("privacy") if rounds > 0 else None


def _finished_before(folder: Path, config: DictConfig) -> dict[str, Any] | None:
    """The results of the run that the folder holds, if nothing is left of it to do.

    Raises:
        UserError: the folder holds another run.

    """
    if not is_worker_rank():
        check_run_folder(folder, config)
    finished = finished_results(folder, config)
    if finished is not None:
        rank_zero_only(print)(f"{folder}: finished after round {finished['rounds']}, nothing is left to do")
    return finished


def _begin_files(
    folder: Path, config: DictConfig, overrides: list[str], trainer: pl.Trainer, resumed_rounds: int
) -> None:
    """Prepares the files that grow with the rounds, and says by which configuration they do."""
    rows_of(trainer).begin(resumed_rounds)
    save_config(folder, config, overrides, resumed_rounds)


@contextmanager
def _ended_together(
    trainer: pl.Trainer, trackers: Trackers, stop: StopSignals, launched_before: tuple[dict[str, str], int]
) -> Iterator[None]:
    """Closes the trackers and leaves the group of processes, however the run ends.

    After a user error or a stop only the first process raises.
    """
    try:
        yield
    except BaseException as error:
        if not isinstance(error, Interrupted) or stop.at_once:  # else all have agreed to end after this round
            stop.end_other_processes()
        if trainer.is_global_zero or not isinstance(error, (UserError, Interrupted)):
            raise
        if stop.at_once:
            sys.exit(1)  # the first process may not have heard of the stop
    finally:
        trackers.close(sys.exception())
        leave_processes(launched_before)


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
    for part in (model, data):
        vars(part)["_log_hyperparams"] = False  # loggers get the configuration instead
    trainer.fit(model, data, ckpt_path=checkpoint, weights_only=True)
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        if isinstance(callback, FinishRoundOnInterrupt) and callback.interrupted:
            raise Interrupted(stop.message(callback.signal_name))
    trainer.loggers = []  # they have rounds only; the results follow
    trainer.test(model, data, verbose=False)


def _names(config: DictConfig, choices: Mapping[str, str]) -> dict[str, Any]:
    """What results.json says of the run's configuration."""
    names = {**choices, "experiment": choices.get("experiment"), "seed": config.seed}
    return names | {"fidelity": config.fidelity}


def _report(
    folder: Path,
    model: FederatedAlgorithm,
    data: FederatedDataModule,
    trackers: Trackers,
    names: dict[str, Any],
    title: str | None,
) -> dict[str, Any]:
    results, figures = write_run(folder, {**names, "continued": continued(folder)}, model, data.federation, title)
    trackers.report(results, model.clients, figures)
    print_summary(results, method=title)
    say(f"results, figures and checkpoints: {folder}")
    print_result(results, title)
    return results
