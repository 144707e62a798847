"""Experiment trackers: Lightning's loggers for Weights & Biases, TensorBoard and MLflow, one row a round."""

import importlib.util
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pandas as pd
import pytorch_lightning as pl
from pytorch_lightning.loggers import Logger

from fedem_lightning.callbacks import RoundCheckpoint
from fedem_lightning.errors import Interrupted, UserError
from fedem_lightning.records.files import regular, write_atomically

LogModel = bool | Literal["all"]


@dataclass(frozen=True)
class Tracked:
    """A run as trackers know it."""

    folder: Path
    group: str  # runs that differ in their seed alone share it
    name: str  # the group and the seed
    tags: dict[str, str]  # experiment, algorithm, dataset and seed, by these names
    config: dict[str, Any]  # the resolved configuration with dotted keys, without secrets
    resumed_rounds: int = 0  # rounds of the checkpoint from which the run continues


@dataclass(frozen=True)
class Outcome:
    """Results of a finished run."""

    rounds: int
    scores: dict[str, float]  # best/..., last/...: see `best_and_last`
    results: dict[str, float]  # the numbers of results.json, by paths such as results/test/accuracy/mean
    clients: pd.DataFrame  # clients.parquet
    figures: list[Path]
    files: list[Path]  # results.json and clients.parquet


class RoundTracker:
    """Part of a tracker, before one of Lightning's loggers: it sends every round once.

    Rounds that a resumed run computes again have the same scores to the bit, so the ones sent first stay.
    """

    first_round = 1
    log_model: bool | str = False
    _checkpoint: tuple[Path | None, int] = (None, 0)  # the newest, and its rounds
    _artefact_rounds = 0  # of the newest artefact

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Sends metrics of round `step`, unless the tracker has this round already."""
        if step is not None and step >= self.first_round:
            self.send(metrics, step)

    def send(self, metrics: Mapping[str, float], round_: int) -> None:
        """Sends metrics of a round."""
        super().log_metrics(metrics, round_)  # type: ignore[misc]

    def commit(self) -> None:
        """Makes the newest round visible, if the tracker keeps it back until then."""

    def open(self, run: Tracked) -> int:
        """Begins the tracker's run, or continues the one that `run.folder` has begun.

        Returns:
            The newest round that the tracker has; 0: none.

        """
        raise NotImplementedError

    def report(self, outcome: Outcome) -> None:
        """Adds the results."""
        raise NotImplementedError

    def close(self, status: str) -> None:
        """Ends the tracker's run: `status` is success, stopped or failed."""
        raise NotImplementedError

    def take(self, path: Path | None, rounds: int) -> None:
        """Takes note of a new checkpoint, and makes an artefact of it if the user wants all."""
        self._checkpoint = path, rounds
        if self.log_model == "all":
            self.add_last_checkpoint()

    def add_last_checkpoint(self) -> None:
        """Makes an artefact of the newest checkpoint, if the user wants it and it is not done."""
        path, rounds = self._checkpoint
        if self.log_model and path is not None and rounds != self._artefact_rounds:
            self.add_artefact(path, rounds)
            self._artefact_rounds = rounds

    def add_artefact(self, path: Path, rounds: int) -> None:
        """Makes an artefact of a checkpoint, where the tracker can."""


class SendRounds(pl.Callback):
    """Tells the trackers that a round has ended, and which checkpoint is the newest."""

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Commits the round before. The last one stays open: the results belong to its row."""
        self.on_train_end(trainer, pl_module)
        for tracker in _trackers(trainer.loggers):
            tracker.commit()

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Hands the newest checkpoint over."""
        for callback in trainer.checkpoint_callbacks if trainer.is_global_zero else ():
            if isinstance(callback, RoundCheckpoint):
                for tracker in _trackers(trainer.loggers):
                    tracker.take(callback.saved, callback.saved_rounds)


def _trackers(loggers: Sequence[Logger]) -> list[RoundTracker]:
    return [logger for logger in loggers if isinstance(logger, RoundTracker)]


def known_id(folder: Path, tracker: str) -> str | None:
    """The id that the run in `folder` has in a tracker; None: it has none yet."""
    return _ids(folder).get(tracker)


def keep_id(folder: Path, tracker: str, id_: str) -> None:
    """Notes the run's id in a tracker, in trackers.json."""
    write_atomically(folder / "trackers.json", (json.dumps(_ids(folder) | {tracker: id_}) + "\n").encode())


def _ids(folder: Path) -> dict[str, str]:
    try:
        found = json.loads(regular(folder / "trackers.json").read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def begin(loggers: Sequence[Logger], run: Tracked) -> None:
    """Opens the run in every tracker, and sends it the rounds that it lacks; other loggers get the configuration."""
    for logger in loggers:
        if not isinstance(logger, RoundTracker):
            logger.log_hyperparams(run.config)
            continue
        sent = logger.open(run)
        logger.first_round = sent + 1
        for row in _rows(run.folder / "metrics.csv", run.resumed_rounds):
            logger.log_metrics({name: value for name, value in row.items() if name != "round"}, step=int(row["round"]))
        logger.first_round = max(sent, run.resumed_rounds) + 1


def report(loggers: Sequence[Logger], outcome: Outcome) -> None:
    """Adds the results of a finished run: scores, figures, the table of the clients, the last checkpoint."""
    for tracker in _trackers(loggers):
        tracker.report(outcome)
        tracker.add_last_checkpoint()


def close(loggers: Sequence[Logger], error: BaseException | None) -> None:
    """Ends the run in every tracker, so that the next run of a sweep starts its own.

    Args:
        loggers: of the run.
        error: what ended the run; None: it has finished.

    """
    stopped = isinstance(error, (Interrupted, KeyboardInterrupt))
    for tracker in _trackers(loggers):
        tracker.close("success" if error is None else "stopped" if stopped else "failed")


def _rows(path: Path, rounds: int) -> list[dict[str, float]]:
    """Numbers of the first rounds in metrics.csv, without empty cells."""
    if rounds == 0 or not path.is_file():
        return []
    records = pd.read_csv(path).query("round <= @rounds").to_dict("records")
    return [{str(name): value for name, value in row.items() if pd.notna(value)} for row in records]


def need(extra: str, package: str) -> None:
    """Raises UserError if a package of this extra is not installed."""
    if importlib.util.find_spec(package) is None:
        raise UserError(f'logger={extra}: {package} is not installed; pip install "fedem-lightning[{extra}]"')
