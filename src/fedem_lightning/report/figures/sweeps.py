"""Figures of sweeps: the test score against a number that the runs vary."""

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fedem_lightning.report.figures.drawing import Drawn, axes_of, legend, logarithmic, seeds, whole_numbers
from fedem_lightning.report.finished_run import Run
from fedem_lightning.report.groups import Group, Setting, short
from fedem_lightning.report.looks import Look, title_with
from fedem_lightning.report.scores_table import final_scores
from fedem_lightning.run.figures import drawn_text

_LOG_FROM = 20
"""Ratio of largest to least value of a varied key from which its axis is logarithmic."""
_UNSEEN_KEYS = ("algorithm.personalize_fraction",)
"""Keys for which the unseen clients' scores are drawn (FedEM, Fig. 2); for others those of the clients that train."""


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


def sweep(setting: Setting, key: str, found: dict[str, Look]) -> Drawn | None:
    """Draws the test score against a varied key, with a line for runs that agree otherwise; None if no line varies it.

    Args:
        setting: the setting to compare.
        key: key of the configuration.
        found: the rows' looks by label; a line has that of its first row.

    """
    where = "unseen" if key in _UNSEEN_KEYS else "seen"
    score = "unseen" if key in _UNSEEN_KEYS else "weighted"
    lines: dict[tuple[str, str], list[Group]] = defaultdict(list)
    for group in setting.groups:
        if _x(group, key) is not None:
            others = {k: v for k, v in group.config.items() if k != key}
            lines[group.algorithm, json.dumps(others, sort_keys=True, default=str)].append(group)
    figure, axes = axes_of(f"{setting.title}: test score by {key}")
    for (algorithm, rest), groups in lines.items():
        points = _sweep_points(groups, key, lambda run: final_scores(run).get(score))
        if len(points) > 1:
            alike = [r for a, r in lines if a == algorithm and len(_values(lines[a, r], key)) > 1]
            x, y, spread = np.array(sorted(points)).T
            label, look = _line_label(groups[0].title, rest, alike), found[groups[0].label]
            axes.errorbar(
                x, y, spread, capsize=3, marker=look.marker, markersize=4, label=drawn_text(label), **look.lined()
            )
            if 0 < x[0] <= x[-1] / _LOG_FROM:
                logarithmic(axes)
            elif (x == x.round()).all():
                whole_numbers(axes)
    if not axes.containers:
        return None
    axes.set(xlabel=drawn_text(key), ylabel=f"test {setting.unit}, {where} clients, weighted")
    legend(figure, axes)
    name = f"{setting.title}_by_{short(key, setting.groups[0].config)}"
    return Drawn(name, "sweeps", f"Mean over seeds, with standard deviations; {seeds(setting.groups)}.", figure)


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


def _line_label(title: str, rest: str, alike: list[str]) -> str:
    """The algorithm's name, with the values in which its lines differ."""
    configs: list[dict[str, Any]] = [json.loads(text) for text in alike]
    mine = json.loads(rest)
    keys = [key for key in mine if any(config.get(key) != mine[key] for config in configs)]
    return title_with(title, keys, mine)
