"""The best round on validation samples: training stops once they show no gain, and that round's model is kept."""

import copy
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.utilities import rank_zero_only

from fedem_lightning.algorithms.checkpoints import read_checkpoint
from fedem_lightning.evaluation.convergence import LARGEST_FALL, best_round, errors_by_round, fall
from fedem_lightning.settings.check import Checked
from fedem_lightning.settings.ranges import PositiveInt

BEST = "best.ckpt"
"""The file of the best round, beside a run's newest checkpoints."""


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
                trainer.save_checkpoint(self._path(trainer), weights_only=False)
        if self.patience is None or self.since(last) < min(model.curves):
            return
        losses = {round_: row["val/loss"] for round_, row in model.curves.items() if "val/loss" in row}
        if all(fall(values, self.since(last)) <= LARGEST_FALL for values in (losses, errors_by_round(model.curves))):
            self.stopped = last
            trainer.should_stop = True

    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Makes the model that of the best round, as its checkpoint would; `whole_run` keeps all rounds' history."""
        model: Any = pl_module
        path = self._path(trainer)
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

    def _path(self, trainer: pl.Trainer) -> Path:
        return Path(self.dirpath or Path(trainer.default_root_dir) / "checkpoints") / BEST
