"""Figures over several runs: learning curves, fairness, mixture weights, sweeps."""

import json
import textwrap
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import count
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedem_lightning.report.collect import Run
from fedem_lightning.report.components import mixture_weights
from fedem_lightning.report.equal_cost import curve, networks_of
from fedem_lightning.report.groups import Group, Setting, file_name, short, show
from fedem_lightning.report.tables import scores_of

PERCENTILES = np.arange(1, 101)
LEGEND_WIDTH = 32
"""Letters of a line in the legend; with longer lines the panels would be too narrow."""
LOG_FROM = 20
"""Ratio of largest to least value of a varied key from which its axis is logarithmic."""
UNSEEN_KEYS = ("algorithm.personalize_fraction",)
"""Keys for which the unseen clients' scores are drawn (FedEM, Fig. 2); for others those of the clients that train."""


def report_figures(settings: Sequence[Setting]) -> dict[str, Figure]:
    """All figures for which the runs have data, by the name of the file without ".png"."""
    figures: dict[str, Figure] = {}

    def keep(name: str, figure: Figure | None) -> None:
        if figure is not None:
            name = file_name(name)
            while name in figures:  # titles may differ only in characters that file names lack
                name += "-"
            figures[name] = figure

    for setting in settings:
        keep(f"{setting.title}_by_round", curves(setting, "round", "communication round"))
        keep(f"{setting.title}_by_megabytes", curves(setting, "megabytes", "megabytes a client, up and down"))
        keep(f"{setting.title}_by_air_megabytes", curves(setting, "air_megabytes", "megabytes on the air, by all"))
        for name in networks_of(setting):
            keep(f"{setting.title}_by_time_{name}", curves(setting, f"time_{name}", f"simulated time, {name}"))
        keep(f"{setting.title}_fairness", fairness(setting))
        for group in setting.groups:
            keep(f"{setting.title}_{group.label}_weights", weights_map(setting, group))
        for key in varied_numbers(setting):
            keep(f"{setting.title}_by_{short(key, setting.groups[0].config)}", sweep(setting, key))
    for family in families(settings):
        for key in varied_numbers(family):
            if key.startswith("dataset."):  # other keys are varied within a setting
                keep(f"{family.title}_by_{short(key, family.groups[0].config)}", sweep(family, key))
    return figures


def _axes(setting: Setting, title: str, n: int = 1) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(4 + 5 * n, 4.5), layout="constrained")
    figure.suptitle(f"{setting.title}: {title}")
    axes = figure.subplots(1, n, squeeze=False, sharey=True)[0]
    for one in axes:
        one.grid(alpha=0.3)
    return figure, list(axes)


def _unit(setting: Setting) -> str:
    return {"accuracy": "accuracy, %", "mse": "squared error", "loss": "loss, nats"}[setting.measure[0]]


