"""Experiment trackers: Lightning's loggers, which get every round once and at the end the results."""

import hashlib
import json
import math
import os
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytorch_lightning as pl
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from PIL import Image
from pytorch_lightning.loggers import Logger, MLFlowLogger, TensorBoardLogger, WandbLogger

from fedem_lightning.errors import Interrupted, UserError, imported, one_line
from fedem_lightning.records import SPLITS
from fedem_lightning.records.configs import resolved
from fedem_lightning.records.files import write_atomically
from fedem_lightning.run.metrics_file import RoundCSVLogger, rows_of
from fedem_lightning.settings.keys import flatten
from fedem_lightning.startup import is_worker_rank

_CLOSED = "wandb's last round"  # key of trackers.json: what W&B had when it was closed
MOST_ROWS = 10_000  # of the clients' table, as many as W&B shows
LONGEST = 64  # letters of a name; W&B refuses longer tags
_NOT_NAMED = {"seed", "run_dir", "ckpt_path", "data_dir", "engine", "trainer", "logger", "callbacks", "hydra"}
"""Typed keys that are no part of a run's name: results do not depend on them, or the name has them already."""


class Trackers(pl.Callback):
    """Sends a run to the loggers of its configuration: its settings, a row a round, and at the end the results.

    The rows are those of metrics.csv. A resumed run continues the same run of each logger, whose id is in
    trackers.json, after its newest row; a logger that the run did not have before gets all rows. The first process
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
        self._open = -1  # round of W&B's newest row
        group, tags = run_names(choices, overrides, config.seed)
        silent = is_worker_rank() or config.trainer.get("fast_dev_run")
        for key, options in (config.get("logger") or {}).items():
            if options is not None and not silent:
                given: dict[str, Any] = OmegaConf.to_container(options, resolve=True)  # type: ignore[assignment]
                self.loggers[str(key)] = self._made(str(key), given, group, tags)

    def _made(self, key: str, given: dict[str, Any], group: str, tags: dict[str, str]) -> Logger:
        kind, known = str(given.get("_target_")).rpartition(".")[2], self._ids.get(key)
        if kind in ("TensorBoardLogger", "MLFlowLogger"):
            imported(kind.removesuffix("Logger").lower(), key, f"logger={key}")
        options: dict[str, Any] = {"save_dir": str(self.folder)}
        name = f"{group}-s{tags['seed']}"
        if kind == "WandbLogger":
            options |= {"id": known or secrets.token_hex(4), "mode": _wandb_mode(given)}
            if known is None:  # W&B remembers those of a run that it continues
                listed = [f"seed={tag}" if of == "seed" else tag for of, tag in tags.items()]
                options |= {"name": name, "group": group, "tags": listed}
        if kind == "MLFlowLogger":
            import mlflow

            options |= {"run_id": known, "run_name": name, "tracking_uri": mlflow.get_tracking_uri()}
            given["tags"] = {"group": group, **tags, **(given.get("tags") or {})}
        try:
            logger: Logger = instantiate(options | {name: value for name, value in given.items() if value is not None})
        except Exception as error:
            raise UserError(f"logger.{key}: {one_line(error.__cause__ or error)}") from error
        if isinstance(logger, WandbLogger):
            logger._wandb_init.pop("anonymous", None)  # Lightning's, of which W&B warns
        return logger

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Begins each logger's run, or continues it, and notes its id."""
        for key, logger in self.loggers.items():
            try:
                self._sent[key] = self._newest_of(logger, rows_of(trainer)) if key in self._ids else -1
                if key in self._ids and isinstance(logger, MLFlowLogger):  # it refuses other values of parameters
                    logger.experiment.update_run(logger.run_id, status="RUNNING")
                else:
                    logger.log_hyperparams(self.config)
                self._ids[key] = str(logger.version)
            except Exception as error:  # no server, no such project, a wrong option
                raise UserError(f"logger.{key}: {one_line(error)}") from error
            self._keep_ids()

    def _newest_of(self, logger: Logger, rows: RoundCSVLogger) -> int:
        """The newest round that a logger has, which continues its run; -1: it has none."""
        if not isinstance(logger, WandbLogger):
            return rows.newest_before
        run = logger.experiment  # offline, a kill loses what W&B has not written yet: all since the run was closed
        return int(self._ids.get(_CLOSED, -1)) if run.offline or run.disabled else int(run.step) - 1

    def _keep_ids(self) -> None:
        write_atomically(self.folder / "trackers.json", (json.dumps(self._ids) + "\n").encode())

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Sends the rows that a logger does not have."""
        rows = rows_of(trainer).rows if self.loggers else {}
        for key, logger in self.loggers.items():
            newest = max(rows, default=-1)
            for round_ in range(self._sent[key] + 1, newest + 1):
                if cells := {name: float(cell) for name, cell in rows.get(round_, {}).items()}:
                    if isinstance(logger, WandbLogger):  # the row stays open, for the results
                        logger.experiment.log({**cells, "trainer/global_step": round_}, step=round_)
                        self._open = round_
                    else:
                        logger.log_metrics(cells, round_)
            self._sent[key] = max(newest, self._sent[key])
            logger.save()

    def report(self, results: Mapping[str, Any], clients: pd.DataFrame, figures: Sequence[Path]) -> None:
        """Sends the scores and the figures of a finished run, and to W&B and MLflow its clients' table."""
        if not self.loggers:
            return
        file, rounds = self.folder / "metrics.csv", results["rounds"]
        curves = pd.read_csv(file) if file.exists() else pd.DataFrame({"round": []})
        scores = named_scores(results) | best_scores(results)
        last = curves[curves["round"] == rounds].dropna(axis=1).columns
        late = {name: value for name, value in scores.items() if name not in last}
        for logger in self.loggers.values():
            if isinstance(logger, WandbLogger):
                import wandb

                shown = clients.iloc[:: max(1, math.ceil(len(clients) / MOST_ROWS))]
                media: dict[str, Any] = {f"figures/{path.stem}": wandb.Image(str(path)) for path in figures}
                media |= {"clients": wandb.Table(dataframe=shown), "trainer/global_step": rounds}
                step = rounds if self._open == rounds else None  # else an earlier process has sent the last row
                logger.experiment.log({**late, **media}, step=step, commit=True)
                logger.experiment.summary.update(scores | other_numbers(results))
            elif isinstance(logger, MLFlowLogger):
                logger.log_metrics(late, rounds)
                for path in (self.folder / "results.json", self.folder / "clients.parquet", *figures):
                    logger.experiment.log_artifact(logger.run_id, str(path), "figures" if path in figures else None)
            elif isinstance(logger, TensorBoardLogger):
                logger.log_metrics(late, rounds)
                for path in figures:
                    pixels = np.asarray(Image.open(path).convert("RGB"))
                    logger.experiment.add_image(f"figures/{path.stem}", pixels, rounds, dataformats="HWC")
                final = {f"final/{n}": value for n, value in scores.items() if n.startswith(("test", "best"))}
                logger.log_hyperparams(self.config, final, rounds)

    def close(self, error: BaseException | None) -> None:
        """Ends each logger's run; `error` is what ended this one, None: it has finished."""
        stopped = isinstance(error, (Interrupted, KeyboardInterrupt))
        for key, logger in self.loggers.items():
            logger.finalize("success" if error is None else "KILLED" if stopped else "failed")  # MLflow's word
            if isinstance(logger, WandbLogger) and key in self._sent:
                import wandb

                wandb.finish(exit_code=0 if error is None else 1)
                self._ids[_CLOSED] = str(self._sent[key])
                self._keep_ids()


