"""Figures of scores during training: by round, bytes and time; on training, validation and test samples."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from fedem_lightning.records.measures import SPLITS, headline
from fedem_lightning.report.cells import cell_text
from fedem_lightning.report.drawing import (
    CHROME,
    MAIN_WIDTH,
    NO_LABEL,
    SENDS_NOTHING,
    Drawn,
    DrawnRows,
    logarithmic,
    seeds,
    whole_numbers,
)
from fedem_lightning.report.equal_cost import networks_of
from fedem_lightning.report.groups import Group
from fedem_lightning.report.papers import Papers, tables_for
from fedem_lightning.report.warning_lines import said_alike
from fedem_lightning.run.figure_style import drawn_text

_COSTS = {
    "round": ("by_round", "communication round"),
    "megabytes": ("by_megabytes", "megabytes a client, up and down"),
    "air_megabytes": ("by_air_megabytes", "megabytes on the air, by all"),
    "training_seconds": ("by_seconds", "seconds of training"),
}
"""Figures by the column on their x-axis: end of the file's name, and label."""
_CLEAR_BANDS = 5
"""Largest number of rows whose bands are all easy to see."""
_Values = pd.Series | np.ndarray
_SPLITS = {"train": "training", "val": "validation", "test": "test"}


def all_curves(rows: DrawnRows, papers: Papers) -> list[Drawn]:
    """Every figure of scores during training with data: the test score by each axis, other scores by round."""
    axes = [*_COSTS, *(f"time_{network}" for network in networks_of(rows.setting))]
    found = [curves(rows, x, papers=papers) for x in axes]
    shown = rows.setting.measure[0]
    others = [(split, name) for name in dict.fromkeys((shown, "loss")) for split in reversed(SPLITS)]
    found += [curves(rows, split=split, measure=name) for split, name in others if (split, name) != ("test", shown)]
    return [drawn for drawn in found if drawn is not None]


def axis_label(x: str) -> str:
    """The label of an axis with this column of `Run.curve`."""
    return _COSTS[x][1] if x in _COSTS else f"simulated time, {drawn_text(x.removeprefix('time_'))}"


def curves(
    rows: DrawnRows,
    x: str = "round",
    split: str = "test",
    measure: str | None = None,
    papers: Papers | None = None,
) -> Drawn | None:
    """Draws scores during training: the mean over seeds as a line, the range as a band; None without data.

    Args:
        rows: the setting to draw.
        x: a column of `Run.curve`.
        split: train, val or test.
        measure: accuracy, loss or mse; None: the score that tables show.
        papers: published numbers; the first row that has one gets a line in the figure of that test score.

    """
    setting = rows.setting
    shown = setting.measure[0]
    name, factor, unit = headline([measure or shown])
    drawn = {g.label: found for g in setting.groups if (found := _over_seeds(g, x, f"{split}/{name}")) is not None}
    if not drawn:
        return None
    data: list[pd.DataFrame] = []
    score = f"{_SPLITS[split]} {unit.partition(',')[0]}"
    figure, axes = rows.axes(f"{setting.title}: {score} by {axis_label(x)}")
    for group in (group for group in reversed(setting.groups) if group.label in drawn):  # the first rows lie on top
        points = drawn[group.label]
        if x.endswith("megabytes") and not points["x"].any():  # sends nothing: its last score is a level
            label = rows.label(group)
            label += "" if label == NO_LABEL else SENDS_NOTHING
            level = factor * points["mean"].iloc[-1]
            axes.axhline(level, label=label, **rows.looks[group.label].lined(rows.gid(group)))
        else:
            draw_row(axes, rows, group, points["x"], *(factor * points[key] for key in ("mean", "min", "max")))
        values = {column: factor * points[key] for column, key in (("mean", "mean"), ("low", "min"), ("high", "max"))}
        data.insert(0, pd.DataFrame({"method": cell_text(group.name), x: points["x"], **values}))
    if (split, name) == ("test", shown):
        _levels(axes, rows, papers)
    axes.set(xlabel=axis_label(x), ylabel=f"{_SPLITS[split]} {unit}, weighted")
    if x == "round":
        whole_numbers(axes)
    if x.endswith("megabytes"):
        logarithmic(axes)  # a graph of clients sends a hundred times as much as a server
    rows.legend(figure, axes, [rows.label(group) for group in setting.groups])
    alike = said_alike(setting.groups, {label: points["mean"].to_numpy() for label, points in drawn.items()})
    caption = f"Mean of the clients that train, weighted by their training samples; {seeds_and_bands(rows)}.{alike}"
    ending = _COSTS.get(x, (f"by_{x}",))[0]
    ending = ending if (split, name) == ("test", shown) else f"{split}_{name}_{ending}"
    switches = {"score": score, "axis": axis_label(x)}
    return Drawn(
        f"{setting.title}_{ending}",
        "convergence",
        caption,
        figure,
        rows.tips(),
        data=pd.concat(data),
        switches=switches,
    )


def _levels(axes: Axes, rows: DrawnRows, papers: Papers | None) -> None:
    """Draws the best possible score and the paper's number for the main method as thin lines."""
    setting = rows.setting
    found = [r.results["reference"].get("bayes_accuracy") for g in setting.groups for r in g.runs]
    known = [value for value in found if isinstance(value, (int, float))]
    if known:
        best = setting.measure[1] * float(np.mean(known))
        axes.axhline(best, color=CHROME, linewidth=0.9, linestyle=":", label=f"Bayes {best:.1f}")
    for group in setting.groups if papers is not None else ():
        look = rows.looks[group.label]
        number = papers.find(group.runs[0], "average", tables_for(group.runs[0])) if papers else None
        if number is not None and look.width == MAIN_WIDTH:
            label = f"paper, {group.title}: {number.value:g}"
            axes.axhline(number.value, color=look.colour, linewidth=0.9, linestyle=(0, (1, 2)), label=label)
            return


def _over_seeds(group: Group, x: str, column: str) -> pd.DataFrame | None:
    """Points of the curve for each round that all seeds evaluated: x, mean, min, max; None if a seed has no curve."""
    found = [c for run in group.runs if (c := run.curve(x)) is not None and column in c]
    parts = [pd.DataFrame({"round": c["round"], "x": c[x], "y": c[column]}).dropna(subset="y") for c in found]
    if not parts or any(part.empty for part in parts):
        return None
    by_round = pd.concat(parts).groupby("round")
    points = by_round["y"].agg(["mean", "min", "max", "size"]).assign(x=by_round["x"].mean())
    return points[points["size"] == len(parts)]


def draw_row(axes: Axes, rows: DrawnRows, group: Group, x: _Values, mean: _Values, low: _Values, high: _Values) -> None:
    """Draws a row as a line, with a band from the lowest to the highest seed."""
    look, gid = rows.looks[group.label], rows.gid(group)
    axes.plot(x, mean, label=rows.label(group), **look.lined(gid))
    if len(group.runs) > 1:  # many bands hide lines, unless they are faint
        alpha = 0.14 if len(rows.setting.groups) <= _CLEAR_BANDS or look.width == MAIN_WIDTH else 0.06
        axes.fill_between(x, low, high, color=look.colour, alpha=alpha, lw=0, gid=f"{gid}-band")


def seeds_and_bands(rows: DrawnRows) -> str:
    """The part of a caption that tells the number of seeds, and explains the bands."""
    several = any(len(group.runs) > 1 for group in rows.setting.groups)
    bands = "; a band reaches from the least to the largest value over seeds" if several else ""
    return seeds(rows.setting.groups) + bands
