"""What all figures share: a drawn figure with its words, axes, units, legends, and text that is never markup."""

import functools
import io
import textwrap
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from fedem_lightning.report.groups import Group, Setting
from fedem_lightning.report.looks import CHROME, FIRST, GRID_COLOUR, Look, row_names
from fedem_lightning.run.figures import drawn_text

_SVG_OPTIONS: dict[Any, Any] = {"svg.fonttype": "none", "path.simplify": False}
WIDTH, HEIGHT = 4.9, 3.3
"""Inches of a figure without its legend: at 390 pixels its text is still readable."""
LEGEND_LETTERS, LEGEND_WIDTH = 32, 74
"""Letters of a name's line in the legend, and of all its columns together."""
_ROWS_NAMED = 20
"""Largest number of rows that a legend names one by one."""
NO_LABEL = "_nolegend_"
SENDS_NOTHING = ", 0 MB"
"""Added to the name of a method that sends nothing, whose score is a level in figures by megabytes."""


@dataclass(frozen=True, eq=False)
class Drawn:
    """A figure, and what the page says about it.

    Args:
        name: of the file, without its ending.
        section: part of the page, a key of `fedem_lightning.report.page.SECTIONS`.
        caption: a sentence or two for readers.
        figure: the figure.
        names: what a reader sees above each group of artists, by its gid.
        points: what a reader sees above each point of a scatter plot, by its gid.

    """

    name: str
    section: str
    caption: str
    figure: Figure
    names: dict[str, str] = field(default_factory=dict)
    points: dict[str, list[str]] = field(default_factory=dict)

    @functools.cached_property
    def svg(self) -> bytes:
        """The content of an SVG file, on transparent ground, with text as text and every point of a line."""
        return self._saved("svg", transparent=True, metadata={"Date": None})

    @functools.cached_property
    def png(self) -> bytes:
        """The content of a PNG file."""
        return self._saved("png", dpi=120)

    def _saved(self, kind: str, **options: Any) -> bytes:
        target = io.BytesIO()
        with mpl.rc_context({**_SVG_OPTIONS, "svg.hashsalt": self.name}), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Glyph .* missing")  # of a name; an empty box stands for it
            self.figure.savefig(target, format=kind, **options)
        self.figure.set_layout_engine("none")  # the layout is done, and takes as long as the drawing
        return target.getvalue()


@dataclass(frozen=True)
class DrawnRows:
    """The rows of a setting as figures show them.

    Args:
        setting: the setting.
        looks: looks by label.

    """

    setting: Setting
    looks: dict[str, Look]

    @functools.cached_property
    def names(self) -> dict[str, str]:
        """Short names by label."""
        return row_names(self.setting)

    def gid(self, group: Group) -> str:
        """The id of a row's artists in a figure."""
        return f"row-{self.setting.groups.index(group)}"

    def label(self, group: Group) -> str:
        """A row's name in a legend; among many rows only each method's first has one, with the method's title."""
        if len(self.setting.groups) <= _ROWS_NAMED:
            return drawn_text(self.names[group.label])
        first = next(g for g in self.setting.groups if g.algorithm == group.algorithm)
        return drawn_text(group.title) if group is first else NO_LABEL

    def main_pair(self) -> tuple[Group, Group]:
        """The row of the main method, else the first; and its rival: a baseline, else another row, else itself."""
        groups = self.setting.groups
        main = max(groups, key=lambda group: self.looks[group.label].width)
        others = [group for group in groups if group is not main] or [main]
        known = sorted((g for g in others if g.algorithm in FIRST), key=lambda g: FIRST.index(g.algorithm))
        return main, (known or others)[0]

    def tips(self) -> dict[str, str]:
        """The names of all rows, by gid."""
        return {self.gid(group): self.names[group.label] for group in self.setting.groups}


def axes_of(words: str, height: float = HEIGHT, width: float = WIDTH) -> tuple[Figure, Axes]:
    """A figure with a title and one panel."""
    figure = titled(Figure(figsize=(width, height), layout="constrained"), words)
    axes = figure.subplots()
    style(axes)
    return figure, axes


def titled(figure: Figure, words: str) -> Figure:
    """The figure with a title, which is text and no formula."""
    figure.suptitle(drawn_text(words), fontsize=10, color=CHROME)
    return figure


def style(axes: Axes) -> None:
    """Gives a panel its grid, and the colours that the page replaces."""
    axes.grid(color=GRID_COLOUR, linewidth=0.5)
    axes.set_axisbelow(True)
    axes.tick_params(colors=CHROME, labelsize=8.5)
    for part in (axes.xaxis.label, axes.yaxis.label):
        part.set_color(CHROME)
        part.set_fontsize(9)
    for name, spine in axes.spines.items():
        spine.set_color(CHROME)
        spine.set_linewidth(0.6)
        spine.set_visible(name in ("left", "bottom"))


def whole_numbers(axes: Axes) -> None:
    """Marks whole numbers only on the x-axis, e.g. of rounds."""
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def logarithmic(axes: Axes) -> None:
    """Makes the x-axis logarithmic, with plain numbers; over less than two decades also between the powers of ten."""
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    plain_numbers = FuncFormatter(lambda value, place: f"{value:g}")
    axes.xaxis.set_major_formatter(plain_numbers)
    if high / low < 100:
        axes.xaxis.set_minor_locator(LogLocator(subs=(2, 5)))
        axes.xaxis.set_minor_formatter(plain_numbers)
    else:
        axes.xaxis.set_minor_formatter(NullFormatter())
    axes.tick_params(axis="x", which="minor", colors=CHROME, labelsize=7.5)


def legend(figure: Figure, axes: Axes, order: Sequence[str] = ()) -> None:
    """Draws the legend below the panel, where it hides nothing; the figure grows by its height.

    Args:
        figure, axes: figure, and panel with the artists.
        order: names of the rows in their order; other labels follow.

    """
    handles, labels = axes.get_legend_handles_labels()
    if len(handles) < 2:  # the title or the caption says which it is
        return
    place = {label: i for i, label in enumerate(order)}
    ranked = sorted(range(len(labels)), key=lambda i: place.get(labels[i].removesuffix(SENDS_NOTHING), len(place)))
    handles, labels = [handles[i] for i in ranked], [labels[i] for i in ranked]
    wrapped = [textwrap.fill(label, LEGEND_LETTERS, subsequent_indent="  ") for label in labels]
    widest = max(len(line) for text in wrapped for line in text.splitlines())
    columns = max(1, min(len(labels), LEGEND_WIDTH // (widest + 5)))
    rows = -(-len(labels) // columns)
    lines = max(sum(text.count("\n") + 1 for text in wrapped[i * rows : (i + 1) * rows]) for i in range(columns))
    figure.set_figheight(figure.get_figheight() + 0.19 * lines + 0.1)
    figure.legend(
        handles, wrapped, loc="outside lower center", ncols=columns, fontsize=8, frameon=False, labelcolor=CHROME
    )


def seeds(groups: Sequence[Group]) -> str:
    """The number of seeds of the rows, in words."""
    counts = sorted({len(group.runs) for group in groups})
    several = f"{counts[0]} to {counts[-1]} seeds" if len(counts) > 1 else f"{counts[0]} seeds"
    return "one seed" if counts == [1] else several
