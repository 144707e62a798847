"""All figures of a report, each a file and part of the page; those of sweeps are drawn here: score by varied number."""

import functools
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd

from fedem_lightning.report.cells import cell_text
from fedem_lightning.report.diagnostic_tables import final_weights
from fedem_lightning.report.drawing import (
    STYLE,
    Drawn,
    DrawnRows,
    logarithmic,
    looks,
    seeds,
    whole_numbers,
)
from fedem_lightning.report.groups import Group, Setting, comparable, differing_keys, short
from fedem_lightning.report.mixture_figures import entropy_figure, has_structure, mixture_figures, structure_figures
from fedem_lightning.report.papers import Papers
from fedem_lightning.report.score_figures import all_curves, main_pair_figure, percentile_figure, seeds_figure
from fedem_lightning.report.scores_table import final_scores
from fedem_lightning.run.figures import drawn_text

_ROWS_SHOWN = 4
"""Rows of a table whose own figures are drawn: mixture weights, clusters, collaboration weights."""
_LOG_FROM = 20
"""Ratio of largest to least value of a varied key from which its axis is logarithmic."""
_UNSEEN_KEYS = ("algorithm.personalize_fraction",)
"""Keys for which the unseen clients' scores are drawn (FedEM, Fig. 2); for others those of the clients that train."""
_Maker = Callable[[], Drawn | list[Drawn] | None]
"""Draws figures, if the runs have data for them."""


def report_figures(
    settings: Sequence[Setting], papers: Papers, main: str | None = None
) -> tuple[dict[int, list[Drawn]], list[str]]:
    """All figures for which the runs have data, and a line for each that could not be drawn.

    Args:
        settings: the settings of the report.
        papers: published numbers.
        main: see `looks`.

    Returns:
        Figures by the index of their setting, those over several settings with -1; lines.

    """
    found, notes = looks(settings, main), []
    figures: dict[int, list[Drawn]] = defaultdict(list)
    makers = [(i, make) for i, s in enumerate(settings) for make in _of_setting(DrawnRows(s, found), papers)]
    for family in families(settings):  # keys that are not the data's are varied within a setting
        keys = [key for key in varied_numbers(family) if key.startswith("dataset.")]
        makers += [(-1, functools.partial(sweep, DrawnRows(family, found), key)) for key in keys]
    with mpl.rc_context(STYLE):
        for i, make in makers:
            try:
                made = make()
            except Exception as error:  # whatever a damaged file holds: it costs its figure, and not the report
                where = f"{settings[i].title}: " if i >= 0 else ""
                notes.append(f"{where}a figure could not be drawn ({type(error).__name__}: {error})")
            else:
                figures[i] += made if isinstance(made, list) else [made] if made is not None else []
    return figures, notes


def by_file_name(figures: Iterable[Drawn]) -> dict[str, Drawn]:
    """The figures by the names of their files, without endings; names that differ only in odd characters stay apart."""
    found: dict[str, Drawn] = {}
    for drawn in figures:
        name = re.sub(r"[^A-Za-z0-9_.=]+", "-", drawn.name).strip("-")[:80]
        while name in found:
            name += "-"
        found[name] = drawn
    return found


def _of_setting(rows: DrawnRows, papers: Papers) -> Iterator[_Maker]:
    """The functions that draw a setting's figures, in their order on the page."""
    yield functools.partial(seeds_figure, rows)
    yield functools.partial(all_curves, rows, papers)
    for draw in (percentile_figure, main_pair_figure, entropy_figure):
        yield functools.partial(draw, rows)
    with_own = [g for g in rows.setting.groups if final_weights(g.runs[0]) is not None or has_structure(g.runs[0])]
    for group in with_own[:_ROWS_SHOWN]:
        yield functools.partial(mixture_figures, rows, group)
        yield functools.partial(structure_figures, rows, group)
    for key in varied_numbers(rows.setting):
        yield functools.partial(sweep, rows, key)


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
    where, score = ("unseen", "unseen") if key in _UNSEEN_KEYS else ("seen", "weighted")
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
