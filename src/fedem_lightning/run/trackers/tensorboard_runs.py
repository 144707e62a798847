"""TensorBoard: scalars by round, and at the end hyper-parameters with scores, histograms and figures."""

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from pytorch_lightning.loggers import TensorBoardLogger

from fedem_lightning.run.trackers.base import Outcome, RoundTracker, Tracked
from fedem_lightning.run.trackers.scores import client_scores


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
            return 0
        self._kwargs["purge_step"] = run.resumed_rounds + 1
        return run.resumed_rounds

    def report(self, outcome: Outcome) -> None:
        """Adds hyper-parameters with scores, figures and histograms."""
        self.first_round = 0  # of a run whose rounds an earlier process has sent, too
        self.log_hyperparams(self._config, outcome.scores, outcome.rounds)
        for path in outcome.figures:
            self.experiment.add_image(f"figures/{path.stem}", _pixels(path), outcome.rounds, dataformats="HWC")
        for name, values in client_scores(outcome.clients).items():
            self.experiment.add_histogram(name, values, outcome.rounds)

    def finalize(self, status: str) -> None:
        """Does nothing: Lightning would close the file after the training, before it has results."""

    def close(self, status: str) -> None:
        """Writes what is left, and the hyper-parameters as a file."""
        super().finalize("success")


def _pixels(path: Path) -> np.ndarray:
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB"))
