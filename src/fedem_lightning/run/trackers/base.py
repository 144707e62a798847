"""What the trackers share: each round is sent once, and a resumed run continues the tracker's own run."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pytorch_lightning as pl

from fedem_lightning.callbacks import RoundCheckpoint
from fedem_lightning.records.files import regular, write_atomically


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

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Sends metrics of round `step`, unless the tracker has this round already."""
        if step is not None and step >= self.first_round:
            self.send(metrics, step)

    def send(self, metrics: Mapping[str, float], round_: int) -> None:
        """Sends metrics of a round."""
        super().log_metrics(metrics, round_)  # type: ignore[misc]

    def commit(self) -> None:
        """Makes the newest round visible, if the tracker keeps it back until then."""

    def save_checkpoint(self, path: Path, rounds: int) -> None:
        """Takes note of a new checkpoint."""

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


class SendRounds(pl.Callback):
    """Tells the trackers that a round has ended, and which checkpoint is the newest."""

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Commits the round before. The last one stays open: the results belong to its row."""
        self._tell_checkpoint(trainer)
        for logger in trainer.loggers:
            if isinstance(logger, RoundTracker):
                logger.commit()

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Hands the last checkpoint over."""
        self._tell_checkpoint(trainer)

    def _tell_checkpoint(self, trainer: pl.Trainer) -> None:
        for callback in trainer.checkpoint_callbacks:
            if trainer.is_global_zero and isinstance(callback, RoundCheckpoint) and callback.saved is not None:
                for logger in trainer.loggers:
                    if isinstance(logger, RoundTracker):
                        logger.save_checkpoint(callback.saved, callback.saved_rounds)


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
