"""Figures of scores: during training (by round, bytes, time), over clients by percentile, of two methods by client."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from fedem_lightning.report.equal_cost import networks_of
from fedem_lightning.report.figures.drawing import (
    NO_LABEL,
    SENDS_NOTHING,
    Drawn,
    DrawnRows,
    axes_of,
    legend,
    logarithmic,
    seeds,
    whole_numbers,
)
from fedem_lightning.report.finished_run import Run
from fedem_lightning.report.groups import Group
from fedem_lightning.report.looks import CHROME, MAIN_WIDTH
from fedem_lightning.report.papers import Papers, tables_for
from fedem_lightning.report.significance import CHANCE_LEVEL
from fedem_lightning.run.figures import drawn_text

_AXES = {
    "round": ("by_round", "communication round"),
    "megabytes": ("by_megabytes", "megabytes a client, up and down"),
    "air_megabytes": ("by_air_megabytes", "megabytes on the air, by all"),
    "training_seconds": ("by_seconds", "seconds of training"),
}
"""Figures by the column on their x-axis: end of the file's name, and label."""
_PERCENTILES = np.arange(1, 101)
_BANDS = 5
"""Largest number of rows with bands for all of them."""
_Values = pd.Series | np.ndarray


def all_curves(rows: DrawnRows, papers: Papers) -> list[Drawn]:
    """Every figure of scores during training for which the runs have data."""
    axes = _AXES | {
        f"time_{n}": (f"by_time_{n}", f"simulated time, {drawn_text(n)}") for n in networks_of(rows.setting)
    }
    found = [curves(rows, x, xlabel, "test", name, papers) for x, (name, xlabel) in axes.items()]
    found.append(curves(rows, "round", "communication round", "val", "validation_by_round", papers))
    return [drawn for drawn in found if drawn is not None]


def curves(rows: DrawnRows, x: str, xlabel: str, split: str, name: str, papers: Papers | None = None) -> Drawn | None:
    """Draws scores during training: the mean over seeds as a line, the range as a band; None without data.

    Args:
        rows: the setting to draw.
        x: a column of `Run.curve`.
        xlabel: label of the x-axis.
        split: val or test.
        name: end of the file's name.
        papers: published numbers; the first row that has one gets a line.

    """
    setting = rows.setting
    measure, factor = setting.measure
    column = f"{split}/{measure}"
    drawn = {g.label: [c for run in g.runs if (c := run.curve(x)) is not None] for g in setting.groups}
    if not any(column in c for found in drawn.values() for c in found):
        return None
    figure, axes = axes_of(f"{setting.title}: {'validation' if split == 'val' else 'test'} score by {xlabel}")
    for group in reversed(setting.groups):  # the first rows lie on top
        points = _over_seeds([c for c in drawn[group.label] if column in c], x, column)
        if points is None:
            continue
        if x.endswith("megabytes") and not points["x"].any():  # sends nothing: its last score is a level
            level, label = factor * points["mean"].iloc[-1], rows.label(group)
            label += "" if label == NO_LABEL else SENDS_NOTHING
            axes.axhline(level, label=label, **rows.looks[group.label].lined(rows.gid(group)))
            continue
        _draw_row(axes, rows, group, points["x"], *(factor * points[name] for name in ("mean", "min", "max")))
    _levels(axes, rows, split, papers)
    axes.set(xlabel=xlabel, ylabel=f"{split} {setting.unit}, weighted")
    if x == "round":
        whole_numbers(axes)
    if x.endswith("megabytes"):
        logarithmic(axes)  # a graph of clients sends a hundred times as much as a server
    legend(figure, axes, order=[rows.label(group) for group in setting.groups])
    caption = f"Mean of the clients that train, weighted by their training samples; {_seeds_and_bands(rows)}."
    return Drawn(f"{setting.title}_{name}", "convergence", caption, figure, rows.tips())


def _levels(axes: Axes, rows: DrawnRows, split: str, papers: Papers | None) -> None:
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
            label = f"paper, {group.title}: {number.value:g}"
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


