"""Methods by data sets: mean test scores, average ranks, and which methods differ beyond chance."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from fedem_lightning.report.cells import Table, cell_text
from fedem_lightning.report.drawing import CHROME, Drawn, axes_of
from fedem_lightning.report.significance import CHANCE_LEVEL
from fedem_lightning.run.figure_style import drawn_text

_DRAWS = 20_000
"""Draws of ranks from which the critical difference is found."""
_KEY = "weighted"
_ROUNDING = 1e-9
"""Error of an average rank, which is a sum of halves over a number of data sets."""


@dataclass(frozen=True)
class Ranks:
    """Average ranks over data sets; 1 is the best.

    Args:
        scores: mean test scores by method (its title, best average rank first) and data set.
        average: average rank of each method, in the same order.
        difference: the critical difference, see `critical_difference`.
        notes: lines below the table.

    """

    scores: pd.DataFrame
    average: pd.Series
    difference: float
    notes: list[str]

    @property
    def sentence(self) -> str:
        """The method with the best average rank, and which methods are not told from it."""
        best, *others = self.average.index
        near = [name for name in others if self.average[name] - self.average[best] <= self.difference + _ROUNDING]
        first = f"{best} has the best average rank, {self.average[best]:.2f} over {self.scores.shape[1]} data sets"
        if not near:
            return f"{first}, beyond chance."
        return f"{first}, not beyond chance against {', '.join(near)}."


def critical_difference(n_methods: int, n_data_sets: int) -> float:
    """The difference of average ranks that the largest of all differences exceeds in at most 5 % if methods are equal.

    The assumption: every order of the methods is equally likely on each data set, and data sets are independent. It is
    Nemenyi's test (Demsar 2006, Sec. 3.2.2) with a quantile of 20,000 drawn orders in place of the limit for many data
    sets, which is wrong in up to 13 % for two methods and few data sets.
    """
    orders = np.random.default_rng(0).random((_DRAWS, n_data_sets, n_methods)).argsort(axis=-1)
    spans = np.ptp(orders.sum(axis=1), axis=1)  # of sums of ranks, which are whole numbers [draws]
    return float(np.quantile(spans, 1 - CHANCE_LEVEL, method="higher")) / n_data_sets


def ranked(tables: Sequence[Table]) -> Ranks | None:
    """The ranks of the methods that all tables of scores have; None for one data set or fewer than two such methods.

    Of several rows of a method the one with the best mean validation score counts. Several tables of one data set
    count as one data set: their scores and ranks are averaged.
    """
    by_table = [(table, _scores(table)) for table in tables if table.name == "scores"]
    names = [name for name in by_table[0][1] if all(name in found for _, found in by_table)] if by_table else []
    parts = defaultdict(list)  # by data set
    for table, found in by_table:
        values = pd.Series({name: found[name] for name in names}, dtype=float)
        sign = table.setting.groups[0].runs[0].sign
        parts[table.setting.dataset].append((values, (-sign * values).rank()))
    if len(parts) < 2 or len(names) < 2:
        return None
    scores, ranks = (
        pd.DataFrame({key: pd.concat([pair[i] for pair in pairs], axis=1).mean(axis=1) for key, pairs in parts.items()})
        for i in range(2)
    )
    average = ranks.mean(axis=1).sort_values(kind="stable")
    difference = critical_difference(len(names), len(parts))
    notes = _notes(difference, len(names), len(parts))
    notes += [f"{dataset}: mean over its {len(pairs)} tables" for dataset, pairs in parts.items() if len(pairs) > 1]
    others = sorted({name for _, found in by_table for name in found} - set(names))
    notes += [f"not in every table, so not ranked: {', '.join(others)}"] if others else []
    return Ranks(scores.loc[average.index], average, difference, notes)


def _scores(table: Table) -> dict[str, float]:
    """The test score of each method's row, by the method's title; methods without a finite score are left out."""
    best: dict[str, tuple[float, float]] = {}
    sign = table.setting.groups[0].runs[0].sign
    methods = [group.shown or group.title for group, _ in table.rows]
    for name, (_, cells) in zip(methods, table.rows, strict=True):
        if _KEY not in cells or not np.isfinite(cells[_KEY].value):
            continue
        val = sign * cells["val"].value if "val" in cells and np.isfinite(cells["val"].value) else None
        if methods.count(name) > 1 and val is None:
            continue  # nothing but its test score would choose among the method's rows
        best[name] = max(best.get(name, (-np.inf, 0.0)), (val or 0.0, cells[_KEY].value))
    return {name: score for name, (_, score) in best.items()}


def _notes(difference: float, n_methods: int, n_data_sets: int) -> list[str]:
    if difference >= n_methods - 1:
        return [f"{n_data_sets} data sets are too few to tell {n_methods} methods apart by their ranks"]
    equal = f"of {n_methods} equal methods on {n_data_sets} data sets"
    return [f"critical difference {difference:.2f}: the average ranks {equal} lie farther apart in at most 5 %"]


def ranks_csv(ranks: Ranks) -> pd.DataFrame:
    """The content of ranks.csv: method, average_rank, and a column for each data set."""
    table = ranks.scores.rename(columns=cell_text)
    table.insert(0, "average_rank", ranks.average)
    return table.rename(index=cell_text).rename_axis("method").reset_index()


def rank_figure(ranks: Ranks) -> Drawn:
    """The critical-difference diagram: methods on a line of average ranks; bars join those that are not told apart."""
    names, places = list(ranks.average.index), ranks.average.to_numpy()
    k, half = len(names), (len(names) + 1) // 2
    bars = _not_told_apart(places, ranks.difference)
    top = 0.28 + 0.16 * len(bars)
    figure, axes = axes_of("average rank over data sets, 1 is best", height=1.5 + 0.26 * half + 0.12 * len(bars))
    axes.set_axis_off()
    axes.plot([1, k], [0, 0], color=CHROME, linewidth=1)
    for tick in range(1, k + 1):
        axes.plot([tick, tick], [0, 0.08], color=CHROME, linewidth=1)
        axes.text(tick, 0.14, str(tick), ha="center", va="bottom", fontsize=8.5)
    margin = 0.06 * (k - 1)
    for i, (name, place) in enumerate(zip(names, places, strict=True)):
        left = i < half
        depth = -top - 0.3 * (i if left else k - 1 - i)
        end = 1 - margin if left else k + margin
        axes.plot([place, place, end], [0, depth, depth], color=CHROME, linewidth=0.8)
        side = "right" if left else "left"
        axes.text(
            end + (-margin / 3 if left else margin / 3),
            depth,
            f"{drawn_text(name, 26)}  {place:.2f}",
            ha=side,
            va="center",
            fontsize=8.5,
        )
    for i, (first, last) in enumerate(bars):
        reach = 0.012 * (k - 1)
        axes.plot([places[first] - reach, places[last] + reach], [-0.16 * (i + 1)] * 2, color=CHROME, linewidth=3)
    axes.plot([1, 1 + min(ranks.difference, k - 1)], [0.75, 0.75], color=CHROME, linewidth=1.5, marker="|")
    axes.text(1, 0.85, f"critical difference {ranks.difference:.2f}", ha="left", va="bottom", fontsize=8.5)
    axes.set_ylim(-top - 0.3 * half, 1.2)
    axes.set_xlim(1 - 0.55 * (k - 1), k + 0.55 * (k - 1))
    caption = f"{ranks.sentence} A bar joins methods whose average ranks differ by less than the critical difference."
    return Drawn("ranks", "ranks", caption, figure, data=ranks_csv(ranks))


def _not_told_apart(places: np.ndarray, difference: float) -> list[tuple[int, int]]:
    """The largest runs of sorted average ranks that lie within the difference, as first and last positions."""
    found: list[tuple[int, int]] = []
    for first in range(len(places)):
        last = int(np.searchsorted(places, places[first] + difference + _ROUNDING, side="right")) - 1
        if last > first and not any(last <= end for _, end in found):
            found.append((first, last))
    return found
