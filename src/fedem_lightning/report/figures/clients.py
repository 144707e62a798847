"""Figures over clients: scores by percentile, and two methods client by client."""

import numpy as np
import pandas as pd

from fedem_lightning.report.figures.base import Drawn, Rows, axes_of, banded, bands, legend, seeds, unit
from fedem_lightning.report.finished_run import Run
from fedem_lightning.report.groups import Group
from fedem_lightning.report.looks import CHROME
from fedem_lightning.run.plain_text import plain

PERCENTILES = np.arange(1, 101)


def percentiles(rows: Rows) -> Drawn | None:
    """Draws test scores of the clients that train, from the lowest to the highest, with a band over seeds."""
    setting = rows.setting
    measure, factor = setting.measure
    figure, axes = axes_of(f"{setting.title}: test scores over clients")
    for group in setting.groups:
        quantiles = [q for run in group.runs if (q := _quantiles(run, f"test_{measure}")) is not None]
        if not quantiles:
            continue
        values, look, gid = factor * np.stack(quantiles), rows.looks[group.label], rows.gid(group)
        axes.plot(PERCENTILES, values.mean(axis=0), label=rows.label(group), **look.lined(gid))
        if banded(rows, group):
            low, high = values.min(axis=0), values.max(axis=0)
            axes.fill_between(PERCENTILES, low, high, color=look.colour, alpha=0.13, lw=0, gid=f"{gid}-band")
    if not axes.lines:
        return None
    axes.set(xlabel="percentile of clients, lowest score first", ylabel=f"a client's test {unit(setting)}")
    legend(figure, axes)
    caption = f"The score that this share of the clients does not exceed; {seeds(setting.groups)}{bands(rows)}."
    return Drawn(f"{setting.title}_fairness", "clients", caption, figure, rows.tips())


def _quantiles(run: Run, column: str) -> np.ndarray | None:
    clients = run.clients
    if clients is None or column not in clients:
        return None
    scores = clients.loc[clients["population"] == "seen", column].dropna().to_numpy(dtype=float)
    return np.quantile(scores, PERCENTILES / 100, method="inverted_cdf") if len(scores) else None


def scatter(rows: Rows, a: Group, b: Group, pairs: pd.DataFrame) -> Drawn:
    """Draws every client as a point: its score with `b` to the right, with `a` upwards.

    Args:
        rows: the setting.
        a, b: the two rows.
        pairs: from `compare_clients(a, b)`.

    """
    setting = rows.setting
    names = rows.names[a.label], rows.names[b.label]
    figure, axes = axes_of(f"{setting.title}: {names[0]} and {names[1]}, client by client", height=4.4, width=4.6)
    sure = (pairs.p < 0.05).to_numpy()
    colour = rows.looks[a.label].colour
    for chosen, alpha, gid in ((~sure, 0.25, "even"), (sure, 0.9, "sure")):
        shown = pairs[chosen]
        axes.scatter(shown.b, shown.a, s=12, color=colour, alpha=alpha, linewidths=0, gid=gid)
    low, high = axes.get_xlim()[0], axes.get_xlim()[1]
    low, high = min(low, axes.get_ylim()[0]), max(high, axes.get_ylim()[1])
    axes.plot([low, high], [low, high], color=CHROME, linewidth=0.7, linestyle=":")
    axes.set(xlim=(low, high), ylim=(low, high), aspect="equal")
    axes.set(
        xlabel=f"{plain(names[1], 30)}, test {unit(setting)}", ylabel=f"{plain(names[0], 30)}, test {unit(setting)}"
    )
    caption = (
        "One point a client and seed; full colour: the two models differ on the client's own test samples, p < 0.05."
    )
    tips = {
        gid: [f"{i}, seed {s}" for i, s in zip(pairs.id[c], pairs.seed[c], strict=True)]
        for c, gid in ((~sure, "even"), (sure, "sure"))
    }
    return Drawn(f"{setting.title}_{names[0]}_and_{names[1]}", "gains", caption, figure, points=tips)
