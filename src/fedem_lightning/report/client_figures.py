"""Figures of clients' test scores: by percentile, their spread, two methods client by client, gains by size."""

from collections.abc import Iterator

import numpy as np
import pandas as pd
from matplotlib.colors import to_rgba
from scipy import stats

from fedem_lightning.report.cells import cell_text
from fedem_lightning.report.curves import draw_row, seeds_and_bands
from fedem_lightning.report.drawing import CHROME, Drawn, DrawnRows, logarithmic, seeds
from fedem_lightning.report.finished_run import Run
from fedem_lightning.report.gains_by_client import compare_clients
from fedem_lightning.report.groups import BASELINES, Group
from fedem_lightning.report.significance import CHANCE_LEVEL
from fedem_lightning.report.warning_lines import said_alike
from fedem_lightning.run.figure_style import drawn_text

_PERCENTILES = np.arange(1, 101)
_VIOLINS = 14
"""Largest number of rows whose spread over clients is drawn."""
_ENOUGH_CLIENTS = 8
"""Number of clients from which their spread, and parts of them by size, say something."""
_PARTS = 5
"""Parts of equal number into which clients are divided by their size."""


def percentile_figure(rows: DrawnRows) -> Drawn | None:
    """Draws test scores of the clients that train, from the lowest to the highest, with a band over seeds."""
    setting = rows.setting
    data: list[pd.DataFrame] = []
    means: dict[str, np.ndarray] = {}
    figure, axes = rows.axes(f"{setting.title}: test scores over clients")
    for group in setting.groups:
        quantiles = [
            np.quantile(scores, _PERCENTILES / 100, method="inverted_cdf") for scores in _clients_scores(group).values()
        ]
        if quantiles:
            values = np.stack(quantiles)
            scores = {"mean": values.mean(axis=0), "low": values.min(axis=0), "high": values.max(axis=0)}
            draw_row(axes, rows, group, _PERCENTILES, *scores.values())
            means[group.label] = scores["mean"]
            data.append(pd.DataFrame({"method": cell_text(group.name), "percentile": _PERCENTILES, **scores}))
    if not axes.lines:
        return None
    axes.set(xlabel="percentile of clients, lowest score first", ylabel=f"a client's test {setting.unit}")
    rows.legend(figure, axes)
    alike = said_alike(setting.groups, means)
    caption = f"The score that this share of the clients does not exceed; {seeds_and_bands(rows)}.{alike}"
    return Drawn(f"{setting.title}_fairness", "clients", caption, figure, rows.tips(), data=pd.concat(data))


def _clients_scores(group: Group) -> dict[int, np.ndarray]:
    """The test scores of the clients that train, in the table's unit, by seed; seeds without any are left out."""
    found = {run.seed: run.scored for run in group.runs}
    scores = {seed: table["score"].dropna().to_numpy(dtype=float) for seed, table in found.items() if table is not None}
    return {seed: values for seed, values in scores.items() if len(values)}


def spread_figure(rows: DrawnRows) -> Drawn | None:
    """Draws how the clients' test scores spread with each method, as violins; the best mean on top."""
    setting = rows.setting
    found = {g.label: np.concatenate([*_clients_scores(g).values(), []]) for g in setting.groups}
    known = [group for group in setting.groups if len(found[group.label]) >= _ENOUGH_CLIENTS]
    if not 1 < len(known) <= _VIOLINS:
        return None
    known.sort(key=lambda group: setting.groups[0].runs[0].sign * found[group.label].mean())
    figure, axes = rows.axes(f"{setting.title}: spread of the clients' test scores", height=1.0 + 0.4 * len(known))
    data: list[pd.DataFrame] = []
    for place, group in enumerate(known):
        scores, colour = found[group.label], rows.looks[group.label].colour
        if np.ptp(scores) > 0:
            grid = np.linspace(scores.min(), scores.max(), 200)
            density = stats.gaussian_kde(scores)(grid)
            half = 0.42 * density / density.max()
            axes.fill_between(grid, place - half, place + half, color=colour, alpha=0.35, linewidth=0)
        axes.plot(np.quantile(scores, [0.25, 0.75]), [place, place], color=colour, linewidth=3)
        axes.plot([np.median(scores)], [place], "o", color=colour, markersize=5, markeredgecolor="white")
        data.insert(0, pd.DataFrame({"method": cell_text(group.name), "score": scores}))
    axes.set_yticks(range(len(known)), [drawn_text(group.name, 44) for group in known])
    axes.set(xlabel=f"a client's test {setting.unit}", ylim=(-0.6, len(known) - 0.4))
    axes.grid(visible=False, axis="y")
    caption = f"All clients of all seeds; a point is the median, a bar the middle half; {seeds(setting.groups)}."
    return Drawn(f"{setting.title}_spread", "clients", caption, figure, data=pd.concat(data))


