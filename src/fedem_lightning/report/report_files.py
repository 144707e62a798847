"""Files of the report: the page, Markdown, CSV in long and in wide form, LaTeX, and figures."""

import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from fedem_lightning.errors import one_line, require
from fedem_lightning.records.files import write_atomically
from fedem_lightning.report.cells import Cell, Table, cell_text
from fedem_lightning.report.collect import Skipped
from fedem_lightning.report.drawing import Drawn
from fedem_lightning.report.paper_style import paper_files
from fedem_lightning.report.ranks import Ranks

REPORT_FILES = ("report.html", "report.md", "report.csv", "report_wide.csv", "report.tex")
"""What every report has; the figures' names depend on the runs."""
CAVEAT = (
    "The papers' numbers belong to their own data, models and rounds; differences mean something where these agree."
)
_LATEX = {c: f"\\{c}" for c in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': "''",  # the sign itself needs another font encoding
}
_COLUMN_HOLDS = 3
"""Largest number of columns of a table that one column of a printed page with two has room for."""
_NOT_IN_LATEX = ("seeds", "rounds", "mean", "train", "val", "seconds", "unseen_train")
"""Columns that a page in print has no room for; report.csv has them."""


@dataclass
class Report:
    """Content of the report.

    Args:
        tables: tables in their order.
        n_runs: number of runs in the tables.
        skipped: runs that are not in the tables.
        notes: further lines.
        figures: figures by the name of their files without their endings.
        page: the page as HTML.
        more: further tables by the name of their CSV file.
        ranks: methods by data sets; None for one data set.
        style: "paper": figures also as for a printed page, see `paper_files`; None: without.
        main: the algorithm that headlines are about, with wide lines; None: the best one, and wide lines for FedEM.

    """

    tables: list[Table]
    n_runs: int
    skipped: list[Skipped] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    figures: dict[str, Drawn] = field(default_factory=dict)
    page: str = ""
    more: dict[str, pd.DataFrame] = field(default_factory=dict)
    ranks: Ranks | None = None
    style: str | None = None
    main: str | None = None

    @property
    def left_out(self) -> list[str]:
        """Lines about the runs that are not in the tables."""
        return [f"{one_line(run.folder)}: {run.reason}" for run in self.skipped] + self.notes

    @property
    def compares(self) -> bool:
        """Whether any table has a paper's number."""
        return any(key.startswith("paper_") for table in self.tables for key in table.filled())


def markdown_text(text: str) -> str:
    """A text in Markdown that shows as it is, on one line, also in a table."""
    text = re.sub(r"([\\`*\[\]<>|$~])", r"\\\1", one_line(text)).replace("&", "&amp;")
    text = re.sub(r"(?<![^\W_])_|_(?![^\W_])", r"\\_", text)  # within a word it has no meaning
    return re.sub(r"^([#+-])", r"\\\1", text)


def _markdown(report: Report) -> str:
    """The report as Markdown, with links to the files of the figures."""
    lines = ["# Report", "", f"{report.n_runs} run{'s' * (report.n_runs != 1)}. Mean ± standard deviation over seeds."]
    lines += [CAVEAT] if report.compares else []
    for table in report.tables:
        columns = table.filled()
        headers = ["algorithm", *(markdown_text(column.header) for column in columns.values())]
        lines += ["", f"## {markdown_text(table.title)}", "", f"| {' | '.join(headers)} |"]
        lines.append("|---|" + "---:|" * len(columns))
        for label, texts in table.lines(columns):
            numbers = [f"**{text}**" if bold else text for text, bold in texts]
            lines.append(f"| {' | '.join([markdown_text(label), *numbers])} |")
        notes = [*table.notes, *table.warnings]
        lines += ["", *(f"- {markdown_text(note)}" for note in notes)] if notes else []
    if report.ranks is not None:
        lines += _ranks(report.ranks)
    if report.left_out:
        lines += ["", "## Left out of the tables", "", *(f"- {markdown_text(line)}" for line in report.left_out)]
    if report.figures:
        lines += ["", "## Figures", "", *(f"![{name}]({name}.png)" for name in report.figures)]
    return "\n".join(lines) + "\n"


def _ranks(ranks: Ranks) -> list[str]:
    """Methods by data sets in Markdown."""
    lines = [
        "",
        "## Methods by data sets",
        "",
        f"| method | average rank | {' | '.join(markdown_text(str(name)) for name in ranks.scores)} |",
    ]
    lines.append("|---|" + "---:|" * (1 + ranks.scores.shape[1]))
    for name in ranks.average.index:
        numbers = [f"{ranks.average[name]:.2f}", *(f"{score:.4g}" for score in ranks.scores.loc[name])]
        lines.append(f"| {markdown_text(name)} | {' | '.join(numbers)} |")
    return [*lines, "", *(f"- {markdown_text(line)}" for line in [ranks.sentence, *ranks.notes])]


def latex_text(text: str) -> str:
    """A text in LaTeX that shows as it is; letters that the default fonts lack become "?"."""
    return "".join(_LATEX.get(c) or (c if c < "\u0100" else "?") for c in one_line(text))


