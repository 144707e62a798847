"""What all figures share: the looks of rows, panels side by side under one legend, and a figure with its words."""

import functools
import io
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

import matplotlib as mpl
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import is_color_like, to_hex, to_rgb
from matplotlib.figure import Figure

from fedem_lightning.report.groups import BASELINES, Setting
from fedem_lightning.run.figures import PALETTE, drawn_text, legend_below
from fedem_lightning.run.figures import STYLE as RUNS_STYLE

FIRST = ("fedem", *reversed(BASELINES))
"""The first colours belong to the method that the package is named after, and to its two baselines."""
_LINES: tuple[str | tuple[int, tuple[float, ...]], ...] = ("-", (0, (5, 1.5)), (0, (1, 1)), (0, (5, 1, 1, 1)))
STYLE = RUNS_STYLE | {"pdf.fonttype": 42}
"""Matplotlib's settings while figures are made and saved; text stays text in a PDF file."""
WIDTH, HEIGHT = 4.2, 3.0
"""Inches of a panel."""
_COLUMNS = 3  # most panels in a row
Looks = dict[str, dict[str, Any]]
"""Matplotlib's arguments for the line of every row, by its label."""


def looks(settings: Iterable[Setting]) -> Looks:
    """The look of every row, which is the same in all figures of a report.

    Each method has a colour, its own if its file has `color`, and after eight methods another line. Rows of one method
    share its colour, in other shades and lines. FedEM's lines are wide.
    """
    rows: dict[str, dict[str, Any]] = {}  # algorithm -> own colour by label
    for group in (group for setting in settings for group in setting.groups):
        rows.setdefault(group.algorithm, {})[group.label] = group.runs[0].config.get("algorithm.color")
    found = {}
    for slot, algorithm in enumerate([*FIRST, *sorted(set(rows) - set(FIRST))]):
        labels = rows.get(algorithm, {})
        for i, (label, own) in enumerate(labels.items()):
            white = 0.55 * i / len(labels)  # a share of it makes another shade
            colour = own if isinstance(own, str) and is_color_like(own) else PALETTE[slot % len(PALETTE)]
            red, green, blue = (c + white * (1 - c) for c in to_rgb(colour))
            line = _LINES[(slot // len(PALETTE) + i) % len(_LINES)]
            width = 2.4 if algorithm == FIRST[0] else 1.3
            found[label] = {"color": to_hex((red, green, blue)), "linestyle": line, "linewidth": width}
    return found


@dataclass(frozen=True, eq=False)
class Drawn:
    """A figure, the name of its file without the ending, and what the page says about it."""

    name: str
    title: str
    caption: str
    figure: Figure

    @property
    def width(self) -> int:
        """Its width on a page, in pixels."""
        return round(96 * float(self.figure.get_figwidth()))

    @functools.cached_property
    def png(self) -> bytes:
        """The content of a PNG file, 200 dots an inch."""
        return self._saved("png", dpi=200)

    @functools.cached_property
    def pdf(self) -> bytes:
        """The content of a PDF file."""
        return self._saved("pdf", metadata={"CreationDate": None})

    def _saved(self, kind: str, **options: Any) -> bytes:
        target = io.BytesIO()
        with mpl.rc_context(STYLE), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Glyph .* missing")  # of a name; an empty box stands for it
            self.figure.savefig(target, format=kind, **options)
        return target.getvalue()


def with_panels(
    name: str, title: str, caption: str, panels: Sequence[tuple[str, Callable[[Axes], None]]], height: float = HEIGHT
) -> Drawn | None:
    """A figure of panels, each a title and what draws it, three in a row, under one legend; None without any."""
    if not panels:
        return None
    columns = min(_COLUMNS, len(panels))
    rows = ceil(len(panels) / columns)
    figure = Figure(figsize=(WIDTH * columns, height * rows), layout="constrained")
    for number, (panel, draw) in enumerate(panels, start=1):
        axes = figure.add_subplot(rows, columns, number)
        axes.set_title(drawn_text(panel, 60), fontsize=9)
        draw(axes)
    legend_below(figure)
    return Drawn(name, title, caption, figure)


def draw_over_seeds(axes: Axes, x: Any, scores: pd.DataFrame, label: str, look: dict[str, Any]) -> None:
    """Draws means over seeds as a line, and a band from the least to the largest; `scores` has mean, min and max."""
    axes.plot(x, scores["mean"], label=label, **look)
    if not scores["min"].equals(scores["max"]):
        axes.fill_between(x, scores["min"], scores["max"], color=look["color"], alpha=0.1, lw=0)
