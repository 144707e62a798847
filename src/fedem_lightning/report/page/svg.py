"""Figures as inline SVG: in the reader's colours, with names and values above lines and points."""

import io
import json
import re
from typing import Any
from xml.etree import ElementTree

import matplotlib as mpl

from fedem_lightning.report.figures.base import Drawn
from fedem_lightning.report.looks import CHROME, GRID

SVG = "http://www.w3.org/2000/svg"
ElementTree.register_namespace("", SVG)
ElementTree.register_namespace("xlink", "http://www.w3.org/1999/xlink")
_OPTIONS: dict[Any, Any] = {"svg.fonttype": "none", "path.simplify": False, "font.family": ["sans-serif"]}


def svg_file(drawn: Drawn) -> bytes:
    """The figure as an SVG file on white ground."""
    return _svg(drawn, transparent=False)


def inline_svg(drawn: Drawn) -> str:
    """The figure as part of a page: axes in the colour of the text, and what the page's script needs for hovering.

    Artists with a gid become groups of the class `row`, with their name as title. Points have titles of their own.
    """
    root = ElementTree.fromstring(_svg(drawn, transparent=True))
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
    return text.replace(CHROME, "currentColor").replace("#000000", "currentColor").replace(GRID, "var(--grid)")


def _svg(drawn: Drawn, transparent: bool) -> bytes:
    target = io.BytesIO()
    with mpl.rc_context({**_OPTIONS, "svg.hashsalt": drawn.name}):
        drawn.figure.savefig(target, format="svg", transparent=transparent, metadata={"Date": None})
    return target.getvalue()


def _title(element: ElementTree.Element, words: str) -> None:
    title = ElementTree.Element(f"{{{SVG}}}title")
    title.text = re.sub(r"[\x00-\x1f\x7f\ud800-\udfff]", " ", words)
    element.insert(0, title)


def _axes(drawn: Drawn) -> str:
    """Where the first panel lies (in the SVG's units), its limits, whether they are logarithmic, and its labels."""
    figure = drawn.figure
    axes = figure.axes[0]
    box, width, height = axes.get_position(), 72 * figure.get_figwidth(), 72 * figure.get_figheight()
    x = [box.x0 * width, box.x1 * width, *axes.get_xlim(), axes.get_xscale() == "log"]
    y = [(1 - box.y0) * height, (1 - box.y1) * height, *axes.get_ylim(), axes.get_yscale() == "log"]
    return json.dumps({"x": x, "y": y, "labels": [axes.get_xlabel(), axes.get_ylabel()]}, allow_nan=False)
