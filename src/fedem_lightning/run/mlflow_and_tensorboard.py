"""MLflow and TensorBoard: metrics by round, pictures after an evaluation, and at the end the results."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from pytorch_lightning.loggers import Logger, MLFlowLogger, TensorBoardLogger

from fedem_lightning.errors import UserError
from fedem_lightning.run.pictures import Pictures
from fedem_lightning.run.trackers import LogModel, Outcome, RoundTracker, Tracked, keep_id, known_id, need
from fedem_lightning.settings.check import check_arguments

_STATUS = {"success": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}


class MlflowRounds(RoundTracker, MLFlowLogger):
    """An MLFlowLogger that takes up the same MLflow run when the run is resumed.

    Args:
        log_model: whether the last checkpoint becomes an artefact when the run has finished; "all": every checkpoint.
        options: of `MLFlowLogger`.

    """

    def __init__(self, log_model: bool | str = False, **options: Any) -> None:
        super().__init__(log_model=log_model, **options)
        self.log_model = log_model

    def open(self, run: Tracked) -> int:
        """Begins the MLflow run with its parameters and tags, or continues it."""
        known = known_id(run.folder, "mlflow")
        if known is None:
            self._run_name = self._run_name or run.name
            self.tags = {"group": run.group, **run.tags, **(self.tags or {})}
            self._make_experiment()
            self.log_hyperparams(run.config)
            keep_id(run.folder, "mlflow", str(self.run_id))
            return -1
        self._run_id = known
        self.experiment.update_run(known, status="RUNNING")
        found = self.experiment.get_run(known).data.metrics
        histories = (self.experiment.get_metric_history(known, name) for name in found)
        return max((point.step for history in histories for point in history), default=-1)

    def report(self, outcome: Outcome) -> None:
        """Adds scores that the metrics lack, the other results as tags, files and figures."""
        if unsent := self.unsent(outcome):
            self.send(unsent, outcome.rounds)
        unknown = {name: value for name, value in outcome.scores.items() if name not in self._newest}
        shown = {name: value for name, value in unknown.items() if name.endswith(f"/{outcome.measure}")}
        for name, value in {**outcome.best, **shown}.items():
            self.experiment.set_tag(self.run_id, name, f"{value:.6g}")
        for path in outcome.files:
            self.experiment.log_artifact(self.run_id, str(path))
        for path in outcome.figures:
            self.experiment.log_artifact(self.run_id, str(path), "figures")

    def send_pictures(self, found: Pictures, round_: int) -> None:
        """Adds pictures; MLflow shows a slider over the rounds."""
        for name, pixels in found.figures.items():
            self.experiment.log_image(self.run_id, pixels, key=f"figures/{name}", step=round_, synchronous=True)

    def finalize(self, status: str = "success") -> None:
        """Leaves the MLflow run open: Lightning would end it after the training, before it has results."""
        if status == "success" and self._checkpoint_callback is not None:  # a ModelCheckpoint
            self._scan_and_log_checkpoints(self._checkpoint_callback)

    def close(self, status: str) -> None:
        """Ends the MLflow run as finished, killed or failed."""
        if self._initialized:
            self.experiment.set_terminated(self.run_id, _STATUS[status])

    def _make_experiment(self) -> None:
        """Lightning would make it, too, with a warning."""
        if self._mlflow_client.get_experiment_by_name(self._experiment_name) is None:
            self._mlflow_client.create_experiment(self._experiment_name, self._artifact_location)

    def add_artefact(self, path: Path, rounds: int) -> None:
        """Makes an artefact of a checkpoint."""
        self.experiment.log_artifact(self.run_id, str(path), "checkpoints")


class TensorBoardRounds(RoundTracker, TensorBoardLogger):
    """A TensorBoardLogger that writes to `tensorboard` in the run's folder; a resumed run adds a file there.

    Args:
        save_dir: the run's folder.
        options: of `TensorBoardLogger` and of `torch.utils.tensorboard.SummaryWriter`.

    """

    def __init__(self, save_dir: str, **options: Any) -> None:
        settings = {"name": "", "version": "tensorboard", "default_hp_metric": False, **options}
        super().__init__(save_dir=save_dir, **settings)
        self._config: dict[str, Any] = {}

    def open(self, run: Tracked) -> int:
        """Writes the configuration; TensorBoard drops the rounds that a resumed run computes again."""
        self._config, has_events = run.config, any(Path(self.log_dir).glob("events.*"))
        self.log_hyperparams(run.config)
        if not has_events:
            return -1
        self._kwargs["purge_step"] = run.resumed_rounds + 1
        return run.resumed_rounds

    def send_pictures(self, found: Pictures, round_: int) -> None:
        """Adds pictures and histograms; TensorBoard shows a slider over the rounds."""
        for name, pixels in found.figures.items():
            self.experiment.add_image(f"figures/{name}", pixels, round_, dataformats="HWC")
        for name, values in found.histograms.items():
            self.experiment.add_histogram(name, values, round_)

    def report(self, outcome: Outcome) -> None:
        """Adds scores that the scalars lack, hyper-parameters beside the newest scores, figures, a table of results."""
        if unsent := self.unsent(outcome):
            self.send(unsent, outcome.rounds)
        self._add_hyperparameters([name for name in outcome.scores if name in self._newest])
        for name, path in self.new_figures(outcome).items():
            self.experiment.add_image(name, _pixels(path), outcome.rounds, dataformats="HWC")
        found = {**outcome.best, **outcome.scores, **outcome.numbers}
        rows = [f"| {name} | {value:.6g} |" for name, value in found.items()]
        self.experiment.add_text("results", "\n".join(["| result | value |", "|---|---|", *rows]), outcome.rounds)

    def _add_hyperparameters(self, scores: Sequence[str]) -> None:
        """Fills HParams, which shows the newest value of these scalars; Lightning would add scalars of one point."""
        from torch.utils.tensorboard.summary import hparams

        parameters: dict[str, Any] = self._sanitize_params(dict(self._config))
        for summary in hparams(parameters, dict.fromkeys(scores, 0.0)):
            self.experiment._get_file_writer().add_summary(summary)

    def finalize(self, status: str) -> None:
        """Does nothing: Lightning would close the file after the training, before it has results."""

    def close(self, status: str) -> None:
        """Writes what is left, and the hyper-parameters as a file."""
        super().finalize("success")


def _pixels(path: Path) -> np.ndarray:
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB"))


def tensorboard_logger(save_dir: str | Path, **options: Any) -> Logger:
    """A TensorBoardLogger that writes to `tensorboard` in the run's folder.

    Args:
        save_dir: the run's folder.
        options: options of `pytorch_lightning.loggers.TensorBoardLogger`.

    Raises:
        UserError: tensorboard is not installed.

    """
    need("tensorboard", "tensorboard")
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
    need("mlflow", "mlflow")
    import mlflow

    options |= {"experiment_name": experiment_name, "run_name": run_name, "log_model": log_model}
    uri = tracking_uri or mlflow.get_tracking_uri()
    if uri.startswith("sqlite:"):
        need("mlflow", "sqlalchemy")
    try:
        return MlflowRounds(tracking_uri=uri, **options)
    except mlflow.exceptions.MlflowException as error:
        raise UserError(f"logger.mlflow.tracking_uri: {uri}: {error}") from error