def _latex(table: Table) -> str:
    """A table for a document that loads booktabs; words of headers stand below one another, as narrow as numbers."""
    columns = {key: column for key, column in table.filled().items() if key not in _NOT_IN_LATEX}
    words = [textwrap.wrap(column.header, 9, break_long_words=False) for column in columns.values()]
    depth = max(map(len, words), default=1)
    stacked = [[""] * (depth - len(parts)) + [latex_text(part) for part in parts] for parts in [["algorithm"], *words]]
    rows = [
        [latex_text(label), *(rf"\textbf{{{_number(text)}}}" if bold else _number(text) for text, bold in texts)]
        for label, texts in table.lines(columns)
    ]
    header, body = ("\n".join(" & ".join(row) + r" \\" for row in part) for part in (zip(*stacked, strict=True), rows))
    notes = [rf"\par\smallskip {{\footnotesize {latex_text(note)}}}" for note in [*table.notes, *table.warnings]]
    kind = "table*" if len(columns) > _COLUMN_HOLDS else "table"  # over both columns of a page with two
    lines = [
        *(rf"\begin{{{kind}}}", r"\centering", r"\footnotesize", r"\setlength{\tabcolsep}{4pt}"),
        *(rf"\caption{{{latex_text(table.title)}}}", rf"\begin{{tabular}}{{l{'r' * len(columns)}}}"),
        *(r"\toprule", header, r"\midrule", body, r"\bottomrule", r"\end{tabular}", *notes, rf"\end{{{kind}}}", ""),
    ]
    return "\n".join(lines)


def _number(text: str) -> str:
    """A number as the tables show it; a missing one is a dash, a minus sign is set as one."""
    if text == "-":
        return "--"
    value = f"$-${latex_text(text[1:])}" if text.startswith("-") else latex_text(text)
    return value if text.startswith("-") else value.replace("-", "--")  # a range


def _rows(report: Report) -> Iterator[tuple[dict[str, Any], dict[str, Cell]]]:
    """For each row of each table names that say where it is, which no spreadsheet reads as formulas, and its cells."""
    for table in report.tables:
        for group, cells in table.rows:
            place = {"dataset": table.setting.dataset, "setting": table.setting.title}
            place |= {"backbone": table.setting.backbone, "table": table.name}
            place |= {"algorithm": group.algorithm, "row": group.label}
            shown = {key: cells[key] for key in table.filled(details=True) if key in cells}
            yield {key: cell_text(name) for key, name in place.items()}, shown


def tidy(report: Report) -> pd.DataFrame:
    """The report with one row for each cell; values are in the table's unit, a range is from value to high."""
    rows = [
        {**place, "column": key, "value": c.value, "std": c.std, "high": c.high}
        | {"seeds": c.n or None, "source": c.source or None}
        for place, cells in _rows(report)
        for key, c in cells.items()
    ]
    return pd.DataFrame(rows).astype({"seeds": "Int64"})


def wide(report: Report) -> pd.DataFrame:
    """The report with one row for each group of a table: columns KEY, and KEY_std, KEY_high if there are any."""
    return pd.DataFrame(
        [
            place
            | {
                key + end: value
                for key, c in cells.items()
                for end, value in (("", c.value), ("_std", c.std), ("_high", c.high))
                if value is not None
            }
            for place, cells in _rows(report)
        ]
    )


def check_free(folder: Path, names: Sequence[str], force: bool) -> None:
    """Raises an error if a file would be overwritten.

    Args:
        folder: folder of the report.
        names: names of the files.
        force: whether files may be overwritten.

    Raises:
        UserError: the folder is a file, or holds one of the files.

    """
    require(folder.is_dir() or not folder.exists(), f"--out: {folder} is no folder")
    there = ", ".join(name for name in names if (folder / name).exists())
    require(force or not there, f"--out: {folder} already holds {there}; choose another folder, or add --force")


def write_report(report: Report, folder: Path, force: bool = False) -> list[Path]:
    """Writes the page, the tables as Markdown, CSV and LaTeX, and each figure as SVG, PNG, PDF and CSV.

    Args:
        report: the report to write.
        folder: folder of the report; it is made if it does not exist.
        force: whether files of an earlier report may be overwritten.

    Returns:
        Paths of the files.

    Raises:
        UserError: a file exists already; then nothing is written.

    """
    latex = "\n".join(["% needs \\usepackage{booktabs}", *map(_latex, report.tables)])
    tables = {"report.csv": tidy(report), "report_wide.csv": wide(report), **report.more}
    texts = {"report.html": report.page, "report.md": _markdown(report)}
    texts |= {name: table.to_csv(index=False) for name, table in tables.items()} | {"report.tex": latex}
    contents = {name: texts[name].encode() for name in [*REPORT_FILES, *report.more]}
    for name, drawn in report.figures.items():
        contents |= {f"{name}.{kind}": content for kind, content in drawn.files.items()}
        contents |= {f"{name}-{end}": content for end, content in paper_files(drawn).items()} if report.style else {}
    check_free(folder, list(contents), force)
    for name, content in contents.items():
        write_atomically(folder / name, content)
    return [folder / name for name in contents]
