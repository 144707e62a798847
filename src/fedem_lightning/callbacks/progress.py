"""What a run shows before it has finished: a progress bar over rounds and their long stages, and figures."""

import math
import time
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytorch_lightning as pl
from pytorch_lightning.callbacks import ProgressBar
from pytorch_lightning.trainer.states import TrainerFn
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from fedem_lightning.engine import LoopEngine, cores
from fedem_lightning.records.measures import headline, in_words
from fedem_lightning.settings.check import Checked
from fedem_lightning.settings.ranges import NotNegative

if TYPE_CHECKING:
    from fedem_lightning.algorithms.base import FederatedAlgorithm

LONG_STAGE_SECONDS = 2.0
"""Seconds after which a stage gets a bar of its own."""
LINE_SECONDS = 60.0
"""Seconds between two lines about a long stage where the output is no terminal."""
ESTIMATE_SECONDS = 10.0
"""Seconds after which the length of the first round is extrapolated before the round ends."""
LONG_RUN_SECONDS = 600.0
"""Seconds above which the estimated length of a run is printed."""
DRAWING_SHARE = 0.02
"""Largest share of a run's time that drawing takes."""


class _Rate(ProgressColumn):
    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text((f"{speed:.1f}/s" if speed >= 1 else f"{1 / speed:.1f} s each") if speed else "")


class _Done(MofNCompleteColumn):
    """Column that shows rounds as numbers and stages as a percentage."""

    _share = TaskProgressColumn()

    def render(self, task: Task) -> Text:
        return super().render(task) if task.fields["counted"] else self._share.render(task)


