"""Between rounds: checkpoints, the end once validation shows no gain, whose best round is kept, the end on a signal."""

import copy
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

from fedem_lightning.evaluate.convergence import LARGEST_FALL, best_round, errors_by_round, fall
from fedem_lightning.module.checkpoints import CheckpointReader, read_checkpoint
from fedem_lightning.settings.check import Checked
from fedem_lightning.settings.errors import NoUpdateLeft
from fedem_lightning.settings.files import replacing
from fedem_lightning.settings.ranges import PositiveInt

_NAME = re.compile(r"round-(\d{6,})\.ckpt")
"""Of the files that `RoundCheckpoint` writes; no other is removed."""


BEST = "best.ckpt"
"""The file of the best round, beside a run's newest checkpoints."""


def _folder(callback: Any, trainer: pl.Trainer) -> Path:
    return Path(callback.dirpath or Path(trainer.default_root_dir) / "checkpoints")


class MappedCheckpoints(CheckpointReader):
    """A plugin for checkpoints that may be larger than the memory: it writes and reads them piece by piece."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        """Writes a temporary file, then renames it; Lightning's plugin first builds it in memory."""
        with replacing(Path(path)) as temporary, temporary.open("wb") as file:
            try:
                torch.save(checkpoint, file)
            except RuntimeError as error:  # it hides the system's reason
                raise (error.__context__ if isinstance(error.__context__, OSError) else error) from None


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
        path = _folder(self, trainer) / f"round-{rounds:06d}.ckpt"
        trainer.save_checkpoint(path, weights_only=False)
        self.saved, self.saved_rounds = path, rounds
        self._remove_old(trainer, rounds)

    def _remove_old(self, trainer: pl.Trainer, rounds: int) -> None:
        """Removes all but the newest of the callback's own files up to this number of rounds."""
        result = {path: _NAME.fullmatch(path.name) for path in _folder(self, trainer).glob("*.ckpt") if path.is_file()}
        numbers = {path: int(match[1]) for path, match in result.items() if match}
        own = sorted((path for path, number in numbers.items() if number <= rounds), key=numbers.__getitem__)
        for old in own[: -self.keep] if trainer.is_global_zero else ():
            old.unlink()


class BestRound(Checked, pl.Callback):
    """Stops training once validation no longer improves; afterwards the model is that of the best round.

    It stops when over the last `patience` rounds, and over the last tenth of all, neither the validation loss nor the
    error has fallen by more than 0.5 % (`evaluation.convergence`). The best round has the best `val/accuracy`, or the
    lowest `val/mse` or `val/loss`, as the task has it. Needs validation samples; without them nothing stops.

    With a `PrivateMean` all rounds run and the last one counts, because a choice by clients' scores would have to be
    paid for. Under Flower training stops, too, and the last round's model is kept: the clients hold the rest of it.

    Args:
        patience: rounds without a gain after which training stops; None: it never does.
        dirpath: folder of `best.ckpt`; None: `checkpoints` in the Trainer's default_root_dir.

    """

    def __init__(self, patience: PositiveInt | None = 25, dirpath: str | Path | None = None) -> None:
        super().__init__()
        self.patience, self.dirpath = patience, dirpath
        self.best: int | None = None  # the best round so far
        self.stopped: int | None = None  # the round after which training was stopped

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Begins anew, or where the checkpoint left off."""
        model: Any = pl_module
        self.stopped = model.past = None
        model.diagnostics.pop("scored_round", None)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Keeps the round if it is the best so far; stops if the validation samples show no gain."""
        model: Any = pl_module
        last = model.statistics.rounds
        quick: bool = trainer.fast_dev_run  # type: ignore[attr-defined]
        private = model.aggregation.samples_independently
        evaluated = any(key.startswith("val/") for key in model.curves.get(last, ()))
        if quick or private or not evaluated:
            return
        if model.remote is None:
            self.best = best_round(model.curves)
            if self.best == last:
                trainer.save_checkpoint(_folder(self, trainer) / BEST, weights_only=False)
        if self.patience is None or self.since(last) < min(model.curves):
            return
        losses = {round_: row["val/loss"] for round_, row in model.curves.items() if "val/loss" in row}
        if all(fall(values, self.since(last)) <= LARGEST_FALL for values in (losses, errors_by_round(model.curves))):
            self.stopped = last
            trainer.should_stop = True

    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Makes the model that of the best round, as its checkpoint would; `whole_run` keeps all rounds' history."""
        model: Any = pl_module
        path = _folder(self, trainer) / BEST
        saved = read_checkpoint(path) if self.best and path.exists() else None
        if saved is not None and len(saved["statistics"]["round_seconds"]) != self.best:
            saved = None  # of an earlier training in the same folder
        if self.stopped is not None:
            kept = "the last model counts" if saved is None else f"the model of round {self.best} is kept"
            rank_zero_only(print)(
                f"stopped by BestRound at round {self.stopped} of at most {trainer.max_epochs}: over rounds "
                f"{self.since(self.stopped)} to {self.stopped} the validation scores improved by less than "
                f"{LARGEST_FALL:.1%}; {kept}"
            )
        if saved is None or self.best == model.statistics.rounds:
            return
        model.past = copy.deepcopy(model.statistics), model.curves
        model.on_load_checkpoint(saved)
        model.load_state_dict(saved["state_dict"])
        model.diagnostics["scored_round"] = self.best

    def since(self, last: int) -> int:
        """The round since which the validation scores have to improve if training is to go on after round `last`."""
        return min(last - (self.patience or last), int(0.9 * last))

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs."""
        return {"best": self.best}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes the state of a checkpoint."""
        self.best = state_dict["best"]


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
            self._previous = {number: signal.signal(number, self._handle) for number in (signal.SIGINT, signal.SIGTERM)}

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
        message = "\nthis round ends first, then the run stops; a second signal stops it at once"
        rank_zero_only(print)(message, flush=True)

    def _restore(self) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous = {}
