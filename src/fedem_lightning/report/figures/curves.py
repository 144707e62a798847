"""Figures of scores during training: by round, megabytes, simulated time and seconds."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from fedem_lightning.report.equal_cost import curve, networks_of
from fedem_lightning.report.figures.base import (
    NO_LABEL,
    SENDS_NOTHING,
    Drawn,
    Rows,
    axes_of,
    banded,
    bands,
    legend,
    logarithmic,
    seeds,
    unit,
    whole_numbers,
)
from fedem_lightning.report.looks import CHROME, MAIN_WIDTH
from fedem_lightning.report.papers import Papers, tables_for
from fedem_lightning.run.method_names import title
from fedem_lightning.run.plain_text import plain

AXES = {
    "round": ("by_round", "communication round"),
    "megabytes": ("by_megabytes", "megabytes a client, up and down"),
    "air_megabytes": ("by_air_megabytes", "megabytes on the air, by all"),
    "training_seconds": ("by_seconds", "seconds of training"),
}


def all_curves(rows: Rows, papers: Papers) -> list[Drawn]:
    """Every figure of scores during training for which the runs have data."""
    axes = AXES | {f"time_{n}": (f"by_time_{n}", f"simulated time, {plain(n)}") for n in networks_of(rows.setting)}
    found = [curves(rows, x, xlabel, "test", name, papers) for x, (name, xlabel) in axes.items()]
    found.append(curves(rows, "round", "communication round", "val", "validation_by_round", papers))
    return [drawn for drawn in found if drawn is not None]


def curves(rows: Rows, x: str, xlabel: str, split: str, name: str, papers: Papers | None = None) -> Drawn | None:
    """Draws scores during training: the mean over seeds as a line, the range as a band; None without data.

    Args:
        rows: the setting to draw.
        x: a column of `curve`.
        xlabel: label of the x-axis.
        split: val or test.
        name: end of the file's name.
        papers: published numbers; the first row that has one gets a line.

    """
    setting = rows.setting
    measure, factor = setting.measure
    column = f"{split}/{measure}"
    drawn = {g.label: [c for run in g.runs if (c := curve(run, x)) is not None] for g in setting.groups}
    if not any(column in c for found in drawn.values() for c in found):
        return None
    figure, axes = axes_of(f"{setting.title}: {'validation' if split == 'val' else 'test'} score by {xlabel}")
    for group in reversed(setting.groups):  # the first rows lie on top
        look = rows.looks[group.label]
        points = _over_seeds([c for c in drawn[group.label] if column in c], x, column)
        if points is None:
            continue
        label, gid = rows.label(group), rows.gid(group)
        if x.endswith("megabytes") and not points["x"].any():  # sends nothing: its last score is a level
            level = factor * points["mean"].iloc[-1]
            axes.axhline(level, label=label if label == NO_LABEL else f"{label}{SENDS_NOTHING}", **look.lined(gid))
            continue
        axes.plot(points["x"], factor * points["mean"], label=label, **look.lined(gid))
        if banded(rows, group):
            low, high = factor * points["min"], factor * points["max"]
            axes.fill_between(points["x"], low, high, color=look.colour, alpha=0.13, lw=0, gid=f"{gid}-band")
    _levels(axes, rows, split, papers)
    axes.set(xlabel=xlabel, ylabel=f"{split} {unit(setting)}, weighted")
    if x == "round":
        whole_numbers(axes)
    if x.endswith("megabytes"):
        logarithmic(axes)  # a graph of clients sends a hundred times as much as a server
    legend(figure, axes, order=[rows.label(group) for group in setting.groups])
    caption = (
        f"Mean of the clients that train, weighted by their training samples; {seeds(setting.groups)}{bands(rows)}."
    )
    return Drawn(f"{setting.title}_{name}", "convergence", caption, figure, rows.tips())


def _levels(axes: Axes, rows: Rows, split: str, papers: Papers | None) -> None:
    """Draws the best possible score and the paper's number as thin lines."""
    setting = rows.setting
    _, factor = setting.measure
    found = [(r.results.get("reference") or {}).get("bayes_accuracy") for g in setting.groups for r in g.runs]
    known = [factor * value for value in found if isinstance(value, (int, float))]
    if known and split == "test":
        best = float(np.mean(known))
        axes.axhline(best, color=CHROME, linewidth=0.9, linestyle=":", label=f"Bayes {best:.1f}")
    for group in setting.groups if papers is not None and split == "test" else ():
        look = rows.looks[group.label]
        number = papers.find(group.runs[0], "average", tables_for(group.runs[0])) if papers else None
        if number is not None and look.width == MAIN_WIDTH:
            label = f"paper, {title(group.algorithm)}: {number.value:g}"
            axes.axhline(number.value, color=look.colour, linewidth=0.9, linestyle=(0, (1, 2)), label=label)
            return


def _over_seeds(found: list[pd.DataFrame], x: str, column: str) -> pd.DataFrame | None:
    """Points of the curve for each round that all seeds evaluated: x, mean, min, max."""
    known = [c[column].notna().to_numpy() for c in found]
    if not known or not all(seen.any() for seen in known):
        return None
    names = {"round": "round", "x": x, "y": column}
    parts = list(zip(found, known, strict=True))
    arrays = {key: np.concatenate([c[name].to_numpy()[seen] for c, seen in parts]) for key, name in names.items()}
    by_round = pd.DataFrame(arrays).groupby("round")
    points = by_round["y"].agg(["mean", "min", "max", "size"]).assign(x=by_round["x"].mean())
    return points[points["size"] == len(found)]
