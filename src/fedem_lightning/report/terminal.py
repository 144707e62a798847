"""The report on the terminal, once or again and again (`--watch`): no number is cut; columns without room are named."""

import textwrap
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from rich import box
from rich.console import Console, RenderableType
from rich.console import Group as Stack
from rich.live import Live
from rich.table import Table as RichTable
from rich.text import Text

from fedem_lightning.errors import UserError, one_line
from fedem_lightning.records.measures import headline
from fedem_lightning.report.cells import Table, TableColumn
from fedem_lightning.report.collect import Skipped, find_runs, read_config
from fedem_lightning.report.finished_run import Run
from fedem_lightning.report.markup import shorten
from fedem_lightning.report.report_files import CAVEAT, Report

_FIRST = (
    "weighted",
    "paper_weighted",
    "bottom_decile",
    "val",
    "learning_rate",
    "unseen",
    "mean",
    "seeds",
    "worse_than_local",
)
"""Columns that are left out last; of the others the right ones go first."""
_LEAST_LABEL = 24
"""Letters of a label that always have room on one line."""
_PADDING = 3


def print_report(report: Report, console: Console | None = None) -> None:
    """Prints tables, notes and the runs that are left out.

    Args:
        report: the report to print.
        console: the console to print to; None: the standard output, in full width if it is no terminal.

    """
    console = _full_width(console or Console())
    print_parts(parts(report, console.width), console)


def print_parts(parts: Iterable[Text | RichTable], console: Console | None = None) -> None:
    """Prints texts and tables; see `print_report`."""
    console = _full_width(console or Console())
    for part in parts:
        console.print(part, soft_wrap=isinstance(part, Text))


def _full_width(console: Console) -> Console:
    """The console itself, or one without a limit if the output is no terminal."""
    return console if console.is_terminal else Console(file=console.file, width=max(console.width, 500))


def parts(report: Report, width: int) -> Iterator[Text | RichTable]:
    """The report piece by piece, for a terminal of `width` letters."""
    for table in report.tables:
        yield Text(f"\n{one_line(table.title)}", style="bold")
        shown, left_out = _fitted(table, width)
        yield _drawn(table, shown, width)
        if left_out:
            names = ", ".join(column.header for column in left_out.values())
            yield Text(f"no room for: {names} (report.csv of --out has all columns)", style="dim")
        yield from (Text(one_line(note)) for note in table.notes)
    if report.compares:
        yield Text(f"\n{CAVEAT}")
    if report.left_out:
        yield Text("\nleft out of the tables:")
        yield from (Text(f"  {one_line(line)}") for line in report.left_out)


def _fitted(table: Table, width: int) -> tuple[dict[str, TableColumn], dict[str, TableColumn]]:
    """The columns for which there is room beside the labels, and the others."""
    columns = table.filled()
    room = width - min(_longest_label(table), _LEAST_LABEL) - _PADDING - 2
    shown = []
    for key in [*(key for key in _FIRST if key in columns), *(key for key in columns if key not in _FIRST)]:
        needed = _width(table, key, columns[key]) + _PADDING
        if needed > room:
            break  # no lesser column takes the place of a greater one
        room -= needed
        shown.append(key)
    return {k: c for k, c in columns.items() if k in shown}, {k: c for k, c in columns.items() if k not in shown}


def _width(table: Table, key: str, column: TableColumn) -> int:
    cells = max(len(column.show(cells.get(key))) for _, cells in table.rows)
    return max([cells, *map(len, one_line(column.header).split())])


def _longest_label(table: Table) -> int:
    return max([len("algorithm"), *(len(shorten(group.label)) for group, _ in table.rows)])


def _drawn(table: Table, columns: dict[str, TableColumn], width: int) -> RichTable:
    drawn = RichTable(box=box.SIMPLE_HEAD)
    widths = {key: _width(table, key, column) for key, column in columns.items()}
    room = width - sum(w + _PADDING for w in widths.values()) - _PADDING - 2
    drawn.add_column("algorithm", overflow="fold", width=max(1, min(room, _longest_label(table))))
    for key, column in columns.items():
        header = textwrap.fill(one_line(column.header), widths[key], break_long_words=False, break_on_hyphens=False)
        drawn.add_column(Text(header), justify="right", width=widths[key], no_wrap=True)
    for group, cells in table.rows:
        texts = {key: column.show(cells.get(key)) for key, column in columns.items()}
        styled = [Text(text, style="bold" if table.is_leader(group, key) else "") for key, text in texts.items()]
        drawn.add_row(Text(shorten(group.label)), *styled)
    return drawn


@dataclass(frozen=True)
class _Unfinished:
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
        running = [found for run in skipped if (found := _unfinished(run)) is not None]
        folders = {found.folder for found in running}
        yield from parts(self.report(runs, [run for run in skipped if run.folder not in folders]), width)
        yield Text(f"\n{len(runs)} finished, {len(running)} unfinished")
        yield from (Text(f"  {found}") for found in running)


def _unfinished(run: Skipped) -> _Unfinished | None:
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
        return _Unfinished(run.folder, 0, rounds, "")
    return _Unfinished(run.folder, int(metrics["round"].max()), rounds, _last_scores(metrics))


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
