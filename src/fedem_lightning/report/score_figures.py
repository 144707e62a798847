"""Figures of scores: during training (by round, bytes, time), over clients by percentile, of two methods by client."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba

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
from fedem_lightning.report.finished_run import Run
from fedem_lightning.report.gains_by_client import compare_clients
from fedem_lightning.report.groups import Group
from fedem_lightning.report.papers import Papers, tables_for
from fedem_lightning.report.scores_table import final_scores
from fedem_lightning.report.significance import CHANCE_LEVEL, t_interval
from fedem_lightning.run.figures import drawn_text

_COSTS = {
    "round": ("by_round", "communication round"),
    "megabytes": ("by_megabytes", "megabytes a client, up and down"),
    "air_megabytes": ("by_air_megabytes", "megabytes on the air, by all"),
    "training_seconds": ("by_seconds", "seconds of training"),
}
"""Figures by the column on their x-axis: end of the file's name, and label."""
_PERCENTILES = np.arange(1, 101)
_DOTTED = 40
"""Largest number of rows for which each seed is drawn as a point."""
_BANDS = 5
"""Largest number of rows with bands for all of them."""
_Values = pd.Series | np.ndarray


def seeds_figure(rows: DrawnRows) -> Drawn | None:
    """Draws each seed's test score as a point, a line a method, with the mean and its 95 % interval; best on top."""
    setting = rows.setting
    found = {g.label: {run.seed: final_scores(run).get("weighted") for run in g.runs} for g in setting.groups}
    finals = {label: pd.Series(scores, dtype=float) for label, scores in found.items()}  # NaN without a score
    known = [group for group in setting.groups if np.isfinite(finals[group.label]).all()]
    if not 1 < len(known) <= _DOTTED:
        return None
    sign = setting.groups[0].runs[0].sign
    known.sort(key=lambda group: sign * float(finals[group.label].mean()))
    figure, axes = rows.axes(f"{setting.title}: test score by method", height=1.0 + 0.27 * len(known))
    data: list[pd.DataFrame] = []
    for place, group in enumerate(known):
        scores, colour = finals[group.label].to_numpy(), rows.looks[group.label].colour
        axes.plot(scores, np.full(len(scores), place), "o", color=colour, markersize=4, alpha=0.45, markeredgewidth=0)
        axes.plot([scores.mean()], [place], "|", color=colour, markersize=13, markeredgewidth=2)
        if len(scores) > 1:
            axes.plot(t_interval(scores), [place, place], color=colour, linewidth=1.2)
        columns = {"method": cell_text(group.name), "seed": finals[group.label].index, "score": scores}
        data.insert(0, pd.DataFrame(columns))
    axes.set_yticks(range(len(known)), [drawn_text(group.name, 44) for group in known])
    axes.set(xlabel=f"test {setting.unit}, weighted", ylim=(-0.6, len(known) - 0.4))
    axes.grid(visible=False, axis="y")
    several = any(len(group.runs) > 1 for group in known)
    lines = "; the line is Student's 95 % interval of the mean over seeds, which are assumed normal" if several else ""
    caption = f"A point is one seed, the bar is the mean{lines}; {seeds(setting.groups)}."
    return Drawn(f"{setting.title}_methods", "scores", caption, figure, data=pd.concat(data))


def all_curves(rows: DrawnRows, papers: Papers) -> list[Drawn]:
    """Every figure of scores during training for which the runs have data."""
    axes = [*_COSTS, *(f"time_{network}" for network in networks_of(rows.setting))]
    found = [curves(rows, x, axis_label(x), "test", _COSTS.get(x, (f"by_{x}",))[0], papers) for x in axes]
    found.append(curves(rows, "round", "communication round", "val", "validation_by_round", papers))
    return [drawn for drawn in found if drawn is not None]


def axis_label(x: str) -> str:
    """The label of an axis with this column of `Run.curve`."""
    return _COSTS[x][1] if x in _COSTS else f"simulated time, {drawn_text(x.removeprefix('time_'))}"


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
    drawn = {g.label: _over_seeds(g, x, f"{split}/{measure}") for g in setting.groups}
    if all(points is None for points in drawn.values()):
        return None
    data: list[pd.DataFrame] = []
    figure, axes = rows.axes(f"{setting.title}: {'validation' if split == 'val' else 'test'} score by {xlabel}")
    for group in reversed(setting.groups):  # the first rows lie on top
        points = drawn[group.label]
        if points is None:
            continue
        if x.endswith("megabytes") and not points["x"].any():  # sends nothing: its last score is a level
            label = rows.label(group)
            label += "" if label == NO_LABEL else SENDS_NOTHING
            level = factor * points["mean"].iloc[-1]
            axes.axhline(level, label=label, **rows.looks[group.label].lined(rows.gid(group)))
        else:
            _draw_row(axes, rows, group, points["x"], *(factor * points[key] for key in ("mean", "min", "max")))
        scores = {name: factor * points[key] for name, key in (("mean", "mean"), ("low", "min"), ("high", "max"))}
        data.insert(0, pd.DataFrame({"method": cell_text(group.name), x: points["x"], **scores}))
    if split == "test":
        _levels(axes, rows, papers)
    axes.set(xlabel=xlabel, ylabel=f"{split} {setting.unit}, weighted")
    if x == "round":
        whole_numbers(axes)
    if x.endswith("megabytes"):
        logarithmic(axes)  # a graph of clients sends a hundred times as much as a server
    rows.legend(figure, axes, [rows.label(group) for group in setting.groups])
    caption = f"Mean of the clients that train, weighted by their training samples; {_seeds_and_bands(rows)}."
    return Drawn(f"{setting.title}_{name}", "convergence", caption, figure, rows.tips(), data=pd.concat(data))


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


