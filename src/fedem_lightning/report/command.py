"""`python -m fedem_lightning.report`: it reads folders, then prints and writes the report."""

import argparse
import base64
import shlex
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import yaml
from jinja2 import Environment, PackageLoader
from markupsafe import Markup
from rich import box
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from fedem_lightning.report.columns import CAVEAT
from fedem_lightning.report.doubts import finished
from fedem_lightning.report.figures import Drawn, curves
from fedem_lightning.report.finished_run import Run, find_runs
from fedem_lightning.report.groups import as_typed, group_runs, shorten
from fedem_lightning.report.scores_table import Table, headline, scores_table
from fedem_lightning.run.commands import check_folder
from fedem_lightning.settings.errors import one_line, require
from fedem_lightning.settings.files import write_atomically


@dataclass
class Report:
    """Content of the report."""

    tables: list[Table]
    left_out: list[str] = field(default_factory=list)
    figure: Drawn | None = None


def make_report(chosen: argparse.Namespace) -> None:
    """Prints the report that the command's options select, and with `--out` writes it."""
    if chosen.out is not None:  # before any work
        check_folder(chosen.out, ["report.html", "report.csv", "curves.pdf", "curves.png"], chosen.force)
    report = assemble(chosen.folders)
    require(bool(report.tables), f"no run can be read: {'; '.join(report.left_out)}")
    if chosen.out is not None:
        report.figure = curves([table.setting for table in report.tables])
    print_parts(report_parts(report))
    if chosen.out is not None:
        print(f"written: {one_line(chosen.out)} ({', '.join(write_report(report, chosen.out))})")


def print_sweep(folder: Path) -> None:
    """Prints the table of a sweep's finished runs, what cannot be read, and the command that makes a page of them."""
    if not folder.is_dir():
        return
    report, result = assemble([folder]), folder / "optimization_results.yaml"
    print_parts(report_parts(report, best=not result.exists()))
    if result.exists():  # of a search: test scores choose nothing
        best = yaml.safe_load(result.read_text())
        words = shlex.join(f"{key}={value:.3g}" for key, value in best["best_params"].items())
        print(f"best on validation ({best['best_value']:.4g}): {words}")
    if report.tables:
        words = shlex.join([str(folder), "--out", str(folder / "report")])
        print(f"a page with figures: python -m fedem_lightning.report {words}")


def assemble(folders: Sequence[str | Path]) -> Report:
    """The tables of all runs below some folders, and a line for each that cannot be read."""
    runs, left_out = find_runs(folders)
    good: list[Run] = []
    for run in runs:
        try:
            scores_table(group_runs([run])[0][0])
        except Exception as error:  # whatever a damaged file leads to: it must not end the report of the others
            message = f"{type(error).__name__}: {one_line(error)[:80]}"
            left_out.append(f"{one_line(run.folder)}: broken: its files lack or hold something unexpected ({message})")
        else:
            good.append(run)
    settings, repeated = group_runs(good)
    return Report([scores_table(setting) for setting in settings], left_out=[*left_out, *repeated])


def print_parts(parts: Iterable[Text | RichTable]) -> None:
    """Prints texts and tables; no number is cut, so lines of a narrow terminal may wrap."""
    console = Console()
    if not console.is_terminal:
        console.width = max(console.width, 500)
    for part in parts:
        width = max(console.width, console.measure(part).minimum)
        console.print(part, soft_wrap=isinstance(part, Text), width=None if isinstance(part, Text) else width)


def report_parts(report: Report, best: bool = True) -> Iterator[Text | RichTable]:
    """The tables piece by piece, each with the sentence about the best row, and lines about what they leave out."""
    for table in report.tables:
        yield Text(f"\n{table.title}", style="bold")
        yield _drawn(table)
        if best:
            yield Text(headline(table), style="bold")
        yield from (Text(one_line(line)) for line in [*table.notes, *table.warnings])
        if others := [key for key in table.columns if key not in table.shown]:
            yield Text(f"{len(others)} more columns in report.csv (--out DIR): {', '.join(others)}", style="dim")
    if any(key.startswith("paper_") for table in report.tables for key in table.columns):
        yield Text(f"\n{CAVEAT}")
    if report.left_out:
        yield Text("\nleft out:")
        yield from (Text(f"  {one_line(line)}") for line in report.left_out)


def _drawn(table: Table) -> RichTable:
    drawn = RichTable(box=box.SIMPLE_HEAD)
    drawn.add_column("algorithm", overflow="fold", min_width=9)
    for key in table.shown:
        texts = [table.text(group, key) for group in table.setting.groups]
        header = one_line(table.columns[key].header)
        width = max(8, *map(len, [*texts, *header.split()]))
        drawn.add_column(textwrap.fill(header, width, break_on_hyphens=False), justify="right", no_wrap=True)
    for group in table.setting.groups:
        cells = [Text(table.text(group, key), style="bold" if table.is_bold(group, key) else "") for key in table.shown]
        drawn.add_row(Text(table.row(group)), *cells)
    return drawn


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


def _cell(text: Any) -> str:
    """A name in a CSV file; one that a spreadsheet would take for a formula begins with an apostrophe."""
    text = one_line(text)
    return f"'{text}" if text[:1] in ("=", "+", "-", "@") else text


def page(template: str, **values: Any) -> bytes:
    """A whole page; the template escapes all text, of which each is one line of at most 600 letters."""
    environment = Environment(
        loader=PackageLoader("fedem_lightning", ""),
        autoescape=True,
        finalize=lambda value: value if isinstance(value, Markup) else shorten(str(value), 600),
        trim_blocks=True,
    )
    return environment.get_template(template).render(inside=_inside, **values).encode()


def _inside(png: bytes) -> Markup:
    return Markup("data:image/png;base64," + base64.b64encode(png).decode())


def html_page(report: Report) -> bytes:
    """The page of a report."""
    return page(
        "report/page.html",
        report=report,
        n_runs=sum(len(table.setting.runs) for table in report.tables),
        caveat=CAVEAT if any("paper_" in key for table in report.tables for key in table.columns) else "",
        sentence=headline,
    )


def write_report(report: Report, folder: Path) -> list[str]:
    """Writes the page, the table as CSV, the figure as PDF and PNG; returns the names."""
    contents = {
        "report.html": html_page(report),
        "report.csv": csv_table(report.tables).to_csv(index=False).encode(),
    }
    if report.figure is not None:
        contents |= {"curves.pdf": report.figure.pdf, "curves.png": report.figure.png}
    for name, content in contents.items():
        write_atomically(folder / name, content)
    return list(contents)
