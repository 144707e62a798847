"""Ctrl-C and SIGTERM between rounds."""

import signal
import threading
from types import FrameType
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.utilities import rank_zero_only

from fedem_lightning.settings.check import Checked
from fedem_lightning.settings.ranges import NotNegative

SIGNALS: dict[int, str] = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM"}
"""What stops a run, and what it is called."""
GRACE_SECONDS = 5.0


class FinishRoundOnInterrupt(Checked, pl.Callback):
    """The first Ctrl-C or SIGTERM lets the round end, so that its checkpoint continues exactly; the second does not.

    Args:
        grace_seconds: on the command line, how long SIGTERM waits for the round: its senders kill soon, Docker after 10
            seconds, SLURM after 30. The run then continues from the last checkpoint.

    """

    def __init__(self, grace_seconds: NotNegative = GRACE_SECONDS) -> None:
        self.grace_seconds = grace_seconds
        self.interrupted = False  # whether all processes stop, as they have agreed
        self.signal_name = "a signal sent to one of its processes"
        self._asked = False  # whether this process was told to stop
        self._previous: dict[int, Any] = {}

    @property
    def listening(self) -> bool:
        """Whether rounds are trained."""
        return bool(self._previous)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Listens (only Python's main thread can)."""
        if threading.current_thread() is threading.main_thread():
            self._previous = {number: signal.signal(number, self._handle) for number in SIGNALS}

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Stops after this round if asked to: all processes after the same one, and before it is saved."""
        self._agree(trainer)
        if self.interrupted:
            trainer.should_stop = True

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Stops listening; a signal may have come after the last round."""
        self._restore()
        self._agree(trainer)

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """Stops listening."""
        self._restore()

    def _agree(self, trainer: pl.Trainer) -> None:
        """Whether a process was told to stop. A signal that comes during this exchange counts in the next one."""
        self.interrupted = bool(trainer.strategy.reduce_boolean_decision(self._asked, all=False))

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        if self._asked:
            previous = self._previous.get(signum)
            self._restore()
            if callable(previous):
                previous(signum, frame)
            raise KeyboardInterrupt
        self._asked, self.signal_name = True, SIGNALS[signum]
        if signum == signal.SIGINT:
            rank_zero_only(print)(
                "\nCtrl-C: this round ends first, then the run stops and can be resumed; again: stop at once.",
                flush=True,
            )

    def _restore(self) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous = {}