def percentile_figure(rows: DrawnRows) -> Drawn | None:
    """Draws test scores of the clients that train, from the lowest to the highest, with a band over seeds."""
    setting = rows.setting
    data: list[pd.DataFrame] = []
    figure, axes = rows.axes(f"{setting.title}: test scores over clients")
    for group in setting.groups:
        quantiles = [q for run in group.runs if (q := _quantiles(run)) is not None]
        if quantiles:
            values = np.stack(quantiles)
            scores = {"mean": values.mean(axis=0), "low": values.min(axis=0), "high": values.max(axis=0)}
            _draw_row(axes, rows, group, _PERCENTILES, *scores.values())
            data.append(pd.DataFrame({"method": cell_text(group.name), "percentile": _PERCENTILES, **scores}))
    if not axes.lines:
        return None
    axes.set(xlabel="percentile of clients, lowest score first", ylabel=f"a client's test {setting.unit}")
    rows.legend(figure, axes)
    caption = f"The score that this share of the clients does not exceed; {_seeds_and_bands(rows)}."
    return Drawn(f"{setting.title}_fairness", "clients", caption, figure, rows.tips(), data=pd.concat(data))


def _quantiles(run: Run) -> np.ndarray | None:
    measure, factor = run.measure
    clients = run.clients
    if clients is None or f"test_{measure}" not in clients:
        return None
    scores = clients.loc[clients["population"] == "seen", f"test_{measure}"].dropna().to_numpy(dtype=float)
    return factor * np.quantile(scores, _PERCENTILES / 100, method="inverted_cdf") if len(scores) else None


def main_pair_figure(rows: DrawnRows) -> Drawn | None:
    """Draws the clients' scores with the main method and its rival."""
    a, b = rows.main_pair()
    return pair_figure(rows, a, b) if a is not b else None


def pair_figure(rows: DrawnRows, a: Group, b: Group) -> Drawn | None:
    """Draws every client as a point: its score with b to the right, with a upwards; None without any."""
    setting, pairs = rows.setting, compare_clients(a, b)
    if pairs is None:
        return None
    figure, axes = rows.axes(f"{setting.title}: {a.name} and {b.name}, client by client", height=4.4, width=4.6)
    colours = [to_rgba(rows.looks[a.label].colour, 0.9 if p < CHANCE_LEVEL else 0.25) for p in pairs.p]
    axes.scatter(pairs.b, pairs.a, s=12, color=colours, linewidths=0)
    low, high = np.sort([*axes.get_xlim(), *axes.get_ylim()])[[0, -1]]
    axes.plot([low, high], [low, high], color=CHROME, linewidth=0.7, linestyle=":")
    x, y = (f"{drawn_text(group.name, 30)}, test {setting.unit}" for group in (b, a))
    axes.set(xlim=(low, high), ylim=(low, high), aspect="equal", xlabel=x, ylabel=y)
    caption = (
        "One point a client and seed; full colour: the two models differ on the client's own test samples, p < 0.05."
    )
    data = pairs.assign(row_a=cell_text(a.label), row_b=cell_text(b.label), id=pairs["id"].map(cell_text))
    return Drawn(f"{setting.title}_{a.name}_and_{b.name}", "gains", caption, figure, data=data)


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
    return len(group.runs) > 1 and (few or rows.looks[group.label].width == MAIN_WIDTH)


def _seeds_and_bands(rows: DrawnRows) -> str:
    """The part of a caption that tells the number of seeds, and explains the bands."""
    drawn = [group for group in rows.setting.groups if _banded(rows, group)]
    of_one = f" (only {drawn[0].name} has one)" if len(drawn) == 1 < len(rows.setting.groups) else ""
    bands = f"; a band reaches from the least to the largest value over seeds{of_one}" if drawn else ""
    return seeds(rows.setting.groups) + bands
