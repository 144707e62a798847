"""Loggers: metrics.csv for every run; Weights & Biases, TensorBoard and MLflow on request."""

import importlib.util
import os
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import pytorch_lightning as pl
from lightning_fabric.utilities.apply_func import convert_tensors_to_scalars
from pytorch_lightning.loggers import Logger
from pytorch_lightning.utilities import rank_zero_only

from fedem_lightning.errors import UserError
from fedem_lightning.run.metrics_file import MetricsFile
from fedem_lightning.settings.check import check_arguments


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


LogModel = bool | Literal["all"]
Mode = Literal["online", "offline", "disabled", "shared"]


def wandb_logger(
    save_dir: str | Path,
    mode: Mode | None = None,
    project: str = "fedem-lightning",
    name: str | None = None,
    group: str | None = None,
    tags: Sequence[str] | None = None,
    log_model: LogModel = False,
    **options: Any,
) -> Logger:
    """A WandbLogger that never asks for a login: without an API key it works offline and prints a line about it.

    Args:
        save_dir: parent of the `wandb` folder.
        mode: online, offline or disabled; None: the environment's WANDB_MODE, else online if there is an API key.
        project, name, group, tags: of the W&B run.
        log_model: see `WandbRounds`.
        options: further ones of `WandbLogger` and `wandb.init`.

    Raises:
        UserError: wandb is not installed, or an option cannot be.

    """
    check_arguments("logger.wandb", wandb_logger, locals())
    _need("wandb", "wandb")
    import wandb

    from fedem_lightning.run.trackers.wandb_runs import WandbRounds

    options |= {"project": project, "name": name, "group": group, "tags": tags, "log_model": log_model}
    chosen = mode or os.environ.get("WANDB_MODE")
    if chosen is None:
        chosen = "online" if wandb.api.api_key else "offline"
        if chosen == "offline":
            print("W&B: no API key found, so this run is kept offline; send it later with `wandb sync`.")
    if chosen not in get_args(Mode):
        raise UserError(f"WANDB_MODE: expected online, offline or disabled, got {chosen}")
    return WandbRounds(save_dir=str(save_dir), mode=chosen, **options)


def tensorboard_logger(save_dir: str | Path, **options: Any) -> Logger:
    """A TensorBoardLogger that writes to `tensorboard` in the run's folder.

    Args:
        save_dir: the run's folder.
        options: options of `pytorch_lightning.loggers.TensorBoardLogger`.

    Raises:
        UserError: tensorboard is not installed.

    """
    _need("tensorboard", "tensorboard")
    from fedem_lightning.run.trackers.mlflow_and_tensorboard import TensorBoardRounds

    return TensorBoardRounds(str(save_dir), **options)


def mlflow_logger(
    save_dir: str | Path,
    tracking_uri: str | None = None,
    experiment_name: str = "fedem-lightning",
    run_name: str | None = None,
    log_model: LogModel = False,
    **options: Any,
) -> Logger:
    """An MLFlowLogger.

    Args:
        save_dir: the run's folder; MLflow does not write there.
        tracking_uri: server or database; None: MLFLOW_TRACKING_URI, else the one that `mlflow ui` opens in this folder.
        experiment_name, run_name: of the MLflow run.
        log_model: see `MlflowRounds`.
        options: further ones of `MLFlowLogger`, such as tags.

    Raises:
        UserError: mlflow is not installed, or cannot write to `tracking_uri`.

    """
    check_arguments("logger.mlflow", mlflow_logger, locals())
    _need("mlflow", "mlflow")
    import mlflow

    from fedem_lightning.run.trackers.mlflow_and_tensorboard import MlflowRounds

    options |= {"experiment_name": experiment_name, "run_name": run_name, "log_model": log_model}
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