def size_figure(rows: DrawnRows) -> Drawn | None:
    """Draws the clients' gain over Local (else FedAvg) by their number of training samples; None if all have as many.

    A line has the mean gain of each fifth of the clients, from the smallest to the largest.
    """
    setting = rows.setting
    base = next((g for name in BASELINES for g in setting.groups if g.algorithm == name), None)
    if base is None:
        return None
    figure, axes = rows.axes(f"{setting.title}: gain over {base.name} by a client's size")
    data: list[pd.DataFrame] = []
    lines: dict[str, np.ndarray] = {}
    for group, clients in _gains_by_size(rows, base):
        parts = pd.qcut(clients["n_train"].rank(method="first"), _PARTS, labels=False)
        means = clients.groupby(parts)[["n_train", "gain"]].mean()
        look = rows.looks[group.label]
        axes.plot(means["n_train"], means["gain"], label=rows.label(group), **look.lined(rows.gid(group)))
        if group is rows.main_pair()[0]:
            axes.scatter(clients["n_train"], clients["gain"], s=9, color=look.colour, alpha=0.3, linewidths=0)
        lines[group.label] = means["gain"].to_numpy()
        data.append(clients.assign(method=cell_text(group.name), id=clients["id"].map(cell_text)))
    if not data:
        return None
    axes.axhline(0, color=CHROME, linewidth=0.7, linestyle=":")
    logarithmic(axes)
    axes.set(
        xlabel="training samples of a client", ylabel=f"gain over {drawn_text(base.name, 30)}, test {setting.unit}"
    )
    rows.legend(figure, axes)
    points = f"; a point is one client with {rows.main_pair()[0].name}" if axes.collections else ""
    alike = said_alike(setting.groups, lines)
    caption = (
        f"Mean gain of each fifth of the clients by size, over all seeds{points}; above 0 the method is better.{alike}"
    )
    return Drawn(f"{setting.title}_gain_by_size", "gains", caption, figure, rows.tips(), data=pd.concat(data))


def _gains_by_size(rows: DrawnRows, base: Group) -> Iterator[tuple[Group, pd.DataFrame]]:
    """For each row but `base` its clients: seed, id, n_train and gain; rows without different sizes are left out."""
    for group in rows.setting.groups:
        pairs = None if group is base else compare_clients(group, base)
        sizes = [table for run in group.runs if (table := _sizes(run)) is not None]
        if pairs is None or not sizes:
            continue
        clients = pairs.merge(pd.concat(sizes), on=["seed", "id"])[["seed", "id", "n_train", "gain"]].dropna()
        if clients["n_train"].nunique() > 1 and len(clients) >= _ENOUGH_CLIENTS:
            yield group, clients


def _sizes(run: Run) -> pd.DataFrame | None:
    """Every client's number of training samples: seed, id, n_train."""
    table = run.clients
    if table is None or not {"id", "n_train"} <= set(table):
        return None
    sizes = {"id": table["id"].astype(str), "n_train": pd.to_numeric(table["n_train"], errors="coerce")}
    found = pd.DataFrame(sizes).assign(seed=run.seed)
    return found.loc[found["n_train"] > 0]


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
    return Drawn(f"{setting.title}_{a.name}_and_{b.name}", "", caption, figure, data=data)
