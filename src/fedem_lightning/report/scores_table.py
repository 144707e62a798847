"""The table of scores: each row is a group of runs, with mean and deviation over seeds and the papers' numbers."""

import math
from dataclasses import dataclass

import pandas as pd

from fedem_lightning.report.columns import (
    FIRST,
    SCORES,
    TESTED,
    Column,
    all_columns,
    published,
    run_values,
    source,
)
from fedem_lightning.report.doubts import (
    MARK,
    UNFINISHED,
    doubt,
    doubts,
    finished,
    unchosen,
    unknown_line,
    warning_lines,
)
from fedem_lightning.report.gains_by_client import ENOUGH_SEEDS, compare_clients, gains_and_losses, leaders, t_interval
from fedem_lightning.report.groups import BASELINES, Group, Setting, shorten

_Values = dict[str, dict[str, float]]
_N_SHOWN = 6  # columns at most


@dataclass
class Table:
    """A table, independent of the output format."""

    setting: Setting
    columns: dict[str, Column]  # those that have numbers, by key
    seeds: pd.DataFrame  # the values of every run, by label and seed
    mean: _Values  # over seeds, by column and label; NaN if a seed has no value
    std: _Values  # standard deviations (ddof 1), likewise
    leaders: dict[str, str]  # the label of the row that is best beyond chance, by key of the column
    notes: list[str]  # lines below the table, such as sources
    warnings: list[str]  # further lines, about what makes the table less sure

    @property
    def shown(self) -> list[str]:
        """The keys of the columns to show; report.csv has all."""
        return [key for key in FIRST if key in self.columns][:_N_SHOWN]

    @property
    def title(self) -> str:
        """The title for readers."""
        unit = self.setting.unit.replace(",", " in")
        return f"{shorten(self.setting.title)}: scores {self.setting.scored}, {unit}, {self.setting.seeds}"

    def value(self, group: Group, key: str) -> float:
        """A row's mean; NaN without one."""
        return self.mean.get(key, {}).get(group.label, math.nan)

    def text(self, group: Group, key: str) -> str:
        """A cell as readers see it."""
        text = self.columns[key].show(self.value(group, key), self.std.get(key, {}).get(group.label, math.nan))
        return text + MARK if key == "learning_rate" and unchosen(group) else text

    def row(self, group: Group) -> str:
        """A row's name, with a mark if its training had not ended."""
        return shorten(group.name) + (f" {UNFINISHED}" if finished(group) is False else "")

    def is_bold(self, group: Group, key: str) -> bool:
        """Whether a row is the best of a column beyond chance, among those that are compared."""
        return self.leaders.get(key) == group.label


def scores_table(setting: Setting) -> Table:
    """The table of a setting, beside the papers' numbers."""
    runs = {(group.label, run.seed): run for group in setting.groups for run in group.runs}
    index = pd.MultiIndex.from_tuples(runs, names=["row", "seed"])
    values = pd.DataFrame(list(map(run_values, runs.values())), index=index, dtype=float)
    parts = [values, *(_against_baseline(setting, name) for name in BASELINES)]
    seeds = pd.concat([part.reindex(index) for part in parts], axis=1)
    by_row = seeds.groupby(level="row", sort=False)
    complete = by_row.count().eq(by_row.size(), axis=0)  # a mean without a seed that diverged would flatter the row
    mean: _Values = by_row.mean().where(complete).to_dict()  # type: ignore[assignment]
    std: _Values = by_row.std(ddof=1).where(complete).to_dict()  # type: ignore[assignment]
    mean["seeds"] = {group.label: float(len(group.runs)) for group in setting.groups}
    sources = _add_published(setting, mean, std)
    filled = {key: [label for label, v in by_label.items() if math.isfinite(v)] for key, by_label in mean.items()}
    columns = {key: column for key, column in all_columns(setting.measure[1] == 100).items() if filled.get(key)}
    compared = {group.label for group in setting.groups if not doubt(group)}
    rows = {key: [label for label in filled[key] if label in compared] for key in TESTED if key in columns}
    best, warnings = leaders({key: seeds[key].unstack("row")[labels] for key, labels in rows.items()}, setting.sign)
    notes = [*sources, *unknown_line(setting)]
    return Table(setting, columns, seeds, mean, std, best, notes, [*warnings, *warning_lines(setting)])


def _against_baseline(setting: Setting, name: str) -> pd.DataFrame:
    """The shares in % of clients worse off than with a baseline's first row, by label and seed."""
    result = {}
    for baseline in [group for group in setting.groups if group.algorithm == name][:1]:
        for group in [group for group in setting.groups if group is not baseline and not doubts([baseline, group])]:
            if len(clients := compare_clients(group, baseline)):
                result[group.label] = clients.groupby("seed")[["gain", "p"]].apply(gains_and_losses)
    if not result:
        return pd.DataFrame()
    shares = 100 * pd.concat(result)[["worse", "loses"]]
    return shares.set_axis([f"worse_than_{name}", f"loses_to_{name}"], axis="columns")


def _add_published(setting: Setting, mean: _Values, std: _Values) -> list[str]:
    """Adds the papers' numbers to the means; lines with their sources."""
    suffix = "" if setting.measure[0] == "accuracy" else f"_{setting.measure[0]}"
    wanted = {key: score.published + suffix for key, score in SCORES.items() if score.published and key in mean}
    sources: dict[str, dict[str, None]] = {}
    for group in setting.groups:
        for key, column in wanted.items():
            result = published(group.runs[0], column)
            if result is not None and math.isfinite(mean[key].get(group.label, math.nan)):
                mean.setdefault(f"paper_{key}", {})[group.label] = result["value"]
                std.setdefault(f"paper_{key}", {})[group.label] = result["std"]
                sources.setdefault(source(result), {})[shorten(group.name)] = None
    return [f"paper: {title}, beside {', '.join(labels)}" for title, labels in sources.items()]


def headline(table: Table) -> str:
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
        return f"{names} has {reached}{f', but {message}' if (message := doubt(best)) else ''}."
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
        small = f"a test of all methods needs {ENOUGH_SEEDS} common seeds"
        unsure = small if len(gains) < ENOUGH_SEEDS else "not beyond chance once all methods and scores are tested"
    return f"{name} (95 % interval {show(low)} to {show(high)} over {len(gains)} seeds): {unsure}."
