"""The page: tables, figures and the paired comparison of every setting, written by a template that escapes all text."""

import json
from collections.abc import Sequence
from importlib.resources import files
from typing import Any
from xml.etree import ElementTree

from jinja2 import Environment
from markupsafe import Markup

from fedem_lightning.errors import one_line
from fedem_lightning.report.cells import Cell, Table, TableColumn
from fedem_lightning.report.figures.drawing import Drawn, DrawnRows
from fedem_lightning.report.finished_run import Run
from fedem_lightning.report.groups import Group, Setting
from fedem_lightning.report.looks import CHROME, GRID_COLOUR, Look, looks
from fedem_lightning.report.markup import shorten
from fedem_lightning.report.page.gains import baselines, pairs_data
from fedem_lightning.report.report_files import CAVEAT, Report

SECTIONS = {
    "convergence": "Scores during training",
    "clients": "Scores over clients",
    "gains": "Who gains, who loses",
    "mixture": "Mixture weights",
    "structure": "Who learns with whom",
    "sweeps": "By a varied setting",
}
"""Parts of a setting's page, in their order: a figure names its part."""


def page(report: Report, settings: Sequence[Setting], figures: dict[int, list[Drawn]]) -> str:
    """The whole page as text of an HTML file.

    Args:
        report: tables and lines about the runs that are left out.
        settings: settings of the tables.
        figures: figures by the index of their setting; those over several settings have -1.

    """
    folder = files("fedem_lightning.report.page")
    environment = Environment(autoescape=True, finalize=_text, trim_blocks=True)
    template = environment.from_string((folder / "page.html").read_text(encoding="utf-8"))
    found = looks(settings)
    return template.render(
        title="Federated learning: runs compared",
        summary=f"{report.n_runs} runs. Mean ± standard deviation over seeds.",
        caveat=CAVEAT if report.compares else "",
        style=Markup((folder / "style.css").read_text(encoding="utf-8")),
        script=Markup((folder / "script.js").read_text(encoding="utf-8")),
        settings=[_setting(report, s, figures.get(i, []), found) for i, s in enumerate(settings)],
        figures=_figures(figures.get(-1, [])),
        left_out=report.left_out,
    )


def _setting(report: Report, setting: Setting, drawn: Sequence[Drawn], found: dict[str, Look]) -> dict[str, Any]:
    rows = DrawnRows(setting, found)
    tables = [table for table in report.tables if table.setting is setting]
    return {
        "title": setting.title,
        "tables": [_table(table, rows) for table in tables],
        "sections": [s for key, name in SECTIONS.items() if (s := _section(key, name, rows, drawn)) is not None],
        "runs": [_run(rows, group, run) for group in setting.groups for run in group.runs],
    }


def _section(key: str, name: str, rows: DrawnRows, drawn: Sequence[Drawn]) -> dict[str, Any] | None:
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


def _table(table: Table, rows: DrawnRows) -> dict[str, Any]:
    columns = table.filled()
    return {
        "title": table.title,
        "headers": ["method", *(column.header for column in columns.values())],
        "notes": table.notes,
        "rows": [
            {
                "name": rows.names.get(group.label, group.label),
                "label": group.label,
                "colour": rows.looks[group.label].colour if group.label in rows.looks else "transparent",
                "cells": [
                    _cell(column, cells.get(key), table.is_leader(group, key)) for key, column in columns.items()
                ],
            }
            for group, cells in table.rows
        ],
    }


def _cell(column: TableColumn, cell: Cell | None, bold: bool) -> dict[str, Any]:
    value = "" if cell is None or cell.value != cell.value else cell.value
    return {"text": column.show(cell), "value": value, "bold": bold, "note": cell.source if cell else ""}


def _figures(drawn: Sequence[Drawn]) -> list[dict[str, Any]]:
    return [{"svg": Markup(inline_svg(d)), "caption": d.caption} for d in drawn]


def _run(rows: DrawnRows, group: Group, run: Run) -> list[object]:
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


SVG = "http://www.w3.org/2000/svg"
ElementTree.register_namespace("", SVG)
ElementTree.register_namespace("xlink", "http://www.w3.org/1999/xlink")


def inline_svg(drawn: Drawn) -> str:
    """The figure as part of a page: axes in the colour of the text, and what the page's script needs for hovering.

    Artists with a gid become groups of the class `row`, with their name as title. Points have titles of their own.
    """
    root = ElementTree.fromstring(drawn.svg)
    for name in ("width", "height"):
        root.attrib.pop(name, None)
    for part in list(root):
        if part.tag.endswith("metadata"):
            root.remove(part)
    root.attrib |= {"class": "figure", "role": "img", "aria-label": drawn.caption, "data-axes": _axes(drawn)}
    for group in root.iter(f"{{{SVG}}}g"):
        gid = group.get("id", "")
        if gid.removesuffix("-band") in drawn.names:
            group.attrib |= {"class": "band" if gid.endswith("-band") else "row", "data-row": gid.removesuffix("-band")}
            _title(group, drawn.names[gid.removesuffix("-band")])
        for point, words in zip(group.iter(f"{{{SVG}}}use"), drawn.points.get(gid, ()), strict=False):
            point.set("class", "point")
            _title(point, words)
        group.attrib.pop("id", None)  # several figures would share it
    text = ElementTree.tostring(root, encoding="unicode")
    return text.replace(CHROME, "currentColor").replace("#000000", "currentColor").replace(GRID_COLOUR, "var(--grid)")


def _title(element: ElementTree.Element, words: str) -> None:
    title = ElementTree.Element(f"{{{SVG}}}title")
    title.text = one_line(words)
    element.insert(0, title)


def _axes(drawn: Drawn) -> str:
    """Where the first panel lies (in the SVG's units), its limits, whether they are logarithmic, and its labels."""
    figure = drawn.figure
    axes = figure.axes[0]
    box, width, height = axes.get_position(), 72 * figure.get_figwidth(), 72 * figure.get_figheight()
    x = [box.x0 * width, box.x1 * width, *axes.get_xlim(), axes.get_xscale() == "log"]
    y = [(1 - box.y0) * height, (1 - box.y1) * height, *axes.get_ylim(), axes.get_yscale() == "log"]
    return json.dumps({"x": x, "y": y, "labels": [axes.get_xlabel(), axes.get_ylabel()]}, allow_nan=False)
