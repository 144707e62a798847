"""The figure of a report: scores by round."""

import io
import textwrap
import warnings
from collections.abc import Sequence
from math import ceil
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedem_lightning.report.groups import Group, Setting, shorten

PALETTE = ("#d55e00", "#0072b2", "#7f7f7f", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#882255")
"""Okabe and Ito's colours (Color Universal Design, 2008), without black and yellow; grey; and a wine red of Tol's."""
STYLE: dict[Any, Any] = {
    **dict.fromkeys(("xtick.labelsize", "ytick.labelsize"), 8.5),
    **dict.fromkeys(("axes.spines.top", "axes.spines.right", "legend.frameon"), False),
    **{"axes.labelsize": 9, "axes.linewidth": 0.6, "legend.fontsize": 8, "figure.titlesize": 10},
    **{"axes.grid": True, "axes.axisbelow": True, "grid.color": "#c0c1c2", "grid.linewidth": 0.5},
}
"""Matplotlib's settings while figures are made and saved."""
_LINES: tuple[str | tuple[int, tuple[float, ...]], ...] = ("-", (0, (5, 1.5)), (0, (1, 1)), (0, (5, 1, 1, 1)))

Looks = dict[str, dict[str, Any]]
"""Matplotlib's arguments for the line of every row, by its label."""


class Drawn(NamedTuple):
    """A figure, and what the page says about it."""

    title: str
    caption: str
    figure: Figure
    png: bytes
    pdf: bytes


def curves(settings: Sequence[Setting]) -> Drawn | None:
    """Draws scores by round, a panel for each setting: the mean over seeds as a line, the range as a band.

    None: no run has evaluated any round.
    """
    drawn = [setting for setting in settings if any(_over_seeds(group) is not None for group in setting.groups)]
    if not drawn:
        return None
    columns = min(3, len(drawn))
    rows, row_looks = ceil(len(drawn) / columns), looks(settings)
    png, pdf = io.BytesIO(), io.BytesIO()
    with mpl.rc_context(STYLE | {"pdf.fonttype": 42}), warnings.catch_warnings():  # text stays text in a PDF file
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # of a name; an empty box stands for it
        figure = Figure(figsize=(4.2 * columns, 3 * rows), layout="constrained")
        for number, setting in enumerate(drawn, start=1):
            axes = figure.add_subplot(rows, columns, number)
            axes.set_title(_drawn_text(setting.title, 60), fontsize=9)
            _draw_curves(axes, setting, row_looks)
        legend_below(figure)
        figure.savefig(png, dpi=200)
        figure.savefig(pdf, format="pdf", metadata={"CreationDate": None})
    caption = (
        "Mean of the clients that train, weighted by their training samples; "
        f"{drawn[0].seeds}; a band reaches from the least to the largest seed."
    )
    title = f"Test {drawn[0].unit.partition(',')[0]} by communication round"
    return Drawn(title, caption, figure, png.getvalue(), pdf.getvalue())


def looks(settings: Sequence[Setting]) -> Looks:
    """The look of every row, which is the same in all panels: after eight rows the lines differ. FedEM's are wide."""
    result: Looks = {}
    for i, group in enumerate({group.label: group for setting in settings for group in setting.groups}.values()):
        line, width = _LINES[i // len(PALETTE) % len(_LINES)], 2.4 if group.algorithm == "fedem" else 1.3
        result[group.label] = {"color": PALETTE[i % len(PALETTE)], "linestyle": line, "linewidth": width}
    return result


def _draw_curves(axes: Axes, setting: Setting, looks: Looks) -> None:
    for i, group in enumerate(setting.groups):
        if (points := _over_seeds(group)) is not None:
            look = looks[group.label]
            axes.plot(points.index, points["mean"], label=_drawn_text(group.name, 200), zorder=3 - i / 100, **look)
            if not points["min"].equals(points["max"]):
                axes.fill_between(points.index, points["min"], points["max"], color=look["color"], alpha=0.1, lw=0)
    best = [run.results["reference"].get("bayes_accuracy") for run in setting.runs]
    if setting.measure[0] == "accuracy" and None not in best:
        axes.axhline(100 * np.mean(best), color="black", linewidth=0.8, linestyle=":", label="Bayes")
    axes.set(xlabel="communication round", ylabel=f"test {setting.unit}, weighted")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlim(0, max(run.results["rounds"] for run in setting.runs) or None)


def _drawn_text(text: str, longest: int) -> str:
    """A text on one line, which Matplotlib draws as it is: $ begins no formula."""
    return shorten(text, longest).replace("$", r"\$")


def _over_seeds(group: Group) -> pd.DataFrame | None:
    """mean, min and max for each round that all seeds evaluated, by round; None if a seed has no curve."""
    measure, factor = group.runs[0].measure
    column = f"test/{measure}"
    result = [run.metrics for run in group.runs if {"round", column} <= set(run.metrics)]
    parts = [factor * table.set_index("round")[column].dropna() for table in result]
    if len(parts) < len(group.runs) or any(part.empty for part in parts):
        return None
    points = pd.concat(parts).groupby("round").agg(["mean", "min", "max", "size"])
    points = points[points["size"] == len(parts)]
    return None if points.empty else points


def legend_below(figure: Figure) -> None:
    """Draws one legend for all axes below them, whole and in columns that fit; the figure grows by its height."""
    result = {
        label: handle for axes in figure.axes for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    width = figure.get_figwidth()
    labels = [textwrap.fill(label, int(14 * width) - 6) for label in result]  # an inch has about 14 letters
    for columns in range(min(len(result), max(1, int(2 * width))), 0, -1):
        legend = figure.legend(list(result.values()), labels, loc="outside lower center", ncols=columns)
        extent = legend.get_window_extent()
        if extent.width <= figure.bbox.width or columns == 1:
            break
        legend.remove()
    figure.set_figheight(figure.get_figheight() + extent.height / figure.dpi)
