"""The result of a table in words: the best method, what it gains over the baselines, and how sure its lead is."""

from collections.abc import Sequence

import numpy as np

from fedem_lightning.report.cells import Cell, Table, shorten
from fedem_lightning.report.groups import BASELINES, Group
from fedem_lightning.report.significance import ENOUGH_SEEDS, t_interval

_KEY = "weighted"
"""The column of the table that decides."""
_Known = tuple[Group, Cell]


def in_a_sentence(table: Table, main: str | None = None) -> str:
    """The best method of a data set by its mean test score, its gains over the baselines, and its lead over the next.

    A lead is beyond chance if the table's test tells the method from every other one (`significance.leaders`);
    otherwise the sentence has the 95 % interval of the differences over the seeds that both have (`t_interval`), which
    does not correct for picking the two best of many methods.

    Args:
        table: a table of scores.
        main: the algorithm to speak of, by its best row; None: the best of all.

    """
    sign = table.setting.groups[0].runs[0].sign
    known = [(group, cells[_KEY]) for group, cells in table.rows if _KEY in cells and np.isfinite(cells[_KEY].value)]
    known.sort(key=lambda pair: -sign * pair[1].value)
    measure, _, unit = table.setting.unit.partition(", ")
    subject = next((pair for pair in known if main in (None, pair[0].algorithm)), None)
    if subject is None:
        return "No method has a finite test score." if main is None else f"{main} has no finite test score."
    place, (group, score) = known.index(subject), subject
    reached = f"a test {measure} of {table.columns[_KEY].show(score)} {unit}"
    if len(known) == 1:
        return f"{shorten(group.name)} has {reached}."
    rivals = [pair for pair in known if pair is not subject]
    gains = _gains(table, subject, rivals)
    if place:
        said = f"{shorten(group.name)} has {reached}{gains}: number {place + 1} of {len(known)}."
        return f"{said} {_lead(table, known[0], subject)}"
    return f"{shorten(group.name)} is best with {reached}{gains}. {_lead(table, subject, rivals[0])}"


def _gains(table: Table, subject: _Known, rivals: Sequence[_Known]) -> str:
    """The differences to the baselines, the better row of each."""
    said = []
    for name in BASELINES:
        baseline = next((pair for pair in rivals if pair[0].algorithm == name), None)
        if baseline is not None and subject[0].algorithm != name:
            said.append(f"{_signed(table, subject[1].value - baseline[1].value)} against {shorten(baseline[0].name)}")
    return f" ({', '.join(said)})" if said else ""


def _lead(table: Table, first: _Known, second: _Known) -> str:
    """How far a row is ahead of another one, and whether more seeds may overturn that."""
    (a, mine), (b, theirs) = first, second
    ahead = table.columns[_KEY].show(Cell(abs(mine.value - theirs.value)))
    lead = f"{shorten(a.name)} is {ahead} ahead of {shorten(b.name)}"
    if table.is_leader(a, _KEY):
        return f"{lead}, beyond chance."
    seeds = [table.seeds.get(_KEY, {}).get(group.label, {}) for group in (a, b)]
    differences = np.array([seeds[0][seed] - seeds[1][seed] for seed in seeds[0] if seed in seeds[1]])
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
