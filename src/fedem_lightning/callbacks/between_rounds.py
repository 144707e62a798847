"""Between rounds: checkpoints, from which a run goes on and ends with the same bits, and the end on a signal."""

import re
import signal
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Checkpoint
from pytorch_lightning.utilities import rank_zero_only

from fedem_lightning.algorithms.checkpoints import CheckpointReader
from fedem_lightning.errors import NoUpdateLeft
from fedem_lightning.records.files import replacing
from fedem_lightning.settings.check import Checked
from fedem_lightning.settings.ranges import PositiveInt

_NAME = re.compile(r"round-(\d{6,})\.ckpt")
"""Of the files that `RoundCheckpoint` writes; no other is removed."""


class MappedCheckpoints(CheckpointReader):
    """A plugin for checkpoints that may be larger than the memory: it writes and reads them piece by piece."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        """Writes a temporary file, then renames it; Lightning's plugin first builds it in memory."""
        with replacing(Path(path)) as temporary:
            _save(checkpoint, temporary)


def _save(checkpoint: dict[str, Any], path: Path) -> None:
    """`torch.save`, which hides the system's reason behind an error of its own."""
    try:
        with path.open("wb") as file:
            torch.save(checkpoint, file)
    except RuntimeError as error:
        if isinstance(error.__context__, OSError):
            raise error.__context__ from None
        raise


class RoundCheckpoint(Checked, Checkpoint):
    """Saves every `every_n_rounds` rounds, after the last one, and when a run is stopped; keeps the newest few.

    Lightning's ModelCheckpoint may be used as well, e.g. to keep the round with the best validation score. Files of
    other names than `round-NUMBER.ckpt` are left alone.

    Args:
        every_n_rounds: rounds between two checkpoints.
        keep: number of newest checkpoints to keep; with two, one is left if a file is broken.
        dirpath: folder; None: `checkpoints` in the Trainer's default_root_dir.

    """

    def __init__(
        self, every_n_rounds: PositiveInt = 10, keep: PositiveInt = 2, dirpath: str | Path | None = None
    ) -> None:
        super().__init__()
        self.every_n_rounds, self.keep, self.dirpath = every_n_rounds, keep, dirpath
        self.saved_rounds = 0  # rounds before the newest checkpoint
        self.saved: Path | None = None  # the newest checkpoint

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Saves a checkpoint if one is due."""
        rounds = trainer.current_epoch + 1
        if rounds % self.every_n_rounds and rounds != trainer.max_epochs and not trainer.should_stop:
            return
        self._save(trainer, rounds)

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """Saves the model as it was before a round of which no update was left."""
        if isinstance(exception, NoUpdateLeft) and trainer.current_epoch > self.saved_rounds:
            self._save(trainer, trainer.current_epoch)
            rank_zero_only(print)(f"saved, before round {trainer.current_epoch + 1}: {self.saved}", flush=True)

    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Removes what a run left that was killed after its last checkpoint, and has no round to go on with."""
        self._remove_old(trainer, trainer.current_epoch)

    def _save(self, trainer: pl.Trainer, rounds: int) -> None:
        if trainer.fast_dev_run:  # type: ignore[attr-defined]
            return
        path = self._folder(trainer) / f"round-{rounds:06d}.ckpt"
        trainer.save_checkpoint(path, weights_only=False)
        self.saved, self.saved_rounds = path, rounds
        self._remove_old(trainer, rounds)

    def _remove_old(self, trainer: pl.Trainer, rounds: int) -> None:
        folder = self._folder(trainer)
        for old in _numbered(folder, rounds)[: -self.keep] if trainer.is_global_zero and folder.is_dir() else ():
            old.unlink()

    def _folder(self, trainer: pl.Trainer) -> Path:
        return Path(self.dirpath or Path(trainer.default_root_dir) / "checkpoints")


def _numbered(folder: Path, rounds: int) -> list[Path]:
    """The callback's own files up to this number of rounds, the newest last."""
    found = {path: _NAME.fullmatch(path.name) for path in folder.iterdir() if path.is_file()}
    numbers = {path: int(match[1]) for path, match in found.items() if match}
    return sorted((path for path, number in numbers.items() if number <= rounds), key=lambda path: numbers[path])


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
