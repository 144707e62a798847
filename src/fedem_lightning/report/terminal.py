"""The report on the terminal: no number is ever cut; columns for which there is no room are named."""

import textwrap
from collections.abc import Iterable, Iterator

from rich import box
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from fedem_lightning.report.cells import Cell, Column, Table
from fedem_lightning.report.groups import Group
from fedem_lightning.report.markup import shorten
from fedem_lightning.report.writing import CAVEAT, Report
from fedem_lightning.run.plain_text import one_line

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
    for part in parts(report, console.width):
        console.print(part, soft_wrap=isinstance(part, Text))


def print_parts(parts: Iterable[Text | RichTable]) -> None:
    """Prints texts and tables to the standard output."""
    console = _full_width(Console())
    for part in parts:
        console.print(part, soft_wrap=isinstance(part, Text))


def _full_width(console: Console) -> Console:
    """The console itself, or one without a limit if the output is no terminal."""
    return console if console.is_terminal else Console(file=console.file, width=max(console.width, 500))


def parts(report: Report, width: int) -> Iterator[Text | RichTable]:
    """The report piece by piece, for a terminal of `width` letters."""
    for table in report.tables:
        yield Text(f"\n{one_line(table.title)}", style="bold")
        shown, left_out = fitted(table, width)
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


def fitted(table: Table, width: int) -> tuple[dict[str, Column], dict[str, Column]]:
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


def _width(table: Table, key: str, column: Column) -> int:
    cells = max(len(column.show(cells.get(key))) for _, cells in table.rows)
    return max([cells, *map(len, one_line(column.header).split())])


def _longest_label(table: Table) -> int:
    return max([len("algorithm"), *(len(shorten(group.label)) for group, _ in table.rows)])


def _drawn(table: Table, columns: dict[str, Column], width: int) -> RichTable:
    drawn = RichTable(box=box.SIMPLE_HEAD)
    widths = {key: _width(table, key, column) for key, column in columns.items()}
    room = width - sum(w + _PADDING for w in widths.values()) - _PADDING - 2
    drawn.add_column("algorithm", overflow="fold", width=max(1, min(room, _longest_label(table))))
    for key, column in columns.items():
        header = textwrap.fill(one_line(column.header), widths[key], break_long_words=False, break_on_hyphens=False)
        drawn.add_column(Text(header), justify="right", width=widths[key], no_wrap=True)
    for group, cells in table.rows:
        drawn.add_row(
            Text(shorten(group.label)), *(_cell(table, group, k, c, cells.get(k)) for k, c in columns.items())
        )
    return drawn


def _cell(table: Table, group: Group, key: str, column: Column, cell: Cell | None) -> Text:
    leads = group.label in table.leaders.get(key, ())
    return Text(column.show(cell), style="bold" if leads else "")
