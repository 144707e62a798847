"""Experiment trackers: Lightning's loggers for Weights & Biases, TensorBoard and MLflow, one row a round."""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from pytorch_lightning.loggers import Logger

from fedem_lightning.errors import Interrupted
from fedem_lightning.run.trackers.base import Outcome, RoundTracker, SendRounds, Tracked
from fedem_lightning.run.trackers.naming import tracked
from fedem_lightning.run.trackers.scores import best_and_last, flat_numbers

__all__ = ["Outcome", "RoundTracker", "SendRounds", "Tracked", "begin", "best_and_last", "close", "flat_numbers"]
__all__ += ["report", "tracked"]


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
    """Adds the results of a finished run: scores, figures, the table of the clients."""
    for logger in loggers:
        if isinstance(logger, RoundTracker):
            logger.report(outcome)


def close(loggers: Sequence[Logger], error: BaseException | None) -> None:
    """Ends the run in every tracker, so that the next run of a sweep starts its own.

    Args:
        loggers: of the run.
        error: what ended the run; None: it has finished.

    """
    stopped = isinstance(error, (Interrupted, KeyboardInterrupt))
    status = "success" if error is None else "stopped" if stopped else "failed"
    for logger in loggers:
        if isinstance(logger, RoundTracker):
            logger.close(status)


def _rows(path: Path, rounds: int) -> list[dict[str, float]]:
    """Numbers of the first rounds in metrics.csv, without empty cells."""
    if rounds == 0 or not path.is_file():
        return []
    table = pd.read_csv(path)
    records = table[table["round"] <= rounds].to_dict("records")
    return [{str(name): value for name, value in row.items() if pd.notna(value)} for row in records]
