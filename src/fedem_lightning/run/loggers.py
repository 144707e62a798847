"""Loggers: metrics.csv for every run; Weights & Biases, TensorBoard and MLflow on request."""

import importlib.util
import os
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
from lightning_fabric.utilities.apply_func import convert_tensors_to_scalars
from pytorch_lightning.loggers import Logger
from pytorch_lightning.utilities import rank_zero_only

from fedem_lightning.errors import UserError
from fedem_lightning.run.metrics_file import MetricsFile


class RoundCSVLogger(Logger):
    """Writes metrics.csv with one row for each round; a resumed run replaces the rows that it computes again.

    Scores of `Trainer.validate` and `Trainer.test` belong to no round and are left out.

    Args:
        path: the .csv file. A cell is empty if the metric was not computed in that round.

    """

    def __init__(self, path: str | Path) -> None:
        super().__init__()
        self.path = Path(path)
        self._file = MetricsFile(self.path)
        self._unsaved: dict[int, dict[str, Any]] = {}  # cells by round
        self._begun = False
        self._finished = 0  # rounds of finished trainings

    @property
    def name(self) -> str:
        """An empty name, because the path is given."""
        return ""

    @property
    def version(self) -> str:
        """An empty version, because the path is given."""
        return ""

    def log_hyperparams(self, params: dict[str, Any] | Namespace, *args: Any, **kwargs: Any) -> None:
        """Does nothing, because the run's folder holds the whole configuration."""

    @rank_zero_only
    def begin(self, rounds: int) -> None:
        """Goes on after so many rounds; without a call, after the round before the first one that is logged.

        Raises:
            UserError: another program has changed the file; it stays as it is.

        """
        self._file.keep(rounds)
        self._begun = True

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        """Adds metrics to the row of round `step`."""
        if step is None or int(step) <= self._finished:
            return
        if not self._begun:
            self.begin(int(step) - 1)
        cells = {name: value for name, value in metrics.items() if name not in ("round", "epoch", "step")}
        self._unsaved.setdefault(int(step), {}).update(cells)

    @rank_zero_only
    def save(self) -> None:
        """Adds new metrics to the file."""
        while self._unsaved:
            round_ = min(self._unsaved)
            self._file.add(round_, self._unsaved[round_])
            del self._unsaved[round_]

    @rank_zero_only
    def finalize(self, status: str) -> None:
        """Writes the remaining metrics; a later training continues after these rounds."""
        self.save()
        self._finished = self._file.rounds


class SaveRow(pl.Callback):
    """Writes a round's row before its checkpoint, so that a kill between the two loses none; Lightning logs later."""

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Lightning calls the callbacks that save checkpoints after this one. All processes compute the metrics."""
        metrics = convert_tensors_to_scalars(dict(trainer._logger_connector.metrics["log"]))
        step = metrics.pop("step", None)
        for logger in trainer.loggers:
            if isinstance(logger, RoundCSVLogger) and step is not None:
                logger.log_metrics(metrics, int(step))
                logger.save()


def wandb_logger(save_dir: str | Path, mode: str | None = None, **options: Any) -> Logger:
    """A WandbLogger that never asks for a login: without an API key it works offline and prints a line about it.

    Args:
        save_dir: parent of the `wandb` folder.
        mode: online, offline or disabled; None: the environment's WANDB_MODE, else online if there is an API key.
        options: options of `WandbRounds`, `WandbLogger` and `wandb.init` (project, name, group, tags, log_model, ...).

    Raises:
        UserError: wandb is not installed, or an option cannot be.

    """
    _need("wandb", "wandb")
    import wandb

    from fedem_lightning.run.trackers.wandb_runs import WandbRounds

    mode = mode or os.environ.get("WANDB_MODE")
    if mode is None:
        mode = "online" if wandb.api.api_key else "offline"
        if mode == "offline":
            print("W&B: no API key found, so this run is kept offline; send it later with `wandb sync`.")
    if mode not in ("online", "offline", "disabled", "shared"):
        raise UserError(f"logger.wandb.mode: expected online, offline or disabled, got {mode}")
    _check_log_model("wandb", options)
    return WandbRounds(save_dir=str(save_dir), mode=mode, **options)


def tensorboard_logger(save_dir: str | Path, **options: Any) -> Logger:
    """A TensorBoardLogger that writes to `tensorboard` in the run's folder.

    Args:
        save_dir: the run's folder.
        options: options of `pytorch_lightning.loggers.TensorBoardLogger`.

    Raises:
        UserError: tensorboard is not installed.

    """
    _need("tensorboard", "tensorboard")
    from fedem_lightning.run.trackers.tensorboard_runs import TensorBoardRounds

    return TensorBoardRounds(str(save_dir), **options)


def mlflow_logger(save_dir: str | Path, tracking_uri: str | None = None, **options: Any) -> Logger:
    """An MLFlowLogger.

    Args:
        save_dir: the run's folder; MLflow does not write there.
        tracking_uri: server or database; None: MLFLOW_TRACKING_URI, else the one that `mlflow ui` opens in this folder.
        options: options of `MlflowRounds` and `MLFlowLogger` (experiment_name, run_name, tags, log_model, ...).

    Raises:
        UserError: mlflow is not installed, or cannot write to `tracking_uri`.

    """
    _need("mlflow", "mlflow")
    import mlflow

    from fedem_lightning.run.trackers.mlflow_runs import MlflowRounds

    _check_log_model("mlflow", options)
    uri = tracking_uri or mlflow.get_tracking_uri()
    if uri.startswith("sqlite:"):
        _need("mlflow", "sqlalchemy")
    try:
        return MlflowRounds(tracking_uri=uri, **options)
    except mlflow.exceptions.MlflowException as error:
        raise UserError(f"logger.mlflow.tracking_uri: {uri}: {error}") from error


def _need(extra: str, package: str) -> None:
    """Raises UserError if a package of this extra is not installed."""
    if importlib.util.find_spec(package) is None:
        raise UserError(f'logger={extra}: {package} is not installed; pip install "fedem-lightning[{extra}]"')


def _check_log_model(tracker: str, options: dict[str, Any]) -> None:
    asked = options.get("log_model", False)
    if asked not in (True, False, "all"):
        raise UserError(f"logger.{tracker}.log_model: expected true, false or all, got {asked}")
