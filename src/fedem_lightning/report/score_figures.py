"""Figures of final test scores: by seed, over clients by percentile, and two methods client by client."""

from collections.abc import Sequence

import numpy as np
from matplotlib.colors import to_rgba

from fedem_lightning.report.drawing import FIRST, HEIGHT, Drawn, Looks, legend, panels, row_label
from fedem_lightning.report.gains_by_client import compare_clients
from fedem_lightning.report.groups import Group, Setting
from fedem_lightning.report.scores_table import Table
from fedem_lightning.report.significance import CHANCE_LEVEL, t_interval
from fedem_lightning.run.figure_style import drawn_text

_PERCENTILES = np.arange(1, 101)


def seeds_figure(name: str, tables: Sequence[Table], looks: Looks) -> Drawn | None:
    """Draws each seed's test score as a point, a line a method, with the mean and its 95 % interval; best on top."""
    drawn = [(t, t.seeds["weighted"].unstack("row")) for t in tables if "weighted" in t.columns]
    if not drawn:
        return None
    height = 0.9 + 0.24 * max(len(table.setting.groups) for table, _ in drawn)
    figure, found = panels([table.setting.title for table, _ in drawn], max(HEIGHT, height))
    for axes, (table, scores) in zip(found, drawn, strict=True):
        setting, mean = table.setting, {group.label: table.value(group, "weighted") for group in table.setting.groups}
        known = [group for group in setting.groups if np.isfinite(mean[group.label])]
        known.sort(key=lambda group: setting.sign * mean[group.label])
        for place, group in enumerate(known):
            values, colour = scores[group.label].dropna().to_numpy(), looks[group.label]["color"]
            axes.plot(values, np.full(len(values), place), "o", color=colour, markersize=4, alpha=0.5)
            axes.plot([values.mean()], [place], "|", color=colour, markersize=12, markeredgewidth=2)
            if len(values) > 1:
                axes.plot(t_interval(values), [place, place], color=colour, linewidth=1.2)
        axes.set_yticks(range(len(known)), [drawn_text(group.name, 30) for group in known])
        axes.set(xlabel=f"test {setting.unit}, weighted", ylim=(-0.6, len(known) - 0.4))
        axes.grid(visible=False, axis="y")
    caption = (
        "A point is one seed, the bar is the mean; the line is Student's 95 % interval of the mean over seeds, which "
        "are assumed normal."
    )
    return Drawn(name, "Test score by method", caption, figure)


def percentile_figure(name: str, settings: Sequence[Setting], looks: Looks) -> Drawn | None:
    """Draws test scores of the clients that train, from the lowest to the highest, with a band over seeds."""
    drawn = [(s, curves) for s in settings if any((curves := {g.label: _quantiles(g) for g in s.groups}).values())]
    if not drawn:
        return None
    figure, found = panels([setting.title for setting, _ in drawn])
    for axes, (setting, curves) in zip(found, drawn, strict=True):
        for group in (group for group in setting.groups if curves[group.label]):
            values, look = np.stack(curves[group.label]), looks[group.label]
            axes.plot(_PERCENTILES, values.mean(axis=0), label=row_label(setting, group), **look)
            if len(values) > 1:
                low, high = values.min(axis=0), values.max(axis=0)
                axes.fill_between(_PERCENTILES, low, high, color=look["color"], alpha=0.1, lw=0)
        axes.set(xlabel="percentile of clients, lowest score first", ylabel=f"a client's test {setting.unit}")
    legend(figure)
    caption = "The score that this share of the clients does not exceed; a band reaches over the seeds."
    return Drawn(name, "Test scores over clients", caption, figure)


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
    if not drawn:
        return None
    figure, found = panels([setting.title for (setting, *_), _ in drawn], 4.0)
    for axes, ((setting, a, b), clients) in zip(found, drawn, strict=True):
        colours = [to_rgba(looks[a.label]["color"], 0.9 if p < CHANCE_LEVEL else 0.25) for p in clients["p"]]
        axes.scatter(clients["b"], clients["a"], s=12, color=colours, linewidths=0)
        low, high = np.sort([*axes.get_xlim(), *axes.get_ylim()])[[0, -1]]
        axes.plot([low, high], [low, high], color="black", linewidth=0.7, linestyle=":")
        x, y = (f"{drawn_text(group.name, 30)}, test {setting.unit}" for group in (b, a))
        axes.set(xlim=(low, high), ylim=(low, high), aspect="equal", xlabel=x, ylabel=y)
    caption = (
        "One point a client and seed; above the line the first method is better; full colour: the two models differ on "
        "the client's own test samples, p < 0.05."
    )
    return Drawn(name, "Two methods, client by client", caption, figure)
