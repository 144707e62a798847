"""Figures of a run that has not finished."""

import time
import warnings
from collections.abc import Callable

import pytorch_lightning as pl

from fedem_lightning.settings.check import Checked
from fedem_lightning.settings.ranges import NotNegative

SHARE = 0.02
"""Largest share of a run's time that drawing takes."""


class LiveFigures(Checked, pl.Callback):
    """Draws the scores by round again after an evaluation, but not more often than every `every_seconds`.

    An evaluation that comes sooner is drawn at the end of the first round after that time, or when the run is stopped.
    The first process draws. What goes wrong is a warning, and the run continues.

    Args:
        every_seconds: from the end of one drawing, or the start of the training, to the next drawing.
        draw: draws; None: the command line sets it, and elsewhere nothing is drawn.

    """

    def __init__(self, every_seconds: NotNegative = 10.0, draw: Callable[[], None] | None = None) -> None:
        super().__init__()
        self.every_seconds, self.draw = every_seconds, draw
        self._due, self._outdated = 0.0, False

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Begins to wait."""
        self._due, self._outdated = time.monotonic() + self.every_seconds, False

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Draws the scores of this evaluation if it is time."""
        if trainer.state.fn == "fit" and not trainer.sanity_checking:
            self._outdated = True
            self._draw_if(trainer, time.monotonic() >= self._due)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Draws what an earlier evaluation has left if it is time."""
        self._draw_if(trainer, time.monotonic() >= self._due)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Draws if the run was stopped; one that has finished draws all its figures."""
        self._draw_if(trainer, trainer.should_stop)

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """Draws what is left."""
        self._draw_if(trainer, True)

    def _draw_if(self, trainer: pl.Trainer, now: bool) -> None:
        if not (self._outdated and now and trainer.is_global_zero and self.draw is not None):
            return
        start, self._outdated = time.monotonic(), False
        try:
            self.draw()
        except Exception as error:  # such as a full disk: a figure must not end a run of days
            warnings.warn(f"callbacks.live: the figures were not drawn ({error})", stacklevel=2)
        end = time.monotonic()
        self._due = end + max(self.every_seconds, (end - start) / SHARE)
