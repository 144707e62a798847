"""Output of the report: on the terminal, as Markdown, as tidy CSV, and figures."""

import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure
from rich import box
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from fedem_lightning.errors import UserError
from fedem_lightning.report.cells import Table
from fedem_lightning.report.collect import Skipped
from fedem_lightning.run.files import write_atomically

CAVEAT = (
    "The papers' numbers belong to their own data, models and rounds; differences mean something where these agree."
)


@dataclass
class Report:
    """Content of the report.

    Args:
        tables: tables in their order.
        n_runs: number of runs in the tables.
        skipped: runs that are not in the tables.
        notes: further lines.
        figures: figures by the name of the file without ".png".

    """

    tables: list[Table]
    n_runs: int
    skipped: list[Skipped] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    figures: dict[str, Figure] = field(default_factory=dict)

    @property
    def left_out(self) -> list[str]:
        """Lines about the runs that are not in the tables."""
        return [f"{run.folder}: {run.reason}" for run in self.skipped] + self.notes

    @property
    def compares(self) -> bool:
        """Whether any table has a paper's number."""
        return any(key.startswith("paper_") for table in self.tables for key in table.filled())


def print_report(report: Report, console: Console | None = None) -> None:
    """Prints tables, notes and the runs that are left out.

    Args:
        report: the report to print.
        console: the console to print to; None: the standard output, in full width if it is no terminal.

    """
    console = console or Console()
    if not console.is_terminal:
        console = Console(file=console.file, width=max(console.width, 500))
    for table in report.tables:
        console.print(Text(f"\n{table.title}", style="bold"), soft_wrap=True)
        shown = RichTable(box=box.SIMPLE_HEAD)
        shown.add_column("algorithm")
        columns = table.filled()
        for column in columns.values():
            shown.add_column(column.header, justify="right")
        for group, cells in table.rows:
            shown.add_row(Text(group.label), *(column.show(cells.get(key)) for key, column in columns.items()))
        console.print(shown)
        for note in table.notes:
            console.print(Text(note), soft_wrap=True)
    if report.compares:
        console.print(Text(f"\n{CAVEAT}"), soft_wrap=True)
    if report.left_out:
        console.print(Text("\nleft out of the tables:"))
        for line in report.left_out:
            console.print(Text(f"  {line}"), soft_wrap=True)


def markdown(report: Report) -> str:
    """The report as Markdown, with links to the files of the figures."""
    lines = ["# Report", "", f"{report.n_runs} runs. Mean ± standard deviation over seeds."]
    lines += [CAVEAT] if report.compares else []
    for table in report.tables:
        columns = table.filled()
        lines += ["", f"## {table.title}", ""]
        lines.append(_row(["algorithm", *(column.header for column in columns.values())]))
        lines.append("|---|" + "---:|" * len(columns))
        for group, cells in table.rows:
            lines.append(_row([group.label, *(column.show(cells.get(key)) for key, column in columns.items())]))
        lines += ["", *(f"- {note}" for note in table.notes)] if table.notes else []
    if report.left_out:
        lines += ["", "## Left out of the tables", "", *(f"- {line}" for line in report.left_out)]
    if report.figures:
        lines += ["", "## Figures", "", *(f"![{name}]({name}.png)" for name in report.figures)]
    return "\n".join(lines) + "\n"


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def tidy(report: Report) -> pd.DataFrame:
    """The report with one row for each cell; values are in the table's unit, a range is from value to high."""
    rows = [
        {
            "dataset": table.setting.dataset,
            "setting": table.setting.title,
            "backbone": table.setting.backbone,
            "table": table.name,
            "algorithm": group.algorithm,
            "row": group.label,
            "column": key,
            "value": cells[key].value,
            "std": cells[key].std,
            "high": cells[key].high,
            "seeds": cells[key].n or None,
            "source": cells[key].source or None,
        }
        for table in report.tables
        for group, cells in table.rows
        for key in table.filled()
        if key in cells
    ]
    return pd.DataFrame(rows).astype({"seeds": "Int64"})


def check_free(folder: Path, names: Sequence[str], force: bool) -> None:
    """Raises an error if a file would be overwritten.

    Args:
        folder: folder of the report.
        names: names of the files.
        force: whether files may be overwritten.

    Raises:
        UserError: the folder is a file, or holds one of the files.

    """
    if folder.exists() and not folder.is_dir():
        raise UserError(f"--out: {folder} is no folder")
    there = [name for name in names if (folder / name).exists()]
    if there and not force:
        raise UserError(f"--out: {folder} already holds {', '.join(there)}; choose another folder, or add --force")


def write_report(report: Report, folder: Path, force: bool = False) -> list[Path]:
    """Writes report.md, report.csv and the figures.

    Args:
        report: the report to write.
        folder: folder of the report; it is made if it does not exist.
        force: whether files of an earlier report may be overwritten.

    Returns:
        Paths of the files.

    Raises:
        UserError: a file exists already; then nothing is written.

    """
    contents = {"report.md": markdown(report).encode(), "report.csv": tidy(report).to_csv(index=False).encode()}
    for name, figure in report.figures.items():
        image = io.BytesIO()
        figure.savefig(image, format="png", dpi=120)
        contents[f"{name}.png"] = image.getvalue()
    check_free(folder, list(contents), force)
    for name, content in contents.items():
        write_atomically(folder / name, content)
    return [folder / name for name in contents]
