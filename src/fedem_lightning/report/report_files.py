"""Files of the report: the page, Markdown, CSV in long and in wide form, LaTeX, and figures."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from fedem_lightning.errors import UserError, one_line
from fedem_lightning.records.files import write_atomically
from fedem_lightning.report.cells import Cell, Table
from fedem_lightning.report.collect import Skipped
from fedem_lightning.report.figures.drawing import Drawn
from fedem_lightning.report.groups import Group
from fedem_lightning.report.markup import cell_text, latex_tables, markdown_text, shorten

REPORT_FILES = ("report.html", "report.md", "report.csv", "report_wide.csv", "report.tex")
"""What every report has; the figures' names depend on the runs."""
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
        figures: figures by the name of their files without ".png" and ".svg".
        page: the page as HTML.
        more: further tables by the name of their CSV file.

    """

    tables: list[Table]
    n_runs: int
    skipped: list[Skipped] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    figures: dict[str, Drawn] = field(default_factory=dict)
    page: str = ""
    more: dict[str, pd.DataFrame] = field(default_factory=dict)

    @property
    def left_out(self) -> list[str]:
        """Lines about the runs that are not in the tables."""
        return [f"{one_line(run.folder)}: {run.reason}" for run in self.skipped] + self.notes

    @property
    def compares(self) -> bool:
        """Whether any table has a paper's number."""
        return any(key.startswith("paper_") for table in self.tables for key in table.filled())


def _markdown(report: Report) -> str:
    """The report as Markdown, with links to the files of the figures."""
    lines = ["# Report", "", f"{report.n_runs} runs. Mean ± standard deviation over seeds."]
    lines += [CAVEAT] if report.compares else []
    for table in report.tables:
        columns = table.filled()
        lines += ["", f"## {markdown_text(table.title)}", ""]
        lines.append(_row(["algorithm", *(markdown_text(column.header) for column in columns.values())]))
        lines.append("|---|" + "---:|" * len(columns))
        for group, cells in table.rows:
            texts = {key: column.show(cells.get(key)) for key, column in columns.items()}
            numbers = [f"**{text}**" if table.is_leader(group, key) else text for key, text in texts.items()]
            lines.append(_row([markdown_text(shorten(group.label)), *numbers]))
        lines += ["", *(f"- {markdown_text(note)}" for note in table.notes)] if table.notes else []
    if report.left_out:
        lines += ["", "## Left out of the tables", "", *(f"- {markdown_text(line)}" for line in report.left_out)]
    if report.figures:
        lines += ["", "## Figures", "", *(f"![{name}]({name}.png)" for name in report.figures)]
    return "\n".join(lines) + "\n"


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def tidy(report: Report) -> pd.DataFrame:
    """The report with one row for each cell; values are in the table's unit, a range is from value to high."""
    rows = [
        {
            **_place(table, group),
            "column": key,
            "value": cells[key].value,
            "std": cells[key].std,
            "high": cells[key].high,
            "seeds": cells[key].n or None,
            "source": cells[key].source or None,
        }
        for table in report.tables
        for group, cells in table.rows
        for key in table.filled(details=True)
        if key in cells
    ]
    return pd.DataFrame(rows).astype({"seeds": "Int64"})


def wide(report: Report) -> pd.DataFrame:
    """The report with one row for each group of a table: columns KEY, and KEY_std, KEY_high if there are any."""
    rows = [
        {**_place(table, group), **_values(cells, list(table.filled(details=True)))}
        for table in report.tables
        for group, cells in table.rows
    ]
    return pd.DataFrame(rows)


def _values(cells: dict[str, Cell], keys: Sequence[str]) -> dict[str, float | None]:
    found: dict[str, float | None] = {}
    for key in keys:
        if key in cells:
            found[key] = cells[key].value
            found |= {f"{key}_std": cells[key].std} if cells[key].std is not None else {}
            found |= {f"{key}_high": cells[key].high} if cells[key].high is not None else {}
    return found


def _place(table: Table, group: Group) -> dict[str, str]:
    """Names that say where a row is; no spreadsheet reads them as formulas."""
    names = {
        "dataset": table.setting.dataset,
        "setting": table.setting.title,
        "backbone": table.setting.backbone,
        "table": table.name,
        "algorithm": group.algorithm,
        "row": group.label,
    }
    return {key: cell_text(name) for key, name in names.items()}


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
    """Writes the page, the tables as Markdown, CSV and LaTeX, and the figures as PNG and SVG.

    Args:
        report: the report to write.
        folder: folder of the report; it is made if it does not exist.
        force: whether files of an earlier report may be overwritten.

    Returns:
        Paths of the files.

    Raises:
        UserError: a file exists already; then nothing is written.

    """
    texts = (
        report.page,
        _markdown(report),
        tidy(report).to_csv(index=False),
        wide(report).to_csv(index=False),
        latex_tables(report.tables),
    )
    contents = {name: text.encode() for name, text in zip(REPORT_FILES, texts, strict=True)}
    contents |= {name: table.to_csv(index=False).encode() for name, table in report.more.items()}
    for name, drawn in report.figures.items():
        contents |= {f"{name}.png": drawn.png, f"{name}.svg": drawn.svg}
    check_free(folder, list(contents), force)
    for name, content in contents.items():
        write_atomically(folder / name, content)
    return [folder / name for name in contents]
