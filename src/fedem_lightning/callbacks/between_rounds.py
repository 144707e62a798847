"""Checkpoints between rounds, from which a run goes on and ends with the same bits."""

import re
from pathlib import Path
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
        """Writes a temporary file, then renames it (Lightning's plugin first builds it in memory).

        Raises:
            UserError: the system refuses, e.g. because the disk is full; an earlier file stays as it was.

        """
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
        path = self._folder(trainer) / f"round-{rounds:06d}.ckpt"
        trainer.save_checkpoint(path)
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
