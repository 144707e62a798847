"""Figures of scores during training: by round, bytes and time; on training, validation and test samples."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from fedem_lightning.records.measures import headline
from fedem_lightning.report.drawing import Drawn, Looks, legend, panels, row_label, whole_numbers
from fedem_lightning.report.groups import Group, Setting
from fedem_lightning.run.figure_style import drawn_text

_COSTS = {
    "round": "communication round",
    "megabytes": "megabytes a client, up and down",
    "air_megabytes": "megabytes on the air, by all",
    "training_seconds": "seconds of training",
}
"""Labels of the x-axis by column of `Run.curve`."""
_SPLITS = {"train": "training", "val": "validation", "test": "test"}


def curves(
    name: str,
    settings: Sequence[Setting],
    looks: Looks,
    x: str = "round",
    split: str = "test",
    measure: str | None = None,
) -> Drawn | None:
    """Draws scores during training: the mean over seeds as a line, the range as a band; None without data.

    Args:
        name: of the figure's file.
        settings: a panel each.
        looks: of the rows.
        x: a column of `Run.curve`.
        split: train, val or test.
        measure: accuracy, loss or mse; None: the score that tables show.

    """
    drawn = []
    for setting in settings:
        shown = measure or setting.measure[0]
        known = {g.label: _over_seeds(g, x, f"{split}/{shown}") for g in setting.groups}
        if any(points is not None for points in known.values()):
            drawn.append((setting, headline([shown]), known))
    if not drawn:
        return None
    axis = _COSTS.get(x) or f"simulated time, {drawn_text(x.removeprefix('time_'))}"
    figure, found = panels([setting.title for setting, *_ in drawn])
    for axes, (setting, (_, factor, unit), known) in zip(found, drawn, strict=True):
        for i, group in enumerate(setting.groups):
            points, look, label = known[group.label], looks[group.label], row_label(setting, group)
            if points is None:
                continue
            if x.endswith("megabytes") and not points["x"].any():  # sends nothing: its last score is a level
                axes.axhline(factor * points["mean"].iloc[-1], label=f"{label}, 0 MB", **look)
                continue
            axes.plot(points["x"], factor * points["mean"], label=label, zorder=3 - i / 100, **look)
            if len(group.runs) > 1:
                low, high = factor * points["min"], factor * points["max"]
                axes.fill_between(points["x"], low, high, color=look["color"], alpha=0.1, lw=0)
        best = [run.results["reference"].get("bayes_accuracy") for run in setting.runs]
        if (split, unit) == ("test", "accuracy, %") and None not in best:
            axes.axhline(100 * np.mean(best), color="black", linewidth=0.8, linestyle=":", label="Bayes")
        axes.set(xlabel=axis, ylabel=f"{_SPLITS[split]} {unit}, weighted")
        whole_numbers(axes) if x == "round" else None
        if x.endswith("megabytes") and any(p is not None and p["x"].any() for p in known.values()):
            axes.set_xscale("log")  # a graph of clients sends a hundred times as much as a server
    legend(figure)
    title = f"{_SPLITS[split].capitalize()} {drawn[0][1][2].partition(',')[0]} by {axis}"
    caption = (
        "Mean of the clients that train, weighted by their training samples; "
        f"{drawn[0][0].seeds}; a band reaches from the least to the largest seed."
    )
    return Drawn(name, title, caption, figure)


def _over_seeds(group: Group, x: str, column: str) -> pd.DataFrame | None:
    """Points of the curve for each round that all seeds evaluated: x, mean, min, max; None if a seed has no curve."""
    found = [c for run in group.runs if (c := run.curve(x)) is not None and column in c]
    parts = [pd.DataFrame({"round": c["round"], "x": c[x], "y": c[column]}).dropna(subset="y") for c in found]
    if len(parts) < len(group.runs) or any(part.empty for part in parts):
        return None
    by_round = pd.concat(parts).groupby("round")
    points = by_round["y"].agg(["mean", "min", "max", "size"]).assign(x=by_round["x"].mean())
    points = points[points["size"] == len(parts)]
    return None if points.empty else points
