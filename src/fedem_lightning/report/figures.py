"""The figures of a report: scores by round, and over the clients."""

import io
import textwrap
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from math import ceil
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedem_lightning.report.groups import Group, Setting
from fedem_lightning.settings.errors import one_line

PALETTE = ("#d55e00", "#0072b2", "#7f7f7f", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#882255")
"""Okabe and Ito's colours (Color Universal Design, 2008), without black and yellow; grey; and a wine red of Tol's."""
STYLE: dict[Any, Any] = {
    **dict.fromkeys(("xtick.labelsize", "ytick.labelsize"), 8.5),
    **dict.fromkeys(("axes.spines.top", "axes.spines.right", "legend.frameon"), False),
    **{"axes.labelsize": 9, "axes.linewidth": 0.6, "legend.fontsize": 8, "figure.titlesize": 10},
    **{"axes.grid": True, "axes.axisbelow": True, "grid.color": "#c0c1c2", "grid.linewidth": 0.5},
}
"""Matplotlib's settings while figures are made and saved."""
FIGURES = ("curves", "clients")
_LINES: tuple[str | tuple[int, tuple[float, ...]], ...] = ("-", (0, (5, 1.5)), (0, (1, 1)), (0, (5, 1, 1, 1)))
_PERCENTILES = np.arange(1, 101)
_NAME = 200  # letters of a row's name in a legend, which breaks it into lines

Looks = dict[str, dict[str, Any]]
"""Matplotlib's arguments for the line of every row, by its label."""


class Drawn(NamedTuple):
    """A figure, the name of its file without the ending, and what the page says about it."""

    name: str
    title: str
    caption: str
    figure: Figure
    png: bytes
    pdf: bytes


def figures_of(settings: Sequence[Setting]) -> list[Drawn]:
    """The figures for which some run has data."""
    rows = looks(settings)
    with mpl.rc_context(STYLE | {"pdf.fonttype": 42}):  # text stays text in a PDF file
        drawn = [curves(settings, rows), percentile_figure(settings, rows)]
    return [figure for figure in drawn if figure is not None]


def looks(settings: Sequence[Setting]) -> Looks:
    """The look of every row, which is the same in all figures: after eight rows the lines differ. FedEM's are wide."""
    result: Looks = {}
    for i, group in enumerate({group.label: group for setting in settings for group in setting.groups}.values()):
        line, width = _LINES[i // len(PALETTE) % len(_LINES)], 2.4 if group.algorithm == "fedem" else 1.3
        result[group.label] = {"color": PALETTE[i % len(PALETTE)], "linestyle": line, "linewidth": width}
    return result


def curves(settings: Sequence[Setting], looks: Looks) -> Drawn | None:
    """Draws scores by round: the mean over seeds as a line, the range as a band."""
    drawn = [setting for setting in settings if any(_over_seeds(group) is not None for group in setting.groups)]
    if not drawn:
        return None
    caption = (
        "Mean of the clients that train, weighted by their training samples; "
        f"{drawn[0].seeds}; a band reaches from the least to the largest seed."
    )
    panels = [(setting.title, partial(_draw_curves, setting=setting, looks=looks)) for setting in drawn]
    return _with_panels("curves", f"Test {drawn[0].unit.partition(',')[0]} by communication round", caption, panels)


def _draw_curves(axes: Axes, setting: Setting, looks: Looks) -> None:
    for i, group in enumerate(setting.groups):
        if (points := _over_seeds(group)) is not None:
            look = {**looks[group.label], "zorder": 3 - i / 100}
            _draw_over_seeds(axes, points.index, points, drawn_text(group.name, _NAME), look)
    best = [run.results["reference"].get("bayes_accuracy") for run in setting.runs]
    if setting.measure[0] == "accuracy" and None not in best:
        axes.axhline(100 * np.mean(best), color="black", linewidth=0.8, linestyle=":", label="Bayes")
    axes.set(xlabel="communication round", ylabel=f"test {setting.unit}, weighted")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlim(0, max(run.results["rounds"] for run in setting.runs) or None)


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


def percentile_figure(settings: Sequence[Setting], looks: Looks) -> Drawn | None:
    """Draws test scores of the clients that train, from the lowest to the highest, with a band over seeds."""
    drawn = [setting for setting in settings if any(map(_quantiles, setting.groups))]
    caption = "The score that this share of the clients does not exceed; a band reaches over the seeds."
    panels = [(setting.title, partial(_draw_percentiles, setting=setting, looks=looks)) for setting in drawn]
    return _with_panels("clients", "Test scores over clients", caption, panels)


def _draw_percentiles(axes: Axes, setting: Setting, looks: Looks) -> None:
    for group in setting.groups:
        if quantiles := _quantiles(group):
            points = pd.DataFrame(quantiles).agg(["mean", "min", "max"]).T
            _draw_over_seeds(axes, _PERCENTILES, points, drawn_text(group.name, _NAME), looks[group.label])
    axes.set(xlabel="percentile of clients, lowest score first", ylabel=f"a client's test {setting.unit}")


def _quantiles(group: Group) -> list[np.ndarray]:
    """The clients' test scores by percentile, for each seed that has any."""
    scores = [run.scored["score"].to_numpy() for run in group.runs if len(run.scored)]
    return [np.quantile(values, _PERCENTILES / 100, method="inverted_cdf") for values in scores]


def _draw_over_seeds(axes: Axes, x: Any, scores: pd.DataFrame, label: str, look: dict[str, Any]) -> None:
    """Draws means over seeds as a line, and a band from the least to the largest; `scores` has mean, min and max."""
    axes.plot(x, scores["mean"], label=label, **look)
    if not scores["min"].equals(scores["max"]):
        axes.fill_between(x, scores["min"], scores["max"], color=look["color"], alpha=0.1, lw=0)


def _with_panels(
    name: str, title: str, caption: str, panels: Sequence[tuple[str, Callable[[Axes], None]]]
) -> Drawn | None:
    """A figure of panels, each a title and what draws it, three in a row, under one legend; None without any."""
    if not panels:
        return None
    columns = min(3, len(panels))
    rows = ceil(len(panels) / columns)
    figure = Figure(figsize=(4.2 * columns, 3 * rows), layout="constrained")
    for number, (panel, draw) in enumerate(panels, start=1):
        axes = figure.add_subplot(rows, columns, number)
        axes.set_title(drawn_text(panel, 60), fontsize=9)
        draw(axes)
    legend_below(figure)
    png, pdf = io.BytesIO(), io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # of a name; an empty box stands for it
        figure.savefig(png, dpi=200)
        figure.savefig(pdf, format="pdf", metadata={"CreationDate": None})
    return Drawn(name, title, caption, figure, png.getvalue(), pdf.getvalue())


def legend_below(figure: Figure) -> None:
    """Draws one legend for all axes below them, whole and in columns that fit; the figure grows by its height."""
    result = {
        label: handle for axes in figure.axes for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    if not result:
        return
    width = figure.get_figwidth()
    labels = [textwrap.fill(label, int(14 * width) - 6) for label in result]  # an inch has about 14 letters
    for columns in range(min(len(result), max(1, int(2 * width))), 0, -1):
        legend = figure.legend(list(result.values()), labels, loc="outside lower center", ncols=columns)
        extent = legend.get_window_extent()
        if extent.width <= figure.bbox.width or columns == 1:
            break
        legend.remove()
    figure.set_figheight(figure.get_figheight() + extent.height / figure.dpi)


def drawn_text(text: Any, limit: int = 80) -> str:
    """A text on one line of at most `limit` letters, which Matplotlib draws as it is: $ begins no formula."""
    line = one_line(text)
    shown = line if len(line) <= limit else line[: limit - 1] + "…"
    return shown.replace("$", r"\$")
