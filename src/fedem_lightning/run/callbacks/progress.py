"""The progress of a run: Lightning's bar, over rounds in place of batches; without a terminal, lines."""

from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.callbacks import RichProgressBar
from pytorch_lightning.trainer.states import TrainerFn
from rich.console import Console

from fedem_lightning.settings.measures import headline, in_words


class RoundProgress(RichProgressBar):
    """A bar over the rounds, with the newest scores.

    Without a terminal it prints a line after every evaluation.

    Args:
        console: options of rich's `Console`.

    """

    def __init__(self, **console: Any) -> None:
        super().__init__(refresh_rate=4, console_kwargs=console)
        self._console: Console = Console(**console)
        self._scores: dict[str, str] = {}

    @property
    def is_enabled(self) -> bool:
        """Whether a bar is drawn."""
        return bool(self._enabled and self._console.is_terminal)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Draws the bar."""
        super().on_train_start(trainer, pl_module)
        if self.progress is not None:
            total = float("inf") if trainer.max_epochs in (None, -1) else trainer.max_epochs
            self.train_progress_bar_id = self.progress.add_task("rounds", total=total, completed=trainer.current_epoch)

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Does nothing: Lightning would begin a bar over the round's one batch."""

    def get_metrics(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> dict[str, Any]:
        """What stands beside the bar: the newest scores."""
        return dict(self._scores)

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *args: Any, **kwargs: Any) -> None:
        """Moves the bar by one round."""
        self._update(self.train_progress_bar_id, trainer.current_epoch + 1)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Shows the scores."""
        if not trainer.sanity_checking and trainer.state.fn == TrainerFn.FITTING:
            metrics = trainer.callback_metrics
            measure = headline(key.rpartition("/")[2] for key in metrics)[0]
            result = {split: metrics[key] for split in ("val", "test") if (key := f"{split}/{measure}") in metrics}
            self._scores = {f"{split} {measure}": in_words(float(value), measure) for split, value in result.items()}
            if self._enabled and not self.is_enabled:
                message = ", ".join(f"{name} {value}" for name, value in self._scores.items())
                text = f"round {trainer.current_epoch + 1}/{trainer.max_epochs}: {message}"
                self._console.print(text, highlight=False, soft_wrap=True)
        super().on_validation_end(trainer, pl_module)
