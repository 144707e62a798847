"""Checkpoints between rounds; a run that continues from one ends with the same bits."""

from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Checkpoint
from pytorch_lightning.plugins.io import TorchCheckpointIO

from fedem_lightning.settings.check import Checked
from fedem_lightning.settings.ranges import PositiveInt


class MappedCheckpoints(TorchCheckpointIO):
    """A plugin for checkpoints that may be larger than the memory: it writes and reads them piece by piece."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        """Writes a temporary file, then renames it (Lightning's plugin would first build the file in memory)."""
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(f".{target.name}.tmp")
        torch.save(checkpoint, temporary)
        temporary.replace(target)

    def load_checkpoint(self, path: Any, map_location: Any = None, weights_only: bool | None = None) -> dict[str, Any]:
        """Reads a checkpoint as Lightning's plugin does, without executing code from the file."""
        return torch.load(path, map_location="cpu", weights_only=True, mmap=True)


class RoundCheckpoint(Checked, Checkpoint):
    """Saves every `every_n_rounds` rounds, after the last one, and when a run is stopped; keeps the newest few.

    Lightning's ModelCheckpoint may be used as well, e.g. to keep the round with the best validation score.

    Args:
        every_n_rounds: rounds between two checkpoints.
        keep: number of newest checkpoints to keep; with two, one is left if a file is broken.
        dirpath: folder; None: `checkpoints` in the Trainer's default_root_dir.

    """

    settings_key = "callbacks.checkpoint"

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
        folder = Path(self.dirpath or Path(trainer.default_root_dir) / "checkpoints")
        path = folder / f"round-{rounds:06d}.ckpt"
        trainer.save_checkpoint(path)  # Lightning writes it atomically
        self.saved, self.saved_rounds = path, rounds
        if not trainer.is_global_zero:
            return
        for old in sorted(folder.glob("round-*.ckpt"))[: -self.keep]:
            old.unlink()
