"""Figures of final test scores: a line a method with its seeds, and by a varied setting."""

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from fedem_lightning.records.configs import short
from fedem_lightning.report.cells import cell_text
from fedem_lightning.report.drawing import Drawn, DrawnRows, logarithmic, seeds, whole_numbers
from fedem_lightning.report.groups import Group, Setting, comparable, differing_keys
from fedem_lightning.report.scores_table import final_scores
from fedem_lightning.report.significance import t_interval
from fedem_lightning.run.figure_style import drawn_text

_DOTTED = 40
"""Largest number of rows for which each seed is drawn as a point."""
_LOG_FROM = 20
"""Ratio of largest to least value of a varied key from which its axis is logarithmic."""
_UNSEEN_KEYS = ("algorithm.personalize_fraction", "algorithm.personalize_steps")
"""Keys for which the scores of unseen clients are drawn, if there are any (FedEM, Fig. 2); else of those that train."""


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


def sweep(rows: DrawnRows, key: str) -> Drawn | None:
    """Draws the test score against a varied key, with a line for runs that agree otherwise; None if no line varies it.

    Args:
        rows: the setting to compare; a line has the look of its first row.
        key: key of the configuration.

    """
    setting = rows.setting
    joined = any("unseen" in final_scores(run) for group in setting.groups for run in group.runs)
    where, score = ("unseen", "unseen") if key in _UNSEEN_KEYS and joined else ("seen", "weighted")
    points: dict[tuple[str, str], list[tuple[float, float, float]]] = defaultdict(list)
    first: dict[tuple[str, str], Group] = {}
    for group in setting.groups:
        values = [v for run in group.runs if (v := final_scores(run).get(score)) is not None]
        if values and (x := _x(group, key)) is not None:
            line = group.algorithm, comparable(_others(group, key))
            points[line].append((x, float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else 0.0))
            first.setdefault(line, group)
    drawn = [line for line, found_points in points.items() if len(found_points) > 1]
    if not drawn:
        return None
    data: list[pd.DataFrame] = []
    figure, axes = rows.axes(f"{setting.title}: test score by {_in_words(key, setting)}")
    for line in drawn:
        x, y, spread = np.array(sorted(points[line])).T
        keys = differing_keys([_others(first[each], key) for each in drawn if each[0] == line[0]])
        label, look = first[line].named(keys), rows.looks[first[line].label]
        scores = {short(key, first[line].config): x, "mean": y, "std": spread}
        data.append(pd.DataFrame({"method": cell_text(label), **scores}))
        axes.errorbar(
            x, y, spread, capsize=3, marker=look.marker, markersize=4, label=drawn_text(label), **look.lined()
        )
        if 0 < x[0] <= x[-1] / _LOG_FROM:
            logarithmic(axes)
        elif (x == x.round()).all():
            whole_numbers(axes)
    axes.set(xlabel=drawn_text(_in_words(key, setting)), ylabel=f"test {setting.unit}, {where} clients, weighted")
    rows.legend(figure, axes)
    name = f"{setting.title}_by_{short(key, setting.groups[0].config)}"
    caption = f"Mean over seeds, with standard deviations; {seeds(setting.groups)}."
    return Drawn(name, "sweeps", caption, figure, data=pd.concat(data))


def _in_words(key: str, setting: Setting) -> str:
    """A key for readers: algorithm.n_components is "number of components", lr "learning rate"."""
    *parts, name = short(key, setting.groups[0].config).split(".")
    name = "learning_rate" if name == "lr" else re.sub(r"^n_", "number_of_", name)
    return ": ".join(part.replace("_", " ") for part in [*parts, name])


def _others(group: Group, key: str) -> dict[str, Any]:
    """The configuration without the key that a line varies."""
    return {k: v for k, v in group.config.items() if k != key}


def _x(group: Group, key: str) -> float | None:
    """A group's coordinate on a key's axis; None if its value is no number."""
    value = group.config.get(key)
    if key == "algorithm.n_streams" and key in group.config and value is None:
        return float(group.runs[0].results["n_clients"])  # one for each client that trains
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return None
    return group.runs[0].participation if key == "algorithm.participation" else float(value)