class RoundProgress(ProgressBar):
    """One bar over rounds with rate, time left and current scores; a second bar over a long stage.

    Stages are client updates, personalisation and scoring. Where the output is no terminal, a plain line is printed at
    every evaluation, and once a minute during a long stage. Before a long run a line estimates how long it will take.
    """

    def __init__(self) -> None:
        super().__init__()
        self._console = Console()
        self._progress: Progress | None = None
        self._enabled = True
        self._stage, self._total, self._done = "", 0, 0.0
        self._began = self._looked = self._spoke = 0.0
        self._estimated = False

    def disable(self) -> None:
        """Switches the progress bar off."""
        self._enabled = False

    def enable(self) -> None:
        """Switches the progress bar on."""
        self._enabled = True

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Draws the bar."""
        self._show(trainer, pl_module, rounds=True)

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Draws the bar if there is none yet."""
        self._show(trainer, pl_module)

    on_test_start = on_validation_start

    def begin(self, stage: str, total: int) -> None:
        """Begins a stage."""
        self._stage, self._total, self._done = stage, total, 0.0
        self._began = self._spoke = time.monotonic()
        self._looked = -math.inf
        if self._progress:
            self._progress.reset(self._within, total=total, visible=False, description=f"  {stage}")

    def advance(self, amount: float) -> None:
        """Moves the stage's bar by `amount`, or prints a line once a minute."""
        self._done += amount
        now = time.monotonic()
        if now - self._looked < 0.1:  # there may be many short steps
            return
        self._looked, elapsed = now, now - self._began
        if self._stage == "clients" and not self._estimated and elapsed > ESTIMATE_SECONDS:
            self._estimate(elapsed * self._total / self._done)
        if self._progress:
            long = elapsed > LONG_STAGE_SECONDS
            new = long and not self._progress.tasks[self._within].visible
            self._progress.update(self._within, completed=self._done, visible=long, refresh=new)
        elif self._enabled and now - self._spoke > LINE_SECONDS and self._total:
            self._spoke = now
            share = f"{self._done / self._total:.0%} after {duration(elapsed)}"
            self._console.print(f"  {self._stage}: {share}", highlight=False)

    def on_train_batch_end(self, trainer: pl.Trainer, *args: Any, **kwargs: Any) -> None:
        """Moves the bar by one round."""
        if not self._estimated and self._stage == "clients":  # a start at clients' models is no round
            self._estimate(time.monotonic() - self._began)
        if self._progress:
            self._progress.update(self._rounds, advance=1)
            self._progress.update(self._within, visible=False)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Shows the scores."""
        if trainer.sanity_checking or trainer.state.fn != TrainerFn.FITTING:
            return self._stop()
        metrics = trainer.callback_metrics
        measure = headline(key.rpartition("/")[2] for key in metrics)[0]
        scores = {split: metrics[key] for split in ("val", "test") if (key := f"{split}/{measure}") in metrics}
        text = f"{measure} " + ", ".join(f"{name} {in_words(float(value), measure)}" for name, value in scores.items())
        if self._progress:
            self._progress.update(self._rounds, scores=text)
            self._progress.update(self._within, visible=False)
        elif self._enabled:
            self._console.print(f"round {trainer.current_epoch + 1}/{trainer.max_epochs}: {text}", highlight=False)

    def on_train_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException | None = None
    ) -> None:
        """Stops the bar; it stays on the screen."""
        self._stop()

    on_test_end = on_exception = on_train_end

    def _show(self, trainer: pl.Trainer, module: pl.LightningModule, rounds: bool = False) -> None:
        module.local.observer.watcher = self  # type: ignore[union-attr]
        self._model, self._of = module, trainer
        if self._progress or not (self._enabled and self._console.is_terminal):
            return
        columns = (TextColumn("{task.description}"), BarColumn(), _Done(), _Rate(), TimeRemainingColumn())
        self._progress = Progress(*columns, TextColumn("{task.fields[scores]}"), console=self._console)
        total = trainer.max_epochs if trainer.max_epochs and trainer.max_epochs > 0 else None
        self._rounds = self._progress.add_task(
            "rounds", total=total, completed=trainer.current_epoch, visible=rounds, scores="", counted=True
        )
        self._within = self._progress.add_task("", visible=False, scores="", counted=False)
        self._progress.start()

    def _estimate(self, round_seconds: float) -> None:
        """Prints once how long the rounds will take, if that is long."""
        self._estimated = True
        left = (self._of.max_epochs or 0) - self._of.current_epoch
        if self._enabled and left * round_seconds > LONG_RUN_SECONDS:
            all_rounds = f", {duration(left * round_seconds)} for {left} rounds" if left > 1 else ""
            each = f"about {duration(round_seconds)} a round{all_rounds}"
            n = faster_with(self._model, self._of.world_size, cores())  # type: ignore[arg-type]
            advice = f"; {duration(round_seconds / n)} a round at best with trainer.devices={n}" if n else ""
            self._console.print(f"{each}, evaluation apart{advice}", highlight=False)

    def _stop(self) -> None:
        if self._progress:
            self._progress.stop()
            self._progress = None


def faster_with(model: "FederatedAlgorithm", n_processes: int, n_cores: int) -> int:
    """The value of trainer.devices that would use the idle cores; 0 if no value would help."""
    idle = model.device.type == "cpu" and n_processes == 1 < n_cores
    return n_cores if idle and isinstance(model.local.engine, LoopEngine) else 0


def duration(seconds: float) -> str:
    """A time in the largest fitting unit: 12 s, 3.5 min, 40 min, 5.5 h, 3.2 days."""
    for size, unit in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}" if seconds < 10 * size else f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


class LiveFigures(Checked, pl.Callback):
    """Draws the scores by round again after an evaluation, but not more often than every `every_seconds`.

    An evaluation that comes sooner is drawn at the end of the first round after that time, or when the run is stopped.
    The first process draws. What goes wrong is a warning, and the run continues.

    Args:
        every_seconds: from the end of one drawing, or the start of the training, to the next drawing.
        draw: draws; None: the command line sets it, and elsewhere nothing is drawn.

    """

    def __init__(self, every_seconds: NotNegative = 10.0, draw: Callable[[], None] | None = None) -> None:
        super().__init__()
        self.every_seconds, self.draw = every_seconds, draw
        self._due, self._outdated = 0.0, False

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Begins to wait."""
        self._due, self._outdated = time.monotonic() + self.every_seconds, False

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Draws the scores of this evaluation if it is time."""
        if trainer.state.fn == "fit" and not trainer.sanity_checking:
            self._outdated = True
            self._draw_if(trainer, time.monotonic() >= self._due)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Draws what an earlier evaluation has left if it is time."""
        self._draw_if(trainer, time.monotonic() >= self._due)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Draws if the run was stopped; one that has finished draws all its figures."""
        self._draw_if(trainer, trainer.should_stop)

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """Draws what is left."""
        self._draw_if(trainer, True)

    def _draw_if(self, trainer: pl.Trainer, now: bool) -> None:
        if not (self._outdated and now and trainer.is_global_zero and self.draw is not None):
            return
        start, self._outdated = time.monotonic(), False
        try:
            self.draw()
        except Exception as error:  # such as a full disk: a figure must not end a run of days
            warnings.warn(f"callbacks.live: the figures were not drawn ({error})", stacklevel=2)
        end = time.monotonic()
        self._due = end + max(self.every_seconds, (end - start) / DRAWING_SHARE)
