"""Ctrl-C and SIGTERM, which SLURM, Docker and CI send before they kill: training ends after the round."""

import signal
import threading
from types import FrameType
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.utilities import rank_zero_only

from fedem_lightning.settings.check import Checked

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class FinishRoundOnInterrupt(Checked, pl.Callback):
    """The first signal ends training after the round, in all processes after the same one; the second ends it at once.

    Outside of the rounds a signal ends the process at once. `interrupted` says whether training was ended,
    `asked` whether this process has heard a signal.
    """

    def __init__(self) -> None:
        super().__init__()
        self.interrupted = False
        self.asked = False  # whether this process was told to stop
        self._previous: dict[int, Any] = {}

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """SIGTERM counts as Ctrl-C; Lightning's own handler would exchange something between the processes."""
        if threading.current_thread() is threading.main_thread():  # Python hears signals there alone
            signal.signal(signal.SIGTERM, signal.default_int_handler)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Listens."""
        self.interrupted = self.asked = False
        if threading.current_thread() is threading.main_thread():
            self._previous = {number: signal.signal(number, self._handle) for number in SIGNALS}

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Stops after this round, before it is saved. A signal during this exchange counts in the next one."""
        self.interrupted = bool(trainer.strategy.reduce_boolean_decision(self.asked, all=False))
        trainer.should_stop = trainer.should_stop or self.interrupted

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Stops listening."""
        self._restore()

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """Stops listening."""
        self._restore()

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        if self.asked:
            self._restore()
            raise KeyboardInterrupt
        self.asked = True
        said = "\nthis round ends first, then the run stops; a second signal stops it at once"
        rank_zero_only(print)(said, flush=True)

    def _restore(self) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous = {}
