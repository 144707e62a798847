"""Experiment trackers: Lightning's loggers for Weights & Biases, TensorBoard and MLflow, one row a round."""

import importlib.util
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pandas as pd
import pytorch_lightning as pl
from pytorch_lightning.loggers import Logger

from fedem_lightning.algorithms import FederatedAlgorithm
from fedem_lightning.callbacks import RoundCheckpoint
from fedem_lightning.data.federation import Federation
from fedem_lightning.errors import Interrupted, UserError
from fedem_lightning.records.files import regular, write_atomically
from fedem_lightning.run.constants import Constants
from fedem_lightning.run.pictures import Pictures, is_shown, pictures

LogModel = bool | Literal["all"]


@dataclass(frozen=True)
class Tracked:
    """A run as trackers know it."""

    folder: Path
    group: str  # runs that differ in their seed alone share it: fedem-femnist
    name: str  # the group and the seed: fedem-femnist-s3
    tags: dict[str, str]  # experiment, algorithm, dataset and seed, by these names
    config: dict[str, Any]  # the resolved configuration with dotted keys
    resumed_rounds: int = 0  # rounds of the checkpoint from which the run continues


@dataclass(frozen=True)
class Outcome:
    """Results of a finished run."""

    rounds: int
    measure: str  # the one to show first, such as accuracy
    scores: dict[str, float]  # after the last round, by the names of metrics.csv and of Trainer.test
    best: dict[str, float]  # of the round with the best validation score: see `best_round`
    numbers: dict[str, float]  # the other numbers of results.json, by paths such as results/seconds/total
    clients: pd.DataFrame  # clients.parquet
    figures: list[Path]
    files: list[Path]  # results.json and clients.parquet


class RoundTracker:
    """Part of a tracker, before one of Lightning's loggers: it sends every round once, and no chart of a constant.

    Rounds that a resumed run computes again have the same scores to the bit, so the ones sent first stay.
    """

    first_round = 0
    log_model: bool | str = False
    shows_pictures = True  # whether it is worth drawing for it
    _checkpoint: tuple[Path | None, int] = (None, 0)  # the newest, and its rounds
    _artefact_rounds = 0  # of the newest artefact

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._constants = Constants()
        self._newest: dict[str, int] = {}  # the round of each metric's and image's newest value

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Sends metrics of round `step` that are no constants, unless the tracker has this round already."""
        if step is None:
            return
        moving, known = self._constants.divide(metrics)
        self._newest |= dict.fromkeys(moving, step)
        if known:
            self.note(known)
        if step >= self.first_round:
            self.send(moving, step)

    def send(self, metrics: Mapping[str, float], round_: int) -> None:
        """Sends metrics of a round."""
        super().log_metrics(metrics, round_)  # type: ignore[misc]

    def note(self, constants: Mapping[str, float]) -> None:
        """Takes values that have not changed so far, each once; a tracker with a summary puts them there."""

    def show(self, found: Pictures, round_: int) -> None:
        """Sends pictures of a round that the tracker does not have."""
        self._newest |= {f"figures/{name}": round_ for name in found.figures}
        self.send_pictures(found, round_)

    def send_pictures(self, found: Pictures, round_: int) -> None:
        """Sends pictures of a round, where the tracker can."""

    def unsent(self, outcome: Outcome) -> dict[str, float]:
        """The scores after the last round that have a history, which lacks them: no evaluation came after it."""
        rounds = {name: self._newest.get(name) for name in outcome.scores}
        return {n: outcome.scores[n] for n, newest in rounds.items() if newest is not None and newest < outcome.rounds}

    def new_figures(self, outcome: Outcome) -> dict[str, Path]:
        """The figures to add at the end: without those of the last round, and without curves, which are charts."""
        figures = {f"figures/{path.stem}": path for path in outcome.figures if not path.stem.endswith("_by_round")}
        return {name: path for name, path in figures.items() if self._newest.get(name) != outcome.rounds}

    def commit(self) -> None:
        """Makes the newest round visible, if the tracker keeps it back until then."""

    def open(self, run: Tracked) -> int:
        """Begins the tracker's run, or continues the one that `run.folder` has begun.

        Returns:
            The newest round that the tracker has; -1: none.

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
    """Tells the trackers that a round has ended, shows them its pictures, and says which checkpoint is the newest."""

    def on_validation_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Federation, *args: Any
    ) -> None:
        """Draws this evaluation's pictures; of more evaluations than `MOST_PICTURES` as many, at even distances."""
        fitting = trainer.state.fn == "fit" and not trainer.sanity_checking and trainer.is_global_zero
        round_ = trainer.current_epoch + 1
        shown = [each for each in _trackers(trainer.loggers) if each.shows_pictures and round_ >= each.first_round]
        if not (fitting and shown and isinstance(pl_module, FederatedAlgorithm)):
            return
        if is_shown(round_, trainer.max_epochs, trainer.check_val_every_n_epoch):
            start = time.perf_counter()
            found = pictures(pl_module, batch, round_)
            for tracker in shown:
                tracker.show(found, round_)
            pl_module.statistics.leave_out(time.perf_counter() - start)

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
        logger.first_round = max(sent, run.resumed_rounds or -1) + 1


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
