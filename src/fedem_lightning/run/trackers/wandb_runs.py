"""Weights & Biases: one row a round, and at the end tables, histograms, figures and a summary."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from lightning_fabric.loggers.logger import rank_zero_experiment
from pytorch_lightning.loggers import WandbLogger

from fedem_lightning.records.secrets import hide_in_overrides
from fedem_lightning.run.trackers.base import Outcome, RoundTracker, Tracked, keep_id, known_id
from fedem_lightning.run.trackers.scores import client_scores
from fedem_lightning.run.trackers.wandb_file import files_of, last_step

MOST_CLIENTS = 10_000
"""Rows of the table of clients, which is as many as W&B shows."""


class WandbRounds(RoundTracker, WandbLogger):
    """A WandbLogger whose x-axis is the round; it takes up the same W&B run when the run is resumed.

    Args:
        log_model: whether the last checkpoint becomes an artefact when the run has finished; "all": every checkpoint.
        options: of `WandbLogger` and `wandb.init`.

    """

    def __init__(self, log_model: bool | str = False, **options: Any) -> None:
        super().__init__(log_model=log_model, **options)  # type: ignore[arg-type]
        self._wandb_init.pop("anonymous")  # Lightning's, of which W&B warns
        self._all_checkpoints, self._last_checkpoint = log_model == "all", bool(log_model)
        self._open_row = False
        self._checkpoint: tuple[Path, int] | None = None
        self._saved_rounds = 0  # of the newest artefact

    @property
    @rank_zero_experiment
    def experiment(self) -> Any:
        """The W&B run; every metric is drawn over `round`."""
        if self._experiment is None:
            self._experiment = _begun(self._wandb_init)
            self._experiment.define_metric("round")
            self._experiment.define_metric("*", step_metric="round")
        return self._experiment

    def open(self, run: Tracked) -> int:
        """Begins or continues the W&B run, and gives it the configuration."""
        known, options = known_id(run.folder, "wandb"), self._wandb_init
        if known is not None:
            options["id"] = known
        else:  # W&B remembers those of a run that it continues
            defaults = {"name": run.name, "group": run.group, "tags": _tags(run)}
            options.update({key: value for key, value in defaults.items() if options.get(key) is None})
        experiment = self.experiment
        experiment.config.update(run.config, allow_val_change=True)
        if experiment.disabled:
            return 0
        keep_id(run.folder, "wandb", experiment.id)
        if known is None:
            return 0
        if not experiment.offline:
            return max(int(experiment.step) - 1, 0)
        earlier = files_of(run.folder, known)[:-1]  # the last one has just been begun
        return max(map(last_step, earlier), default=0)

    def send(self, metrics: Mapping[str, float], round_: int) -> None:
        """Adds metrics to the round's row, which W&B keeps open until `commit` or the next round."""
        self.experiment.log({**metrics, "round": round_}, step=round_)
        self._open_row = True

    def commit(self) -> None:
        """Ends the row of the newest round."""
        if self._open_row:
            self.experiment.log({}, commit=True)
            self._open_row = False

    def save_checkpoint(self, path: Path, rounds: int) -> None:
        """Makes an artefact of the checkpoint if all are asked for."""
        self._checkpoint = path, rounds
        if self._all_checkpoints:
            self._add_artefact()

    def report(self, outcome: Outcome) -> None:
        """Adds media to the last round's row, the summary, and the last checkpoint."""
        import wandb

        media: dict[str, Any] = {f"figures/{path.stem}": wandb.Image(str(path)) for path in outcome.figures}
        media["clients"] = wandb.Table(dataframe=_shown(outcome.clients))
        for name, values in client_scores(outcome.clients).items():
            media[name] = wandb.Histogram(values.tolist())
        # the row of the last round is open, unless an earlier process has sent it
        self.experiment.log(media, step=outcome.rounds if self._open_row else None)
        self.experiment.summary.update({**outcome.scores, **outcome.results})
        if self._last_checkpoint:
            self._add_artefact()

    def close(self, status: str) -> None:
        """Ends the W&B run; one that was stopped or has failed is shown as such."""
        if self._experiment is not None:
            self._experiment.finish(exit_code=0 if status == "success" else 1)
            self._experiment = None

    def _add_artefact(self) -> None:
        if self._checkpoint is None or self._checkpoint[1] == self._saved_rounds:
            return
        import wandb

        path, self._saved_rounds = self._checkpoint
        artefact = wandb.Artifact(f"model-{self.experiment.id}", "model", metadata={"rounds": self._saved_rounds})
        artefact.add_file(str(path))
        self.experiment.log_artifact(artefact, aliases=["latest", f"round-{self._saved_rounds}"])


def _begun(options: dict[str, Any]) -> Any:
    """A new W&B run, which notes the command line of this process, too."""
    import wandb

    typed = sys.argv
    sys.argv = [*typed[:1], *hide_in_overrides(typed[1:])]
    try:
        return wandb.init(**options)
    finally:
        sys.argv = typed


def _tags(run: Tracked) -> list[str]:
    return [f"seed={value}" if name == "seed" else value for name, value in run.tags.items()]


def _shown(clients: pd.DataFrame) -> pd.DataFrame:
    """The table, or so many of its rows, at equal distances, as W&B shows."""
    if len(clients) <= MOST_CLIENTS:
        return clients
    return clients.iloc[np.linspace(0, len(clients) - 1, MOST_CLIENTS).astype(int)]
