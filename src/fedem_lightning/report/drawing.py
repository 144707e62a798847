"""What all figures share: the looks of rows, a drawn figure with its words, its axes and its legend."""

import functools
import io
import textwrap
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import matplotlib as mpl
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, StrMethodFormatter

from fedem_lightning.report.groups import ALGORITHMS, BASELINES, Group, Setting
from fedem_lightning.run.figure_style import MARKERS, PALETTE, drawn_text

FIRST = ("fedem", *reversed(BASELINES))
"""The first colours belong to the method that the package is named after, and to its two baselines."""
_LINES: tuple[str | tuple[int, tuple[float, ...]], ...] = ("-", (0, (5, 1.5)), (0, (1, 1)), (0, (5, 1, 1, 1)))
MAIN_WIDTH, LINE_WIDTH = 2.6, 1.3
"""Points of the main method's lines, and of all others."""
CHROME, GRID_COLOUR = "#010203", "#c0c1c2"
"""Colours of axes and text, and of the grid, which the page replaces by the reader's."""
STYLE: dict[Any, Any] = {
    **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), CHROME),
    **dict.fromkeys(("xtick.labelsize", "ytick.labelsize"), 8.5),
    **dict.fromkeys(("axes.spines.top", "axes.spines.right", "legend.frameon"), False),
    **{"axes.labelsize": 9, "axes.linewidth": 0.6, "legend.fontsize": 8, "figure.titlesize": 10},
    **{"axes.grid": True, "axes.axisbelow": True, "grid.color": GRID_COLOUR, "grid.linewidth": 0.5},
    **{"svg.fonttype": "none", "pdf.fonttype": 42, "path.simplify": False},
}
"""Matplotlib's settings while figures are made and saved: text stays text, and every point of a line is kept."""
WIDTH, HEIGHT = 4.9, 3.3
"""Inches of a figure without its legend: at 390 pixels its text is still readable."""
_LEGEND_LETTERS, _LEGEND_WIDTH = 32, 74
"""Letters of a name's line in the legend, and of all its columns together."""
_ROWS_NAMED = 20
"""Largest number of rows that a legend names one by one."""
NO_LABEL = "_nolegend_"
SENDS_NOTHING = ", 0 MB"
"""Added to the name of a method that sends nothing, whose score is a level in figures by megabytes."""


@dataclass(frozen=True)
class Look:
    """How a row is drawn: colour in hexadecimal, Matplotlib's line style and marker, width of the line in points."""

    colour: str
    line: str | tuple[int, tuple[float, ...]]
    marker: str
    width: float = LINE_WIDTH

    def lined(self, gid: str = "") -> dict[str, Any]:
        """Matplotlib's arguments for a line; `gid` names it in an SVG file."""
        return {"color": self.colour, "linestyle": self.line, "linewidth": self.width, "gid": gid or None}


