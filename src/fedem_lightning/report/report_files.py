"""Files of the report: the page, the table as CSV, the figures, and clients that are compared."""

import base64
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, PackageLoader
from markupsafe import Markup

from fedem_lightning.report.columns import CAVEAT
from fedem_lightning.report.doubts import finished
from fedem_lightning.report.figures import Drawn
from fedem_lightning.report.gains_by_client import compare_clients
from fedem_lightning.report.groups import Group, Setting, as_typed, shorten
from fedem_lightning.report.scores_table import Table, headline
from fedem_lightning.settings.errors import one_line
from fedem_lightning.settings.files import write_atomically


@dataclass
class Report:
    """Content of the report; `pairs` are rows whose clients are compared."""

    tables: list[Table]
    left_out: list[str] = field(default_factory=list)
    figures: list[Drawn] = field(default_factory=list)
    pairs: list[tuple[Setting, Group, Group]] = field(default_factory=list)


def csv_table(tables: Sequence[Table]) -> pd.DataFrame:
    """A line for each row of each table: what it is, the values that its label and title show, COLUMN and COLUMN_std.

    Texts are such that no spreadsheet reads them as formulas.
    """
    lines = []
    for table in tables:
        setting = table.setting
        for group in setting.groups:
            line: dict[str, Any] = {"dataset": setting.dataset, "setting": setting.title, "backbone": setting.backbone}
            line |= {"algorithm": group.algorithm, "row": group.label} | setting.values | group.values
            line = {key: v if isinstance(v, (int, float)) else _cell(as_typed(v)) for key, v in line.items()}
            line |= {"title": _cell(group.name), "finished": finished(group)}
            for key in table.columns:
                std = table.std.get(key, {}).get(group.label)
                line |= {key: table.value(group, key), f"{key}_std": std}
            lines.append(line)
    return pd.DataFrame(lines).dropna(axis="columns", how="all")


def clients_table(pairs: Sequence[tuple[Setting, Group, Group]]) -> pd.DataFrame:
    """All clients of all comparisons, for compare.csv: setting, row_a, row_b, and the columns of `compare_clients`."""
    texts = ["setting", "row_a", "row_b"]
    found = {(setting.title, a.label, b.label): compare_clients(a, b) for setting, a, b in pairs}
    table = pd.concat(found, names=texts).reset_index(texts)
    return table.assign(**{name: table[name].map(_cell) for name in [*texts, "id"]})


def _cell(text: Any) -> str:
    """A name in a CSV file; one that a spreadsheet would take for a formula begins with an apostrophe."""
    text = one_line(text)
    return f"'{text}" if text[:1] in ("=", "+", "-", "@") else text


def html_page(report: Report) -> str:
    """The whole page; the template escapes all text, of which each is one line of at most 400 letters."""
    environment = Environment(
        loader=PackageLoader("fedem_lightning.report", ""),
        autoescape=True,
        finalize=lambda value: value if isinstance(value, Markup) else shorten(str(value), 400),
        trim_blocks=True,
    )
    return environment.get_template("page.html").render(
        report=report,
        n_runs=sum(len(table.setting.runs) for table in report.tables),
        caveat=CAVEAT if any("paper_" in key for table in report.tables for key in table.columns) else "",
        sentence=headline,
        inside=lambda drawn: Markup("data:image/png;base64," + base64.b64encode(drawn.png).decode()),
    )


def write_report(report: Report, folder: Path) -> list[str]:
    """Writes the page, the table as CSV, figures as PDF and PNG, the compared clients; returns the names."""
    contents = {
        "report.html": html_page(report).encode(),
        "report.csv": csv_table(report.tables).to_csv(index=False).encode(),
    }
    contents |= {"compare.csv": clients_table(report.pairs).to_csv(index=False).encode()} if report.pairs else {}
    for drawn in report.figures:
        contents |= {f"{drawn.name}.pdf": drawn.pdf, f"{drawn.name}.png": drawn.png}
    for name, content in contents.items():
        write_atomically(folder / name, content)
    return list(contents)
