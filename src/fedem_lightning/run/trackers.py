"""Experiment trackers: Lightning's loggers, which get every round once and at the end the scores; W&B gets more."""

import json
import math
import os
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytorch_lightning as pl
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from pytorch_lightning.loggers import Logger, WandbLogger

from fedem_lightning.run.metrics_file import rows_of
from fedem_lightning.settings.configs import resolved
from fedem_lightning.settings.errors import UserError, one_line
from fedem_lightning.settings.files import write_atomically
from fedem_lightning.settings.keys import flatten
from fedem_lightning.settings.measures import SPLITS
from fedem_lightning.settings.startup import is_worker_rank

MOST_ROWS = 10_000  # of the clients' table, as many as W&B shows
_NOT_NAMED = {"seed", "run_dir", "ckpt_path", "data_dir", "engine", "trainer", "logger", "callbacks", "hydra"}
"""Typed keys that are no part of a run's name: results do not depend on them, or the name has them already."""


class Trackers(pl.Callback):
    """Sends a run to the loggers of its configuration: its settings, a row a round, and at the end the scores.

    The rows are those of metrics.csv. trackers.json has the version of each logger, which for W&B is the run's id: a
    logger of the same version continues after the rows of the earlier attempt, another gets all. The first process
    alone sends. UserError: a package is missing, or a logger cannot be made.
    """

    def __init__(self, config: DictConfig, folder: Path, choices: Mapping[str, str], overrides: Sequence[str]) -> None:
        super().__init__()
        self.folder = folder
        self.config = flatten(resolved(OmegaConf.to_container(config, resolve=False)))  # type: ignore[arg-type]
        self.loggers: dict[str, Logger] = {}
        known = folder / "trackers.json"
        self._ids: dict[str, str] = json.loads(known.read_text()) if known.exists() else {}
        self._sent: dict[str, int] = {}
        silent = is_worker_rank() or config.trainer.get("fast_dev_run")
        for key, options in (config.get("logger") or {}).items():
            if options is not None and not silent:
                given: dict[str, Any] = OmegaConf.to_container(options, resolve=True)  # type: ignore[assignment]
                own: dict[str, Any] = {"save_dir": str(folder)}
                if str(given.get("_target_")).endswith(".WandbLogger"):
                    group = group_of(choices, overrides)
                    own |= {"name": f"{group}-s{config.seed}", "group": group, "mode": _wandb_mode(given)}
                    own["id"] = self._ids.get(str(key)) or secrets.token_hex(4)
                try:
                    logger = instantiate(own | {name: value for name, value in given.items() if value is not None})
                except Exception as error:
                    raise UserError(f"logger.{key}: {one_line(error.__cause__ or error)}") from error
                if isinstance(logger, WandbLogger):
                    logger._wandb_init.pop("anonymous", None)  # Lightning's, of which W&B warns
                self.loggers[str(key)] = logger

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Begins each logger's run, or continues it."""
        for key, logger in self.loggers.items():
            try:
                continued = str(logger.version) == self._ids.get(key)
                if not continued:
                    logger.log_hyperparams(self.config)
                if not (isinstance(logger, WandbLogger) and logger.experiment.offline):
                    self._note(key)  # a kill loses what W&B has offline: it is noted where it is closed
                self._sent[key] = rows_of(trainer).newest_before if continued else -1
            except Exception as error:  # no server, no such project, a wrong option
                raise UserError(f"logger.{key}: {one_line(error)}") from error

    def _note(self, key: str) -> None:
        self._ids[key] = str(self.loggers[key].version)
        write_atomically(self.folder / "trackers.json", (json.dumps(self._ids) + "\n").encode())

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Sends the rows that a logger does not have."""
        rows = rows_of(trainer).rows if self.loggers else {}
        for key, logger in self.loggers.items():
            for round_ in sorted(round_ for round_ in rows if round_ > self._sent[key]):
                logger.log_metrics({name: float(cell) for name, cell in rows[round_].items()}, round_)
                self._sent[key] = round_
            logger.save()

    def report(self, results: Mapping[str, Any], clients: pd.DataFrame, figures: Sequence[Path]) -> None:
        """Sends the scores of a finished run, and to W&B its figures and its clients' table."""
        scores, rounds = final_scores(results), results["rounds"]
        for logger in self.loggers.values():
            if isinstance(logger, WandbLogger):
                import wandb

                shown = clients.iloc[:: max(1, math.ceil(len(clients) / MOST_ROWS))]
                media: dict[str, Any] = {f"figures/{path.stem}": wandb.Image(str(path)) for path in figures}
                media |= {"clients": wandb.Table(dataframe=shown), "trainer/global_step": rounds}
                logger.experiment.log(media)
                logger.experiment.summary.update(scores)
            else:
                logger.log_metrics({f"final/{name}": value for name, value in scores.items()}, rounds)

    def close(self, error: BaseException | None) -> None:
        """Ends each logger's run; `error` is what ended this one, None: it has finished."""
        for key, logger in self.loggers.items():
            logger.finalize("success" if error is None else "failed")
            if isinstance(logger, WandbLogger) and key in self._sent:
                logger.experiment.finish(exit_code=0 if error is None else 1)
                self._note(key)


def _wandb_mode(options: Mapping[str, Any]) -> str:
    """What the user wants; else online if there is an API key, so that W&B never asks for a login."""
    import wandb

    mode = options.get("mode") or os.environ.get("WANDB_MODE")
    if not mode and not wandb.login(prompt=False, verify=False):
        print("W&B: no API key found, so this run is kept offline; send it later with `wandb sync`.")
        mode = "offline"
    return str(mode or "online")


def group_of(choices: Mapping[str, str], overrides: Sequence[str]) -> str:
    """The group of a run, which those that differ in their seed alone share, such as fedem-femnist-lr=0.1."""
    adapted = choices.get("adaptation", "none") not in ("none", choices["algorithm"])
    algorithm = f"{choices['algorithm']}+{choices['adaptation']}" if adapted else choices["algorithm"]
    parts = list(dict.fromkeys(filter(None, (algorithm, choices["dataset"], choices.get("experiment")))))
    for key, _, value in (override.lstrip("+~").partition("=") for override in overrides):
        if key == "trainer.max_epochs" or (key not in choices and key.partition(".")[0] not in _NOT_NAMED):
            parts.append(f"{key.rpartition('.')[2]}={value}")
    return "-".join(parts)[:100]  # W&B refuses more than 128 letters


def final_scores(results: Mapping[str, Any]) -> dict[str, float]:
    """The finite scores of results.json, by the names that metrics.csv and `Trainer.test` give them.

    They are test/accuracy (weighted by training samples), test/accuracy_mean, ...; test_unseen/... of unseen and
    test_honest/... of honest clients; best/round, best/val/MEASURE and best/test/MEASURE of the best round.
    """
    populations = {"": results, "_unseen": results.get("unseen") or {}, "_honest": results.get("honest") or {}}
    found = {
        f"{split}{population}/{measure}" + ("" if kind == "weighted" else f"_{kind}"): value
        for population, scores in populations.items()
        for split in SPLITS
        for measure, sums in (scores.get(split) or {}).items()
        for kind, value in sums.items()
    }
    best = results.get("best_round") or {}
    names = {"round": "round"} | {split: f"{split}/{best.get('measure')}" for split in ("val", "test")}
    found |= {f"best/{name}": best.get(key) for key, name in names.items()}
    return {name: value for name, value in found.items() if value is not None and math.isfinite(value)}