def percentile_figure(rows: DrawnRows) -> Drawn | None:
    """Draws test scores of the clients that train, from the lowest to the highest, with a band over seeds."""
    setting = rows.setting
    measure, factor = setting.measure
    figure, axes = axes_of(f"{setting.title}: test scores over clients")
    for group in setting.groups:
        quantiles = [q for run in group.runs if (q := _quantiles(run, f"test_{measure}")) is not None]
        if not quantiles:
            continue
        values = factor * np.stack(quantiles)
        _draw_row(axes, rows, group, _PERCENTILES, values.mean(axis=0), values.min(axis=0), values.max(axis=0))
    if not axes.lines:
        return None
    axes.set(xlabel="percentile of clients, lowest score first", ylabel=f"a client's test {setting.unit}")
    legend(figure, axes)
    caption = f"The score that this share of the clients does not exceed; {_seeds_and_bands(rows)}."
    return Drawn(f"{setting.title}_fairness", "clients", caption, figure, rows.tips())


def _quantiles(run: Run, column: str) -> np.ndarray | None:
    clients = run.clients
    if clients is None or column not in clients:
        return None
    scores = clients.loc[clients["population"] == "seen", column].dropna().to_numpy(dtype=float)
    return np.quantile(scores, _PERCENTILES / 100, method="inverted_cdf") if len(scores) else None


def pair_figure(rows: DrawnRows, a: Group, b: Group, pairs: pd.DataFrame) -> Drawn:
    """Draws every client as a point: its score with `b` to the right, with `a` upwards.

    Args:
        rows: the setting.
        a, b: the two rows.
        pairs: from `compare_clients(a, b)`.

    """
    setting = rows.setting
    names = rows.names[a.label], rows.names[b.label]
    figure, axes = axes_of(f"{setting.title}: {names[0]} and {names[1]}, client by client", height=4.4, width=4.6)
    sure = (pairs.p < CHANCE_LEVEL).to_numpy()
    colour = rows.looks[a.label].colour
    for chosen, alpha, gid in ((~sure, 0.25, "even"), (sure, 0.9, "sure")):
        shown = pairs[chosen]
        axes.scatter(shown.b, shown.a, s=12, color=colour, alpha=alpha, linewidths=0, gid=gid)
    low, high = axes.get_xlim()[0], axes.get_xlim()[1]
    low, high = min(low, axes.get_ylim()[0]), max(high, axes.get_ylim()[1])
    axes.plot([low, high], [low, high], color=CHROME, linewidth=0.7, linestyle=":")
    axes.set(xlim=(low, high), ylim=(low, high), aspect="equal")
    axes.set(
        xlabel=f"{drawn_text(names[1], 30)}, test {setting.unit}",
        ylabel=f"{drawn_text(names[0], 30)}, test {setting.unit}",
    )
    caption = (
        "One point a client and seed; full colour: the two models differ on the client's own test samples, p < 0.05."
    )
    tips = {
        gid: [f"{i}, seed {s}" for i, s in zip(pairs.id[c], pairs.seed[c], strict=True)]
        for c, gid in ((~sure, "even"), (sure, "sure"))
    }
    return Drawn(f"{setting.title}_{names[0]}_and_{names[1]}", "gains", caption, figure, points=tips)


def _draw_row(
    axes: Axes, rows: DrawnRows, group: Group, x: _Values, mean: _Values, low: _Values, high: _Values
) -> None:
    """Draws a row as a line, with a band from the lowest to the highest seed if it gets one."""
    look, gid = rows.looks[group.label], rows.gid(group)
    axes.plot(x, mean, label=rows.label(group), **look.lined(gid))
    if _banded(rows, group):
        axes.fill_between(x, low, high, color=look.colour, alpha=0.13, lw=0, gid=f"{gid}-band")


def _banded(rows: DrawnRows, group: Group) -> bool:
    """Whether a row gets a band over seeds: among many rows only the main method does, because bands hide lines."""
    few = len(rows.setting.groups) <= _BANDS
    return len(group.runs) > 1 and (few or rows.looks[group.label].width > MAIN_WIDTH - 1)


def _seeds_and_bands(rows: DrawnRows) -> str:
    """The part of a caption that tells the number of seeds, and explains the bands."""
    drawn = [group for group in rows.setting.groups if _banded(rows, group)]
    of_one = f" (only {rows.names[drawn[0].label]} has one)" if len(drawn) == 1 < len(rows.setting.groups) else ""
    bands = f"; a band reaches from the least to the largest value over seeds{of_one}" if drawn else ""
    return seeds(rows.setting.groups) + bands
