"""Figures of final test scores: by seed, over clients by percentile, and two methods client by client."""

from collections.abc import Sequence
from functools import partial

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba

from fedem_lightning.report.drawing import FIRST, HEIGHT, Drawn, Looks, draw_over_seeds, with_panels
from fedem_lightning.report.gains_by_client import compare_clients
from fedem_lightning.report.groups import Group, Setting
from fedem_lightning.report.scores_table import Table
from fedem_lightning.report.significance import CHANCE_LEVEL, t_interval
from fedem_lightning.run.figure_style import drawn_text

_PERCENTILES = np.arange(1, 101)


def seeds_figure(name: str, tables: Sequence[Table], looks: Looks) -> Drawn | None:
    """Draws each seed's test score as a point, a line a method, with the mean and its 95 % interval; best on top."""
    drawn = [table for table in tables if "weighted" in table.columns]
    height = 0.9 + 0.24 * max((len(table.setting.groups) for table in drawn), default=0)
    caption = (
        "A point is one seed, the bar is the mean; the line is Student's 95 % interval of the mean over seeds, which "
        "are assumed normal."
    )
    panels = [(table.setting.title, partial(_draw_seeds, table=table, looks=looks)) for table in drawn]
    return with_panels(name, "Test score by method", caption, panels, max(HEIGHT, height))


def _draw_seeds(axes: Axes, table: Table, looks: Looks) -> None:
    scores, setting = table.seeds["weighted"].unstack("row"), table.setting
    known = [group for group in setting.groups if np.isfinite(table.value(group, "weighted"))]
    known.sort(key=lambda group: setting.sign * table.value(group, "weighted"))
    for place, group in enumerate(known):
        values, colour = scores[group.label].dropna().to_numpy(), looks[group.label]["color"]
        axes.plot(values, np.full(len(values), place), "o", color=colour, markersize=4, alpha=0.5)
        axes.plot([values.mean()], [place], "|", color=colour, markersize=12, markeredgewidth=2)
        if len(values) > 1:
            axes.plot(t_interval(values), [place, place], color=colour, linewidth=1.2)
    axes.set_yticks(range(len(known)), [drawn_text(group.name, 30) for group in known])
    axes.set(xlabel=f"test {setting.unit}, weighted", ylim=(-0.6, len(known) - 0.4))
    axes.grid(visible=False, axis="y")


def percentile_figure(name: str, settings: Sequence[Setting], looks: Looks) -> Drawn | None:
    """Draws test scores of the clients that train, from the lowest to the highest, with a band over seeds."""
    drawn = [setting for setting in settings if any(map(_quantiles, setting.groups))]
    caption = "The score that this share of the clients does not exceed; a band reaches over the seeds."
    panels = [(setting.title, partial(_draw_percentiles, setting=setting, looks=looks)) for setting in drawn]
    return with_panels(name, "Test scores over clients", caption, panels)


def _draw_percentiles(axes: Axes, setting: Setting, looks: Looks) -> None:
    for group in setting.groups:
        if quantiles := _quantiles(group):
            points = pd.DataFrame(quantiles).agg(["mean", "min", "max"]).T
            draw_over_seeds(axes, _PERCENTILES, points, drawn_text(group.name, 44), looks[group.label])
    axes.set(xlabel="percentile of clients, lowest score first", ylabel=f"a client's test {setting.unit}")


def _quantiles(group: Group) -> list[np.ndarray]:
    """The clients' test scores by percentile, for each seed that has any."""
    scores = [run.scored["score"].dropna().to_numpy() for run in group.runs if run.scored is not None]
    return [np.quantile(values, _PERCENTILES / 100, method="inverted_cdf") for values in scores if len(values)]


def main_pair(setting: Setting) -> tuple[Setting, Group, Group] | None:
    """FedEM's row, else the first that is no baseline, and a baseline; None for one row."""
    order = sorted(setting.groups, key=lambda g: (g.algorithm != FIRST[0], g.algorithm in FIRST))
    rivals = sorted(order[1:], key=lambda g: FIRST.index(g.algorithm) if g.algorithm in FIRST else len(FIRST))
    return (setting, order[0], rivals[0]) if rivals else None


def gains_figure(name: str, pairs: Sequence[tuple[Setting, Group, Group]], looks: Looks) -> Drawn | None:
    """Draws every client as a point: its score with the pair's second row to the right, with the first upwards."""
    drawn = [(pair, clients) for pair in pairs if (clients := compare_clients(*pair[1:])) is not None]
    caption = (
        "One point a client and seed; above the line the first method is better; full colour: the two models differ on "
        "the client's own test samples, p < 0.05."
    )
    panels = [(pair[0].title, partial(_draw_gains, pair=pair, clients=c, looks=looks)) for pair, c in drawn]
    return with_panels(name, "Two methods, client by client", caption, panels, 4.0)


def _draw_gains(axes: Axes, pair: tuple[Setting, Group, Group], clients: pd.DataFrame, looks: Looks) -> None:
    setting, a, b = pair
    colours = [to_rgba(looks[a.label]["color"], 0.9 if p < CHANCE_LEVEL else 0.25) for p in clients["p"]]
    axes.scatter(clients["b"], clients["a"], s=12, color=colours, linewidths=0)
    low, high = np.sort([*axes.get_xlim(), *axes.get_ylim()])[[0, -1]]
    axes.plot([low, high], [low, high], color="black", linewidth=0.7, linestyle=":")
    x, y = (f"{drawn_text(group.name, 30)}, test {setting.unit}" for group in (b, a))
    axes.set(xlim=(low, high), ylim=(low, high), aspect="equal", xlabel=x, ylabel=y)
