"""What follows a run round by round: metrics.csv, and Lightning's loggers, of which W&B gets the final scores, too."""

import csv
import io
import os
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytorch_lightning as pl
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from pytorch_lightning.loggers import Logger, WandbLogger

from fedem_lightning.evaluate.client_table import final_metrics
from fedem_lightning.evaluate.convergence import whole_run
from fedem_lightning.settings.configs import resolved
from fedem_lightning.settings.errors import UserError, one_line
from fedem_lightning.settings.files import write_atomically, writing
from fedem_lightning.settings.keys import flatten
from fedem_lightning.settings.startup import is_worker_rank


class MetricsFile(pl.Callback):
    """Writes metrics.csv: a row after each round, and the whole file where it lacks a column.

    A resumed run has the rows of its checkpoint, whatever the file has. The first process alone writes.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self._columns: list[str] = []  # of the file, once this run has written it

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Adds the round's row."""
        curves: Any = pl_module.curves
        row = curves[max(curves)]
        if not trainer.is_global_zero:
            return
        if row.keys() - {*self._columns}:
            self._columns = write_rows(self.path, curves)
            return
        with writing(self.path), self.path.open("ab") as file:
            file.write(_lines(self._columns, [row]))

    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Leaves no row of a later round, which a run that was killed has written after its last checkpoint."""
        if trainer.is_global_zero:
            write_rows(self.path, whole_run(pl_module)[1])  # type: ignore[arg-type]


def write_rows(path: Path, curves: Mapping[int, Mapping[str, float]]) -> list[str]:
    """Writes the file with these rounds; returns its columns, the first of which is `round`."""
    rows = [curves[round_] for round_ in sorted(curves)]
    columns = [*dict.fromkeys(["round", *(name for row in rows for name in row)])]
    write_atomically(path, (",".join(columns) + "\n").encode() + _lines(columns, rows))
    return columns


def _lines(columns: list[str], rows: Iterable[Mapping[str, float]]) -> bytes:
    """The rows as text; a cell is float32, as loggers get it, and empty if the metric was not computed."""
    text = io.StringIO(newline="")
    table = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    table.writerows({**{k: float(np.float32(v)) for k, v in row.items()}, "round": int(row["round"])} for row in rows)
    return text.getvalue().encode()


def begin_loggers(config: DictConfig, folder: Path, choices: Mapping[str, str]) -> Iterator[Logger]:
    """The loggers of a run, each once it has its settings; none in processes other than the first.

    A run of W&B goes on where the folder has one. UserError: a package is missing, or a logger cannot be made.
    """
    for key, options in (config.get("logger") or {}).items():
        if options is None or is_worker_rank() or config.trainer.get("fast_dev_run"):
            continue
        given: dict[str, Any] = OmegaConf.to_container(options, resolve=True)  # type: ignore[assignment]
        own: dict[str, Any] = {"save_dir": str(folder)}
        if str(given.get("_target_")).endswith(".WandbLogger"):
            own["name"] = f"{choices['algorithm']}-{choices['dataset']}-s{config.seed}"
            own["mode"] = _wandb_mode(given)
            earlier = sorted(path.name.partition("run-")[2] for path in folder.glob("wandb/*run-*-*"))  # DATE-ID
            own["id"] = earlier[-1].rpartition("-")[2] if earlier else secrets.token_hex(4)
        try:
            logger = instantiate(own | {name: value for name, value in given.items() if value is not None})
            if isinstance(logger, WandbLogger):
                logger._wandb_init.pop("anonymous", None)  # Lightning's, of which W&B warns
            logger.log_hyperparams(flatten(resolved(OmegaConf.to_container(config, resolve=False))))  # type: ignore[arg-type]
        except Exception as error:  # no server, no such project, a wrong option
            raise UserError(f"logger.{key}: {one_line(error.__cause__ or error)}") from error
        yield logger


def report(loggers: Sequence[Logger], clients: pd.DataFrame) -> None:
    """Sends the final scores of a run to W&B; `clients` is its table."""
    for logger in loggers:
        if isinstance(logger, WandbLogger):
            logger.experiment.summary.update(final_metrics(clients))


def close(loggers: Sequence[Logger], error: BaseException | None) -> None:
    """Ends the runs of W&B, which Lightning leaves open; `error` is what ended this one, None: it has finished."""
    for logger in loggers:
        if isinstance(logger, WandbLogger):
            logger.experiment.finish(exit_code=0 if error is None else 1)


def _wandb_mode(options: Mapping[str, Any]) -> str:
    """What the user wants; else online if there is an API key, so that W&B never asks for a login."""
    import wandb

    mode = options.get("mode") or os.environ.get("WANDB_MODE")
    if not mode and not wandb.login(prompt=False, verify=False):
        print("W&B: no API key found, so this run is kept offline; send it later with `wandb sync`.")
        mode = "offline"
    return str(mode or "online")
