"""Figures of test scores during training: by round, by what was sent, and by simulated time."""

from collections.abc import Sequence
from functools import partial

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from fedem_lightning.report.drawing import Drawn, Looks, draw_over_seeds, with_panels
from fedem_lightning.report.groups import Group, Setting
from fedem_lightning.run.figure_style import drawn_text

_COSTS = {"round": "communication round", "megabytes": "megabytes a client, up and down"}
"""Labels of the x-axis by column of `Run.curve`."""


def curves(name: str, settings: Sequence[Setting], looks: Looks, x: str = "round") -> Drawn | None:
    """Draws scores by `x`, a column of `Run.curve`: the mean over seeds as a line, the range as a band."""
    drawn = [setting for setting in settings if any(_over_seeds(group, x) is not None for group in setting.groups)]
    if not drawn:
        return None
    axis = _COSTS.get(x) or f"simulated time, {drawn_text(x.removeprefix('time_'))}"
    caption = (
        "Mean of the clients that train, weighted by their training samples; "
        f"{drawn[0].seeds}; a band reaches from the least to the largest seed."
    )
    panels = [(setting.title, partial(_draw, setting=setting, looks=looks, x=x, axis=axis)) for setting in drawn]
    return with_panels(name, f"Test {drawn[0].unit.partition(',')[0]} by {axis}", caption, panels)


def _draw(axes: Axes, setting: Setting, looks: Looks, x: str, axis: str) -> None:
    for i, group in enumerate(setting.groups):
        points, look, label = _over_seeds(group, x), looks[group.label], drawn_text(group.name, 44)
        if points is None:
            continue
        if x == "megabytes" and not points["x"].any():  # sends nothing: its last score is a level
            axes.axhline(points["mean"].iloc[-1], label=f"{label}, 0 MB", **look)
            continue
        draw_over_seeds(axes, points["x"], points, label, {**look, "zorder": 3 - i / 100})
        if x == "megabytes":
            axes.set_xscale("log")  # a graph of clients sends a hundred times as much as a server
    best = [run.results["reference"].get("bayes_accuracy") for run in setting.runs]
    if setting.measure[0] == "accuracy" and None not in best:
        axes.axhline(100 * np.mean(best), color="black", linewidth=0.8, linestyle=":", label="Bayes")
    axes.set(xlabel=axis, ylabel=f"test {setting.unit}, weighted")
    if x == "round":
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def _over_seeds(group: Group, x: str) -> pd.DataFrame | None:
    """Points of the curve for each round that all seeds evaluated: x, mean, min, max; None if a seed has no curve."""
    measure, factor = group.runs[0].measure
    column = f"test/{measure}"
    found = [c for run in group.runs if (c := run.curve(x)) is not None and column in c]
    parts = [pd.DataFrame({"round": c["round"], "x": c[x], "y": factor * c[column]}).dropna(subset="y") for c in found]
    if len(parts) < len(group.runs) or any(part.empty for part in parts):
        return None
    by_round = pd.concat(parts).groupby("round")
    points = by_round["y"].agg(["mean", "min", "max", "size"]).assign(x=by_round["x"].mean())
    points = points[points["size"] == len(parts)]
    return None if points.empty else points
