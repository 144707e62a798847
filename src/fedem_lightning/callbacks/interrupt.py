"""Ctrl-C between rounds."""

import signal
import threading
from types import FrameType
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.utilities import rank_zero_only


class FinishRoundOnInterrupt(pl.Callback):
    """The first Ctrl-C lets the round end, so that its checkpoint continues exactly; the second stops at once."""

    def __init__(self) -> None:
        self.interrupted = False
        self._previous: Any = None

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Listens (only Python's main thread can)."""
        if threading.current_thread() is threading.main_thread():
            self._previous = signal.signal(signal.SIGINT, self._handle)

    def on_train_batch_end(self, trainer: pl.Trainer, *args: Any, **kwargs: Any) -> None:
        """Stops after this round if asked to: all processes after the same one."""
        self.interrupted = bool(trainer.strategy.reduce_boolean_decision(self.interrupted, all=False))
        if self.interrupted:
            trainer.should_stop = True

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Stops listening."""
        self._restore()

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """Stops listening."""
        self._restore()

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        if self.interrupted:
            raise KeyboardInterrupt
        self.interrupted = True
        rank_zero_only(print)(
            "\nCtrl-C: this round ends first, then the run stops and can be resumed; again: stop at once.", flush=True
        )

    def _restore(self) -> None:
        if self._previous is not None:
            signal.signal(signal.SIGINT, self._previous)
            self._previous = None
