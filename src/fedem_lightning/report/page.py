"""The page: tables, figures and paired comparisons of every setting, written by page.html, which escapes all text."""

import json
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any
from urllib.parse import quote
from xml.etree import ElementTree

import numpy as np
import pandas as pd
from jinja2 import Environment, PackageLoader
from markupsafe import Markup

from fedem_lightning.errors import one_line
from fedem_lightning.report.cells import Table, TableColumn, shorten
from fedem_lightning.report.data_card import data_card
from fedem_lightning.report.drawing import CHROME, GRID_COLOUR, Drawn, DrawnRows, looks
from fedem_lightning.report.gains_by_client import compare_clients, gains_and_losses
from fedem_lightning.report.groups import Setting
from fedem_lightning.report.headline import in_a_sentence
from fedem_lightning.report.report_files import CAVEAT, Report
from fedem_lightning.report.significance import CHANCE_LEVEL

SECTIONS = {
    "sweeps": "By a varied setting",
    "scores": "Test scores by method",
    "convergence": "Scores during training",
    "clients": "Scores over clients",
    "gains": "Who gains, who loses",
    "mixture": "Mixture weights",
    "structure": "Who learns with whom",
    "data": "What the clients hold",
}
"""Parts of a setting's page, in their order: a figure names its part."""
_FIRST_COLUMNS = (
    *("weighted", "bottom_decile", "worse_than_local", "val", "learning_rate", "megabytes", "unseen", "seconds"),
    *("worst", "mean"),
)
_N_COLUMNS = 6
"""Columns of the table of scores that the page shows before a click: the first filled ones of `_FIRST_COLUMNS`."""
MARKS_SHOWN = 400_000
"""Largest number of marks (pairs of rows times clients) in a page; more clients are thinned out evenly."""
SVG = "http://www.w3.org/2000/svg"
ElementTree.register_namespace("", SVG)
ElementTree.register_namespace("xlink", "http://www.w3.org/1999/xlink")


def page(report: Report, settings: Sequence[Setting], figures: Mapping[int, Sequence[Drawn]]) -> str:
    """The whole page as text of an HTML file.

    Args:
        report: tables and lines about the runs that are left out.
        settings: settings of the tables.
        figures: figures by the index of their setting; those over several settings have -1.

    """
    loader = PackageLoader("fedem_lightning.report", "")
    environment = Environment(loader=loader, autoescape=True, finalize=_text, trim_blocks=True)
    found = looks(settings, report.main)
    parts = [(DrawnRows(s, found), figures.get(i, []), pairs_data(s)) for i, s in enumerate(settings)]
    return environment.get_template("page.html").render(
        report=report,
        caveat=CAVEAT,
        parts=parts,
        sentences=[in_a_sentence(table, report.main) for table in report.tables if table.name == "scores"],
        overall=figures.get(-1, []),
        sections=SECTIONS,
        files={drawn: quote(name) for name, drawn in report.figures.items()},
        kinds=lambda drawn: ["pdf", "png", "svg", *(["csv"] if drawn.data is not None else [])],
        ordered=_ordered,
        card=data_card,
        inline_svg=lambda drawn: Markup(inline_svg(drawn)),
        as_json=lambda data: Markup(json.dumps(data, allow_nan=False).replace("<", "\\u003c")),
    )


def _ordered(table: Table) -> tuple[dict[str, TableColumn], int]:
    """The filled columns of a table, the first ones of the table of scores to the left; and how many are shown."""
    columns = table.filled(details=True)
    if table.name != "scores":
        return columns, len(columns)
    first = [key for key in _FIRST_COLUMNS if key in columns][:_N_COLUMNS]
    return {key: columns[key] for key in [*first, *(key for key in columns if key not in first)]}, len(first)


def _text(value: Any) -> Any:
    """A value as one line of at most 400 letters, which the template then escapes; markup stays as it is."""
    return value if isinstance(value, Markup) else shorten(one_line(value), 400)