def _looks() -> Iterable[tuple[str, str]]:
    """Colours and line styles of successive rows: ten solid colours, then dashed, then dotted."""
    return ((f"C{i % 10}", ("-", "--", ":")[i // 10 % 3]) for i in count())


def curves(setting: Setting, x: str, xlabel: str) -> Figure | None:
    """Draws scores during training: the mean over seeds as a line, the range as a band.

    Args:
        setting: the setting to compare.
        x: a column of `curve`.
        xlabel: label of the x-axis.

    """
    measure, factor = setting.measure
    drawn = {group.label: [c for run in group.runs if (c := curve(run, x)) is not None] for group in setting.groups}
    columns = [f"{split}/{measure}" for split in ("val", "test")]
    columns = [name for name in columns if any(name in c for found in drawn.values() for c in found)]
    if not columns:
        return None
    figure, panels = _axes(setting, "mean over seeds, band from least to largest", len(columns))
    for axes, column in zip(panels, columns, strict=True):
        for (label, found), (colour, line) in zip(drawn.items(), _looks(), strict=False):
            points = _over_seeds([c for c in found if column in c], x, column)
            if points is None:
                continue
            if x.endswith("megabytes") and not points["x"].any():  # Local sends nothing: draw its last score as a level
                axes.axhline(factor * points["mean"].iloc[-1], color=colour, linestyle="-.", label=f"{label}, 0 MB")
                continue
            axes.plot(points["x"], factor * points["mean"], line, color=colour, label=label)
            axes.fill_between(
                points["x"], factor * points["min"], factor * points["max"], color=colour, alpha=0.15, lw=0
            )
        axes.set(xlabel=xlabel, ylabel=f"{column.split('/')[0]} {_unit(setting)}, weighted")
        if x.endswith("megabytes"):
            axes.set_xscale("log")  # a graph of clients sends a hundred times as much as a server
    _legend(figure, panels[0])
    return figure


def _legend(figure: Figure, axes: Axes) -> None:
    """Draws the legend beside the panels, where it hides no curve."""
    handles, labels = axes.get_legend_handles_labels()
    wrapped = [textwrap.fill(label, LEGEND_WIDTH, subsequent_indent="  ", break_long_words=False) for label in labels]
    figure.legend(handles, wrapped, loc="outside right upper")


def _over_seeds(found: list[pd.DataFrame], x: str, column: str) -> pd.DataFrame | None:
    """Points of the curve for each round that all seeds evaluated: x, mean, min, max."""
    rows = [c.loc[c[column].notna(), list(dict.fromkeys(("round", x, column)))] for c in found]
    if not rows or not all(len(r) for r in rows):
        return None
    by_round = pd.concat(rows).groupby(pd.concat(rows)["round"].to_numpy())
    points = by_round[column].agg(["mean", "min", "max"]).assign(x=by_round[x].mean())
    return points[by_round[column].size() == len(rows)]


def fairness(setting: Setting) -> Figure | None:
    """Draws test scores of the clients that train, sorted from worst to best, with a band over seeds."""
    measure, factor = setting.measure
    figure, (axes,) = _axes(setting, "test scores over clients")
    for group, (colour, line) in zip(setting.groups, _looks(), strict=False):
        quantiles = [q for run in group.runs if (q := _quantiles(run, f"test_{measure}")) is not None]
        if quantiles:
            values = factor * np.stack(quantiles)
            axes.plot(PERCENTILES, values.mean(axis=0), line, color=colour, label=group.label)
            axes.fill_between(PERCENTILES, values.min(axis=0), values.max(axis=0), color=colour, alpha=0.15, lw=0)
    if not axes.lines:
        return None
    axes.set(xlabel="percentile of clients, lowest score first", ylabel=f"a client's test {_unit(setting)}")
    _legend(figure, axes)
    return figure


def _quantiles(run: Run, column: str) -> np.ndarray | None:
    clients = run.clients
    if clients is None or column not in clients:
        return None
    scores = clients.loc[clients["population"] == "seen", column].dropna().to_numpy(dtype=float)
    return np.quantile(scores, PERCENTILES / 100, method="inverted_cdf") if len(scores) else None


def weights_map(setting: Setting, group: Group) -> Figure | None:
    """Draws the mixture weights of a group's first seed as a heat map."""
    run = group.runs[0]
    weights = mixture_weights(run)
    if weights is None or not len(weights.seen):
        return None
    pi = weights.seen
    order = np.lexsort((-pi.max(axis=1), pi.argmax(axis=1)))  # by largest component, the purest clients first
    figure = Figure(figsize=(8, 1.6 + 0.35 * pi.shape[1]), layout="constrained")
    figure.suptitle(f"{setting.title}: {group.label}, seed {run.seed}")
    axes = figure.subplots()
    image = axes.imshow(pi[order].T, aspect="auto", vmin=0, vmax=1, cmap="viridis", interpolation="nearest")
    axes.set(xlabel="clients, sorted by their largest component", ylabel="component", yticks=range(pi.shape[1]))
    figure.colorbar(image, label="mixture weight")
    return figure


def families(settings: Sequence[Setting]) -> list[Setting]:
    """Settings of the same data set and backbone joined, to draw sweeps over a key, e.g. the samples of a client."""
    groups: dict[tuple[str, str], list[Group]] = defaultdict(list)
    for setting in settings:
        groups[setting.dataset, setting.backbone] += setting.groups
    several = Counter(dataset for dataset, _ in groups)
    return [Setting(d, b, f"{d}, {b}" if several[d] > 1 else d, found) for (d, b), found in groups.items()]


def varied_numbers(setting: Setting) -> list[str]:
    """The keys, other than seeds, with several numbers."""
    values: dict[str, set[float]] = defaultdict(set)
    for group in setting.groups:
        for key in group.config:
            if (x := _x(group, key)) is not None and not key.endswith("seed"):
                values[key].add(x)
    return [key for key, found in values.items() if len(found) > 1]


def sweep(setting: Setting, key: str) -> Figure | None:
    """Draws the test score against a varied key, with a line for runs that agree otherwise; None if no line varies it.

    Args:
        setting: the setting to compare.
        key: key of the configuration.

    """
    where = "unseen" if key in UNSEEN_KEYS else "seen"
    score = "unseen" if key in UNSEEN_KEYS else "weighted"
    lines: dict[tuple[str, str], list[Group]] = defaultdict(list)
    for group in setting.groups:
        if _x(group, key) is not None:
            others = {k: v for k, v in group.config.items() if k != key}
            lines[group.algorithm, json.dumps(others, sort_keys=True, default=str)].append(group)
    figure, (axes,) = _axes(setting, f"by {key}")
    for ((algorithm, rest), groups), (colour, line) in zip(lines.items(), _looks(), strict=False):
        points = _sweep_points(groups, key, lambda run: scores_of(run).get(score))
        if len(points) > 1:
            alike = [r for a, r in lines if a == algorithm and len(_values(lines[a, r], key)) > 1]
            x, y, spread = np.array(sorted(points)).T
            label = _line_label(algorithm, rest, alike)
            axes.errorbar(x, y, spread, marker="o", capsize=3, color=colour, linestyle=line, label=label)
            if 0 < x[0] <= x[-1] / LOG_FROM:
                axes.set_xscale("log")
    if not axes.containers:
        return None
    axes.set(xlabel=key, ylabel=f"test {_unit(setting)}, {where} clients, weighted")
    _legend(figure, axes)
    return figure


def _values(groups: list[Group], key: str) -> set[float | None]:
    return {_x(group, key) for group in groups}


def _x(group: Group, key: str) -> float | None:
    """A group's coordinate on a key's axis; None if its value is no number."""
    value = group.config.get(key)
    if key == "algorithm.n_streams" and key in group.config and value is None:
        return float(group.runs[0].results["n_clients"])  # one for each client that trains
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return None
    return group.runs[0].participation if key == "algorithm.participation" else float(value)


def _sweep_points(
    groups: list[Group], key: str, score: Callable[[Run], float | None]
) -> list[tuple[float, float, float]]:
    """(value of the key, mean over seeds, standard deviation) of every group that has the score."""
    points = []
    for group in groups:
        values = [v for run in group.runs if (v := score(run)) is not None]
        if values and (x := _x(group, key)) is not None:
            spread = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
            points.append((x, float(np.mean(values)), spread))
    return points


def _line_label(algorithm: str, rest: str, alike: list[str]) -> str:
    """The algorithm's name, with the values in which its lines differ."""
    configs: list[dict[str, Any]] = [json.loads(text) for text in alike]
    mine = json.loads(rest)
    keys = [key for key in mine if any(config.get(key) != mine[key] for config in configs)]
    details = ", ".join(f"{short(key, mine)}={show(mine[key])}" for key in keys)
    return f"{algorithm} ({details})" if details else algorithm
