"""`--watch`: the table of a sweep while it runs, drawn again every few seconds."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from rich.console import Console, RenderableType
from rich.console import Group as Stack
from rich.live import Live
from rich.table import Table as RichTable
from rich.text import Text

from fedem_lightning.errors import UserError
from fedem_lightning.records.measures import headline
from fedem_lightning.report.collect import Skipped, find_runs, read_config
from fedem_lightning.report.finished_run import Run
from fedem_lightning.report.terminal import parts
from fedem_lightning.report.writing import Report
from fedem_lightning.run.plain_text import one_line


@dataclass(frozen=True)
class Unfinished:
    """A run that has not ended.

    Args:
        folder: the run's folder.
        round: the last round in metrics.csv.
        rounds: number of planned rounds; None if the configuration does not tell.
        scores: the last validation and test score as text.

    """

    folder: Path
    round: int
    rounds: int | None
    scores: str

    def __str__(self) -> str:
        of = "" if self.rounds is None else f" of {self.rounds}"
        return f"{one_line(self.folder)}: round {self.round}{of}{self.scores}"


class Watch:
    """What the terminal shows of some folders; finished runs are read once.

    Args:
        folders: folders of runs, or folders above them; they may still be empty.
        report: makes the report of the finished runs.

    """

    def __init__(self, folders: Sequence[str], report: Callable[[list[Run], list[Skipped]], Report]) -> None:
        self.folders, self.report = folders, report
        self.known: dict[Path, tuple[float, Run]] = {}

    def parts(self, width: int) -> Iterator[Text | RichTable]:
        """The present state piece by piece, for a terminal of `width` letters.

        Raises:
            UserError: a folder is missing.

        """
        try:
            runs, skipped = find_runs(self.folders, self.known)
        except UserError:
            if not all(Path(folder).is_dir() for folder in self.folders):
                raise
            runs, skipped = [], []
        running = [found for run in skipped if (found := unfinished(run)) is not None]
        folders = {found.folder for found in running}
        yield from parts(self.report(runs, [run for run in skipped if run.folder not in folders]), width)
        yield Text(f"\n{len(runs)} finished, {len(running)} unfinished")
        yield from (Text(f"  {found}") for found in running)


def unfinished(run: Skipped) -> Unfinished | None:
    """How far a run without results has come; None if it is no such run."""
    if not run.reason.startswith("unfinished"):
        return None
    metrics = Run(run.folder, {}, {}).metrics
    try:
        planned = read_config(run.folder / ".hydra" / "config.yaml").get("trainer.max_epochs")
    except UserError:
        planned = None
    rounds = planned if isinstance(planned, int) else None
    if metrics is None or "round" not in metrics or not metrics["round"].notna().any():
        return Unfinished(run.folder, 0, rounds, "")
    return Unfinished(run.folder, int(metrics["round"].max()), rounds, _last_scores(metrics))


def _last_scores(metrics: pd.DataFrame) -> str:
    said = ""
    for split in ("val", "test"):
        measures = [str(c).removeprefix(f"{split}/") for c in metrics if str(c).startswith(f"{split}/")]
        name, factor, _ = headline(measures)
        values = metrics[f"{split}/{name}"].dropna() if name in measures else pd.Series(dtype=float)
        if len(values):
            said += f", {split} {name} {factor * float(values.iloc[-1]):.4g}"
    return said


def watch(
    view: Watch, every: float, console: Console | None = None, sleep: Callable[[float], None] = time.sleep
) -> None:
    """Draws the state every `every` seconds until Ctrl-C, then prints it once more."""
    console = console or Console()
    try:
        with Live(console=console, auto_refresh=False, transient=True) as live:
            while True:
                live.update(_stack(view, console), refresh=True)
                sleep(every)
    except KeyboardInterrupt:
        console.print(_stack(view, console))


def _stack(view: Watch, console: Console) -> RenderableType:
    return Stack(*view.parts(console.width))