def pairs_data(setting: Setting) -> dict[str, Any] | None:
    """Scores of every client and seed with every row, and for every pair of rows who gains and loses; None for one row.

    Returns:
        rows: names; unit; clients: name and seed; scores [rows][clients], None where a row has none; pairs: by "i,j"
        (i < j) shares of clients, and a string with one mark a client: + (i is better beyond chance), -, or .

    """
    groups, columns = setting.groups, {}
    for group in groups:
        known = {run.seed: s["score"] for run in group.runs if (s := run.scored) is not None}
        columns[group.label] = pd.concat(known, names=["seed", "id"]) if known else pd.Series(dtype=float)
    scores = pd.DataFrame(columns, dtype=float)
    if len(groups) < 2 or scores.empty:
        return None
    n_pairs = len(groups) * (len(groups) - 1) // 2
    shown = scores.iloc[:: max(1, -(-len(scores) * n_pairs // MARKS_SHOWN))]
    pairs = {}
    for i, j in combinations(range(len(groups)), 2):
        found = compare_clients(groups[i], groups[j])
        if found is not None:
            found["mark"] = np.where(found.p < CHANCE_LEVEL, np.sign(found.gain), 0)
            marks = found.set_index(["seed", "id"])["mark"].reindex(shown.index).fillna(0).astype(int)
            shares = [None if np.isnan(share) else float(share) for share in gains_and_losses(found)]
            pairs[f"{i},{j}"] = {"shares": shares, "marks": "".join("-.+"[mark + 1] for mark in marks)}
    return {
        "rows": [group.name for group in groups],
        "unit": setting.unit,
        "clients": [[str(client), int(seed)] for seed, client in shown.index],
        "scores": [[None if np.isnan(v) else round(float(v), 4) for v in shown[g.label]] for g in groups],
        "left_out": len(scores) - len(shown),
        "pairs": pairs,
    }


def inline_svg(drawn: Drawn) -> str:
    """The figure as part of a page: axes in the colour of the text, and what the page's script needs for hovering.

    Artists with a gid become groups of the class `row`, with their name as title. Points have titles of their own.
    """
    root = ElementTree.fromstring(drawn.svg)
    for name in ("width", "height"):
        root.attrib.pop(name, None)
    for part in root.findall("{*}metadata"):
        root.remove(part)
    root.attrib |= {"class": "figure", "role": "img", "aria-label": drawn.caption, "data-axes": _axes(drawn)}
    for group in root.iter(f"{{{SVG}}}g"):
        gid = group.attrib.pop("id", "")  # several figures would share it
        row = gid.removesuffix("-band")
        if row in drawn.names:
            group.attrib |= {"class": "row" if row == gid else "band", "data-row": row}
            _add_title(group, drawn.names[row])
        for point, words in zip(group.iter(f"{{{SVG}}}use"), drawn.points.get(gid, ()), strict=False):
            point.set("class", "point")
            _add_title(point, words)
    text = ElementTree.tostring(root, encoding="unicode")
    return text.replace(CHROME, "currentColor").replace("#000000", "currentColor").replace(GRID_COLOUR, "var(--grid)")


def _add_title(element: ElementTree.Element, words: str) -> None:
    title = ElementTree.Element(f"{{{SVG}}}title")
    title.text = one_line(words)
    element.insert(0, title)


def _axes(drawn: Drawn) -> str:
    """Where the first panel lies (in the SVG's units), its limits, and whether they are logarithmic."""
    figure = drawn.figure
    axes = figure.axes[0]
    box, width, height = axes.get_position(), 72 * figure.get_figwidth(), 72 * figure.get_figheight()
    x = [box.x0 * width, box.x1 * width, *axes.get_xlim(), axes.get_xscale() == "log"]
    y = [(1 - box.y0) * height, (1 - box.y1) * height, *axes.get_ylim(), axes.get_yscale() == "log"]
    return json.dumps({"x": x, "y": y}, allow_nan=False)
