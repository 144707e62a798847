"""The result of a table in words: the best method, what it gains over the baselines, and how sure its lead is."""

import math

from fedem_lightning.report.groups import BASELINES, Group, shorten
from fedem_lightning.report.scores_table import Table
from fedem_lightning.report.significance import ENOUGH_SEEDS, t_interval

_KEY = "weighted"
"""The column of the table that decides."""


def in_a_sentence(table: Table) -> str:
    """The best method of a data set by its mean test score, its gains over the baselines, and its lead over the next.

    A lead is beyond chance if the table's test tells the method from every other one (`significance.leaders`);
    otherwise the sentence has the 95 % interval of the differences over the seeds that both have (`t_interval`), which
    does not correct for picking the two best of many methods.
    """
    sign, scores = table.setting.sign, {group.label: table.value(group, _KEY) for group in table.setting.groups}
    known = [group for group in table.setting.groups if math.isfinite(scores[group.label])]
    known.sort(key=lambda group: -sign * scores[group.label])
    if not known:
        return "No method has a finite test score."
    best, *others = known
    measure, _, unit = table.setting.unit.partition(", ")
    reached = f"a test {measure} of {table.text(best, _KEY)} {unit}".rstrip()
    if not others:
        return f"{shorten(best.name)} has {reached}."
    gains = [next((g for g in others if g.algorithm == name), None) for name in BASELINES if best.algorithm != name]
    said = [f"{_signed(table, scores[best.label] - scores[g.label])} against {shorten(g.name)}" for g in gains if g]
    in_brackets = f" ({', '.join(said)})" if said else ""
    return f"{shorten(best.name)} is best with {reached}{in_brackets}. {_lead(table, best, others[0])}"


def _lead(table: Table, a: Group, b: Group) -> str:
    """How far a row is ahead of another one, and whether more seeds may overturn that."""
    scores = table.seeds[_KEY].unstack("row")
    ahead = table.columns[_KEY].show(abs(table.value(a, _KEY) - table.value(b, _KEY)))
    lead = f"{shorten(a.name)} is {ahead} ahead of {shorten(b.name)}"
    if table.is_bold(a, _KEY):
        return f"{lead}, beyond chance."
    differences = (scores[a.label] - scores[b.label]).dropna().to_numpy()
    if len(differences) < 2:
        return f"{lead}, but they share only one seed, and another seed may reverse it."
    if not differences.any():
        return f"{shorten(a.name)} and {shorten(b.name)} have the same score with every common seed."
    low, high = t_interval(differences)
    interval = f"{_signed(table, low)} to {_signed(table, high)} over {len(differences)} seeds"
    unsure = "more seeds may reverse it"
    if low * high > 0:
        few = f"a test of all methods needs {ENOUGH_SEEDS} common seeds"
        unsure = few if len(differences) < ENOUGH_SEEDS else "not beyond chance once all methods and scores are tested"
    return f"{lead} (95 % interval {interval}): {unsure}."


def _signed(table: Table, value: float) -> str:
    return f"{value:+{table.columns[_KEY].form}}"