def looks(settings: Sequence[Setting], main: str | None = None) -> dict[str, Look]:
    """The look of every row, by its label, which is the same in all figures of a report.

    Each method has a colour, and after eight methods another line. Rows of one method share its colour, in other
    shades and lines. The rows of the algorithm `main` are wider; None: of the first of `FIRST`.
    """
    rows: dict[str, dict[str, None]] = {}  # algorithm -> labels
    for group in (group for setting in settings for group in setting.groups):
        rows.setdefault(group.algorithm, {})[group.label] = None
    order = [*FIRST, *(name for name in ALGORITHMS if name in rows and name not in FIRST)]
    order += sorted(name for name in rows if name not in order)
    found = {}
    for slot, algorithm in enumerate(order):
        labels = rows.get(algorithm, {})
        for i, label in enumerate(labels):
            white = 0.55 * i / len(labels)  # a share of it makes another shade
            red, green, blue = (c + white * (1 - c) for c in to_rgb(PALETTE[slot % len(PALETTE)]))
            line = _LINES[(slot // len(PALETTE) + i) % len(_LINES)]
            width = MAIN_WIDTH if algorithm == (main or FIRST[0]) and len(rows) > 1 else LINE_WIDTH
            found[label] = Look(to_hex((red, green, blue)), line, MARKERS[(slot + i) % len(MARKERS)], width)
    return found


@dataclass(frozen=True, eq=False)
class Drawn:
    """A figure, and what the page says about it.

    Args:
        name: of the file, without its ending.
        section: part of the page, a key of `fedem_lightning.report.page.SECTIONS`; empty: a file alone.
        caption: a sentence or two for readers.
        figure: the figure.
        names: what a reader sees above each group of artists, by its gid.
        points: what a reader sees above each point of a scatter plot, by its gid.
        data: the numbers that are drawn, a row for each point, with columns that name it; the figure's CSV file.
        switches: what a reader of the page chooses among figures of one section, e.g. {"axis": "communication round"}.

    """

    name: str
    section: str
    caption: str
    figure: Figure
    names: dict[str, str] = field(default_factory=dict)
    points: dict[str, list[str]] = field(default_factory=dict)
    data: pd.DataFrame | None = None
    switches: dict[str, str] = field(default_factory=dict)

    @functools.cached_property
    def svg(self) -> bytes:
        """The content of an SVG file, on transparent ground."""
        return self._saved("svg", transparent=True, metadata={"Date": None})

    @functools.cached_property
    def png(self) -> bytes:
        """The content of a PNG file, 300 dots an inch."""
        return self._saved("png", dpi=300)

    @property
    def files(self) -> dict[str, bytes]:
        """The contents of all files of the figure, by their ending: svg, png, pdf, and csv if it has data."""
        kinds = {"svg": self.svg, "png": self.png, "pdf": self._saved("pdf", metadata={"CreationDate": None})}
        return kinds if self.data is None else kinds | {"csv": self.data.to_csv(index=False).encode()}

    def _saved(self, kind: str, **options: Any) -> bytes:
        target = io.BytesIO()
        with mpl.rc_context({**STYLE, "svg.hashsalt": self.name}), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Glyph .* missing")  # of a name; an empty box stands for it
            self.figure.savefig(target, format=kind, **options)
        self.figure.set_layout_engine("none")  # the layout is done, and takes as long as the drawing
        return target.getvalue()


@dataclass(frozen=True)
class DrawnRows:
    """The rows of a setting as figures show them, with their looks by label, and where: in a panel, or a new figure."""

    setting: Setting
    looks: dict[str, Look]
    ax: Axes | None = None

    def axes(self, words: str, height: float = HEIGHT, width: float = WIDTH) -> tuple[Figure, Axes]:
        """The panel with a title, and its figure."""
        if self.ax is None:
            return axes_of(words, height, width)
        self.ax.set_title(drawn_text(words))
        return self.ax.get_figure(root=True), self.ax  # type: ignore[return-value]

    def legend(self, figure: Figure, axes: Axes, order: Sequence[str] = ()) -> None:
        """The legend, below the panel of a new figure or within a given one."""
        if self.ax is None:
            legend(figure, axes, order)
        elif len(axes.get_legend_handles_labels()[0]) > 1:
            axes.legend()

    def gid(self, group: Group) -> str:
        """The id of a row's artists in a figure."""
        return f"row-{self.setting.groups.index(group)}"

    def label(self, group: Group) -> str:
        """A row's name in a legend; among many rows only each method's first has one, with the method's title."""
        if len(self.setting.groups) <= _ROWS_NAMED:
            return drawn_text(group.name)
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
        return {self.gid(group): group.name for group in self.setting.groups}


def axes_of(words: str, height: float = HEIGHT, width: float = WIDTH) -> tuple[Figure, Axes]:
    """A figure with a title and one panel."""
    figure = titled(Figure(figsize=(width, height), layout="constrained"), words)
    return figure, figure.subplots()


def titled(figure: Figure, words: str) -> Figure:
    """The figure with a title, which is text and no formula."""
    figure.suptitle(drawn_text(words))
    return figure


def whole_numbers(axes: Axes) -> None:
    """Marks whole numbers only on the x-axis, e.g. of rounds."""
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def logarithmic(axes: Axes) -> None:
    """Makes the x-axis logarithmic, with plain numbers; over less than two decades also between the powers of ten."""
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    plain_numbers = StrMethodFormatter("{x:g}")
    axes.xaxis.set_major_formatter(plain_numbers)
    axes.xaxis.set_minor_formatter(plain_numbers if high / low < 100 else NullFormatter())
    if high / low < 100:
        axes.xaxis.set_minor_locator(LogLocator(subs=(2, 5)))
    axes.tick_params(axis="x", which="minor", labelsize=7.5)


def legend(figure: Figure, axes: Axes, order: Sequence[str] = ()) -> None:
    """Draws the legend below the panel, where it hides nothing; the figure grows by its height.

    Args:
        figure, axes: figure, and panel with the artists.
        order: names of the rows in their order; other labels follow.

    """
    found = list(zip(*axes.get_legend_handles_labels(), strict=True))
    if len(found) < 2:  # the title or the caption says which it is
        return
    place = {label: i for i, label in enumerate(order)}
    found.sort(key=lambda pair: place.get(pair[1].removesuffix(SENDS_NOTHING), len(place)))
    wrapped = [textwrap.fill(label, _LEGEND_LETTERS, subsequent_indent="  ") for _, label in found]
    widest = max(len(line) for text in wrapped for line in text.splitlines())
    columns = max(1, min(len(found), _LEGEND_WIDTH // (widest + 5)))
    rows = -(-len(found) // columns)
    lines = max(sum(text.count("\n") + 1 for text in wrapped[i * rows : (i + 1) * rows]) for i in range(columns))
    figure.set_figheight(figure.get_figheight() + 0.19 * lines + 0.1)
    figure.legend([handle for handle, _ in found], wrapped, loc="outside lower center", ncols=columns)


def seeds(groups: Sequence[Group]) -> str:
    """The number of seeds of the rows, in words."""
    counts = sorted({len(group.runs) for group in groups})
    several = f"{counts[0]} to {counts[-1]} seeds" if len(counts) > 1 else f"{counts[0]} seeds"
    return "one seed" if counts == [1] else several