def _wandb_mode(options: Mapping[str, Any]) -> str:
    """What the user wants; else online if there is an API key, so that W&B never asks for a login."""
    import wandb

    mode = options.get("mode") or os.environ.get("WANDB_MODE")
    if not mode and not wandb.login(prompt=False, verify=False):
        print("W&B: no API key found, so this run is kept offline; send it later with `wandb sync`.")
        mode = "offline"
    return str(mode or "online")


def run_names(choices: Mapping[str, str], overrides: Sequence[str], seed: int) -> tuple[str, dict[str, str]]:
    """The group of a run, which those that differ in their seed alone share, such as fedem-femnist-lr=0.1; its tags."""
    adapted = choices.get("adaptation", "none") not in ("none", choices["algorithm"])
    algorithm = f"{choices['algorithm']}+{choices['adaptation']}" if adapted else choices["algorithm"]
    experiment = choices.get("experiment")
    tags = {"experiment": experiment} if experiment else {}
    tags |= {"algorithm": algorithm, "dataset": choices["dataset"], "seed": str(seed)}
    parts = list(dict.fromkeys(filter(None, (algorithm, choices["dataset"], experiment))))
    for key, _, value in (override.lstrip("+~").partition("=") for override in overrides):
        if key == "trainer.max_epochs" or (key not in choices and key.partition(".")[0] not in _NOT_NAMED):
            parts.append(f"{key.rpartition('.')[2]}={value}")
    return _clipped("-".join(parts)), {name: _clipped(tag) for name, tag in tags.items()}


def _clipped(text: str) -> str:
    """The text on one line; a digest keeps two long texts apart that begin alike."""
    line = " ".join(text.split())
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 7]}-{hashlib.sha256(line.encode()).hexdigest()[:6]}"


def best_scores(results: Mapping[str, Any]) -> dict[str, float]:
    """best/round, best/val/MEASURE and best/test/MEASURE of the round with the best validation score; empty without."""
    found = results.get("best_round") or {}
    names = {"round": "round"} | {split: f"{split}/{found.get('measure')}" for split in ("val", "test")}
    return {f"best/{name}": found[key] for key, name in names.items() if _is_number(found.get(key))}


def named_scores(results: Mapping[str, Any]) -> dict[str, float]:
    """The finite scores of results.json, by the names that metrics.csv and `Trainer.test` give them.

    They are test/accuracy (weighted by training samples), test/accuracy_mean, ...; test_unseen/... of unseen and
    test_honest/... of honest clients.
    """
    populations = {"": results, "_unseen": results.get("unseen") or {}, "_honest": results.get("honest") or {}}
    found = {
        f"{split}{population}/{measure}" + ("" if kind == "weighted" else f"_{kind}"): value
        for population, scores in populations.items()
        for split in SPLITS
        for measure, sums in (scores.get(split) or {}).items()
        for kind, value in sums.items()
    }
    return {name: value for name, value in found.items() if _is_number(value)}


def other_numbers(results: Mapping[str, Any]) -> dict[str, float]:
    """The finite numbers of results.json that are no scores, by paths such as results/seconds/total; no lists."""
    flat = flatten({key: value for key, value in results.items() if key not in (*SPLITS, "unseen", "honest")})
    return {f"results/{key.replace('.', '/')}": value for key, value in flat.items() if _is_number(value)}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
