"""The sentence above a table: which method is best, by how much, and how sure that is."""

import math

from fedem_lightning.report.doubts import doubt, doubts
from fedem_lightning.report.gains_by_client import ENOUGH_SEEDS, t_interval
from fedem_lightning.report.groups import BASELINES, Group, shorten
from fedem_lightning.report.scores_table import Table


def in_a_sentence(table: Table) -> str:
    """The best method of a data set by its mean test score, its gains over the baselines, and its lead over the next.

    Methods whose scores are equal as the table shows them are best together. A lead is beyond chance if the table's
    test tells the method from every other one (`gains_by_client.leaders`); otherwise the sentence has the 95 % interval
    of the gains over the seeds that both have (`t_interval`), which does not correct for picking the two best of many
    methods. Gains are positive where the method is better, also of losses. Rows with a doubt are left out.
    """
    finite = [group for group in table.setting.groups if math.isfinite(table.value(group, "weighted"))]
    known = [group for group in finite if not doubt(group)] if len(finite) > 1 else finite
    if len(known) < min(2, len(finite)):
        return f"No method is called better than another: {doubts(finite)}."
    known.sort(key=lambda group: -table.setting.sign * table.value(group, "weighted"))
    if not known:
        return "No method has a finite test score."
    best, (measure, _, unit) = known[0], table.setting.unit.partition(", ")
    equal, others = (
        [group for group in known if _are_equal(table, best, group) == are_equal] for are_equal in (True, False)
    )
    among = f"Of the {len(known)} rows that can be compared " if len(known) < len(finite) else ""
    names = " and ".join(sorted(shorten(group.name) for group in equal))
    baselines = [next((group for group in others if group.algorithm == name), None) for name in BASELINES]
    gains = [f"{_gain(table, best, group)} than with {shorten(group.name)}" for group in baselines if group is not None]
    in_brackets = f" ({table.setting.better} {', '.join(gains)})" if gains else ""
    if len(equal) > 1:
        score = f"{table.columns['weighted'].show(table.value(best, 'weighted'))} {unit}".rstrip()
        return f"{among}{names} {'are best with' if others else 'have'} the same test {measure}, {score}{in_brackets}."
    reached = f"a test {measure} of {table.text(best, 'weighted')} {unit}".rstrip()
    if not others:
        return f"{names} has {reached}{f', but {said}' if (said := doubt(best)) else ''}."
    lead = f"The {measure} with {names} is {table.setting.better} {_gain(table, best, others[0])} than with"
    return f"{among}{names} is best with {reached}{in_brackets}. {lead} {_rival(table, best, others[0])}"


def _gain(table: Table, a: Group, b: Group) -> str:
    gain = table.setting.sign * (table.value(a, "weighted") - table.value(b, "weighted"))
    return f"by {table.columns['weighted'].show(gain)}"


def _are_equal(table: Table, a: Group, b: Group) -> bool:
    """Whether two rows have the same score, or scores whose difference is 0, as the table shows numbers."""
    column, x, y = table.columns["weighted"], table.value(a, "weighted"), table.value(b, "weighted")
    return column.show(x) == column.show(y) or column.show(abs(x - y)) == column.show(0.0)


def _rival(table: Table, a: Group, b: Group) -> str:
    """The next best row, and whether more seeds may overturn its distance to the best one."""
    scores, show, name = table.seeds["weighted"].unstack("row"), table.columns["weighted"].show, shorten(b.name)
    if table.is_bold(a, "weighted"):
        return f"{name}, beyond chance."
    gains = table.setting.sign * (scores[a.label] - scores[b.label]).dropna().to_numpy()
    if len(gains) < 2:
        return f"{name}, but they share only one seed, and another seed may reverse it."
    low, high = t_interval(gains)
    unsure = "more seeds may reverse it"
    if low * high > 0:
        few = f"a test of all methods needs {ENOUGH_SEEDS} common seeds"
        unsure = few if len(gains) < ENOUGH_SEEDS else "not beyond chance once all methods and scores are tested"
    return f"{name} (95 % interval {show(low)} to {show(high)} over {len(gains)} seeds): {unsure}."
