"""The progress bar: rounds, and in a long round its clients."""

import time
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.callbacks import ProgressBar
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from fedem_lightning.round import RoundObserver
from fedem_lightning.tasks import headline

LONG_ROUND_SECONDS = 2.0


class _Rate(ProgressColumn):
    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        if not speed:
            return Text("")
        return Text(f"{speed:.1f}/s" if speed >= 1 else f"{1 / speed:.1f} s each")


class RoundProgress(ProgressBar, RoundObserver):
    """One bar over rounds with rate, time left and current accuracy; a second one over clients when rounds are long.

    Where the output is no terminal: a plain line at every evaluation.
    """

    def __init__(self) -> None:
        super().__init__()
        self._console = Console()
        self._progress: Progress | None = None
        self._enabled = True
        self._round_began = 0.0

    def disable(self) -> None:
        """Shows nothing from now on."""
        self._enabled = False

    def enable(self) -> None:
        """Shows again."""
        self._enabled = True

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Draws the bar."""
        vars(pl_module)["observer"] = self
        if not (self._enabled and self._console.is_terminal):
            return
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            _Rate(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[scores]}"),
            console=self._console,
        )
        total = trainer.max_epochs if trainer.max_epochs and trainer.max_epochs > 0 else None
        self._rounds = self._progress.add_task("rounds", total=total, completed=trainer.current_epoch, scores="")
        self._clients = self._progress.add_task("  clients", visible=False, scores="")
        self._progress.start()

    def cohort_drawn(self, n_clients: int) -> None:
        """A round begins."""
        self._round_began = time.monotonic()
        if self._progress:
            self._progress.reset(self._clients, total=n_clients, visible=False)

    def clients_done(self, n_clients: int) -> None:
        """Clients have trained."""
        if self._progress:
            long = time.monotonic() - self._round_began > LONG_ROUND_SECONDS
            self._progress.update(self._clients, advance=n_clients, visible=long)

    def on_train_batch_end(self, trainer: pl.Trainer, *args: Any, **kwargs: Any) -> None:
        """A round has ended."""
        if self._progress:
            self._progress.update(self._rounds, advance=1)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Shows the scores."""
        if trainer.sanity_checking:
            return
        metrics = trainer.callback_metrics
        measure = headline(key.rpartition("/")[2] for key in metrics)[0]
        scores = {split: metrics[key] for split in ("val", "test") if (key := f"{split}/{measure}") in metrics}
        text = f"{measure} " + ", ".join(f"{name} {float(value):.4f}" for name, value in scores.items())
        if self._progress:
            self._progress.update(self._rounds, scores=text)
        elif self._enabled:
            self._console.print(f"round {trainer.current_epoch + 1}/{trainer.max_epochs}: {text}", highlight=False)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Leaves the bar as it is."""
        self._stop()

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """Leaves the bar as it is."""
        self._stop()

    def _stop(self) -> None:
        if self._progress:
            self._progress.stop()
            self._progress = None
