"""The page: tables, figures and the paired comparison of every setting, written by a template that escapes all text."""

import json
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from jinja2 import Environment
from markupsafe import Markup

from fedem_lightning.report.cells import Cell, Column, Table
from fedem_lightning.report.figures import Drawn, Rows
from fedem_lightning.report.finished_run import Run
from fedem_lightning.report.groups import Group, Setting
from fedem_lightning.report.looks import Look, looks
from fedem_lightning.report.markup import shorten
from fedem_lightning.report.names import row_names
from fedem_lightning.report.page.pairs import baselines, pairs_data
from fedem_lightning.report.page.svg import inline_svg
from fedem_lightning.report.writing import CAVEAT, Report
from fedem_lightning.run.plain_text import one_line

SECTIONS = {
    "convergence": "Scores during training",
    "clients": "Scores over clients",
    "gains": "Who gains, who loses",
    "mixture": "Mixture weights",
    "structure": "Who learns with whom",
    "sweeps": "By a varied setting",
}
"""Parts of a setting's page, in their order: a figure names its part."""


def page(report: Report, settings: Sequence[Setting], figures: dict[int, list[Drawn]], title: str = "") -> str:
    """The whole page as text of an HTML file.

    Args:
        report: tables and lines about the runs that are left out.
        settings: settings of the tables.
        figures: figures by the index of their setting; those over several settings have -1.
        title: title of the page.

    """
    folder = files("fedem_lightning.report.page")
    environment = Environment(autoescape=True, finalize=_text, trim_blocks=True)
    template = environment.from_string((folder / "page.html").read_text(encoding="utf-8"))
    found = looks(settings)
    return template.render(
        title=title or "Federated learning: runs compared",
        summary=f"{report.n_runs} runs. Mean ± standard deviation over seeds.",
        caveat=CAVEAT if report.compares else "",
        style=Markup((folder / "style.css").read_text(encoding="utf-8")),
        script=Markup((folder / "script.js").read_text(encoding="utf-8")),
        settings=[_setting(report, s, figures.get(i, []), found) for i, s in enumerate(settings)],
        figures=_figures(figures.get(-1, [])),
        left_out=report.left_out,
    )


def _setting(report: Report, setting: Setting, drawn: Sequence[Drawn], found: dict[str, Look]) -> dict[str, Any]:
    rows = Rows(setting, row_names(setting), found)
    tables = [table for table in report.tables if table.setting is setting]
    return {
        "title": setting.title,
        "tables": [_table(table, rows) for table in tables],
        "sections": [s for key, name in SECTIONS.items() if (s := _section(key, name, rows, drawn)) is not None],
        "runs": [_run(rows, group, run) for group in setting.groups for run in group.runs],
    }


def _section(key: str, name: str, rows: Rows, drawn: Sequence[Drawn]) -> dict[str, Any] | None:
    """A part of a setting's page; None if there is nothing to show."""
    data = pairs_data(rows) if key == "gains" else None
    figures = [d for d in drawn if d.section == key and data is None]  # the page draws any pair itself
    section: dict[str, Any] = {"title": name, "figures": _figures(figures)}
    if data is not None:
        first, second = (rows.setting.groups.index(group) for group in rows.main_pair())
        section |= {
            "words": "Two methods give every client two models; its own test samples say which is better.",
            "pairs": Markup(json.dumps(data, allow_nan=False).replace("<", "\\u003c")),
            "names": [row["name"] for row in data["rows"]],
            "first": first,
            "second": second,
            "left_out": data["left_out"],
            "baselines": baselines(rows, data["pairs"]),
        }
    return section if data is not None or section["figures"] else None


def _table(table: Table, rows: Rows) -> dict[str, Any]:
    columns = table.filled()

    def bold(group: Group, key: str) -> bool:
        return group.label in table.leaders.get(key, ())

    return {
        "title": table.title,
        "headers": ["method", *(column.header for column in columns.values())],
        "notes": table.notes,
        "rows": [
            {
                "name": rows.names.get(group.label, group.label),
                "label": group.label,
                "colour": rows.looks[group.label].colour if group.label in rows.looks else "transparent",
                "cells": [_cell(column, cells.get(key), bold(group, key)) for key, column in columns.items()],
            }
            for group, cells in table.rows
        ],
    }


def _cell(column: Column, cell: Cell | None, bold: bool) -> dict[str, Any]:
    value = "" if cell is None or cell.value != cell.value else cell.value
    return {"text": column.show(cell), "value": value, "bold": bold, "note": cell.source if cell else ""}


def _figures(drawn: Sequence[Drawn]) -> list[dict[str, Any]]:
    return [{"svg": Markup(inline_svg(d)), "caption": d.caption} for d in drawn]


def _run(rows: Rows, group: Group, run: Run) -> list[object]:
    environment = run.results.get("environment")
    known = environment if isinstance(environment, dict) else {}
    digest = str(run.results.get("federation_digest") or "")[:12]
    commit, command = str(known.get("commit") or "")[:12], run.results.get("command") or ""
    values = [
        rows.names[group.label],
        run.seed,
        run.results["rounds"],
        commit,
        known.get("date") or "",
        digest,
        command,
    ]
    return [*values, run.folder]


def _text(value: Any) -> Any:
    """A value as one line of at most 400 letters, which the template then escapes; markup stays as it is."""
    return value if isinstance(value, Markup) else shorten(one_line(value), 400)
