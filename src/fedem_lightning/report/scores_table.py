"""The table of scores: each row is a group of runs, with mean and deviation over seeds and the papers' numbers."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from fedem_lightning.errors import one_line, require
from fedem_lightning.report.columns import ENTROPIES, FIRST, SCORES, TESTED, Column, all_columns, run_values
from fedem_lightning.report.doubts import MARK, UNFINISHED, doubt, finished, unchosen, unknown_line
from fedem_lightning.report.gains_by_client import compare_clients, gains_and_losses, leaders, t_interval
from fedem_lightning.report.groups import BASELINES, Group, Setting, shorten
from fedem_lightning.report.papers import COMPONENTS_TABLE, Papers, tables_for
from fedem_lightning.report.warning_lines import warning_lines

_Values = dict[str, dict[str, float]]
_N_SHOWN = 6  # columns that are shown unless the user names some


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
    intervals: bool = False  # whether the column of 95 % intervals is shown after the test scores

    @property
    def title(self) -> str:
        """The title for readers."""
        unit = self.setting.unit.replace(",", " in")
        return f"{shorten(self.setting.title)}: scores {self.setting.scored}, {unit}, {self.setting.seeds}"

    def shown(self, names: Sequence[str] | None = None) -> list[str]:
        """The keys of the columns to show: the first six, all of them (`["all"]`), or those named that have numbers."""
        if names is None:
            keys = [key for key in FIRST if key in self.columns][:_N_SHOWN]
        else:
            keys = [key for key in (self.columns if "all" in names else names) if key in self.columns]
        if self.intervals and "interval" in self.columns and "interval" not in keys:
            keys.insert(keys.index("weighted") + 1 if "weighted" in keys else 0, "interval")
        return keys

    def value(self, group: Group, key: str) -> float:
        """A row's mean; NaN without one."""
        return self.mean.get(key, {}).get(group.label, math.nan)

    def text(self, group: Group, key: str) -> str:
        """A cell as readers see it."""
        if key == "interval" and math.isfinite(reach := self.value(group, key)):
            middle, show = self.value(group, "weighted"), self.columns[key].show
            return f"{show(middle - reach)} to {show(middle + reach)}"
        text = self.columns[key].show(self.value(group, key), self.std.get(key, {}).get(group.label, math.nan))
        return text + MARK if key == "learning_rate" and unchosen(group) else text

    def row(self, group: Group) -> str:
        """A row's name, with a mark if its training had not ended."""
        return shorten(group.name) + (f" {UNFINISHED}" if finished(group) is False else "")

    def is_bold(self, group: Group, key: str) -> bool:
        """Whether a row is the best of a column beyond chance, among those that are compared."""
        return self.leaders.get(key) == group.label


def scores_table(setting: Setting, papers: Papers) -> Table:
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
    if "weighted" in seeds:  # the half of Student's interval of the mean over seeds
        found = {str(label): scores.to_numpy() for label, scores in seeds["weighted"].groupby(level="row")}
        mean["interval"] = {k: np.ptp(t_interval(v)) / 2 for k, v in found.items() if len(v) > 1}
    sources = _add_published(setting, papers, mean, std)
    columns = all_columns(setting.measure[1] == 100)
    filled = {key: [label for label, v in by_label.items() if math.isfinite(v)] for key, by_label in mean.items()}
    columns = {key: column for key, column in columns.items() if filled.get(key)}
    compared = {group.label for group in setting.groups if not doubt(group)}
    rows = {key: [label for label in filled[key] if label in compared] for key in TESTED if key in columns}
    best, warnings = leaders({key: seeds[key].unstack("row")[labels] for key, labels in rows.items()}, setting.sign)
    notes = [*sources, *unknown_line(setting)]
    return Table(setting, columns, seeds, mean, std, best, notes, [*warnings, *warning_lines(setting)])


def _against_baseline(setting: Setting, name: str) -> pd.DataFrame:
    """The shares in % of clients worse off than with a baseline's first row, by label and seed."""
    baseline = next((group for group in setting.groups if group.algorithm == name), None)
    found = {}
    for group in setting.groups if baseline is not None else ():
        paired = baseline is not None and group is not baseline and not doubt(baseline) and not doubt(group)
        clients = compare_clients(group, baseline) if paired else None  # type: ignore[arg-type]
        if clients is not None:
            found[group.label] = clients.groupby("seed")[["gain", "p"]].apply(gains_and_losses)
    if not found:
        return pd.DataFrame()
    shares = 100 * pd.concat(found)[["worse", "loses"]]
    return shares.set_axis([f"worse_than_{name}", f"loses_to_{name}"], axis="columns")


def _add_published(setting: Setting, papers: Papers, mean: _Values, std: _Values) -> list[str]:
    """Adds the papers' numbers and the differences to the means; lines with their sources."""
    suffix = "" if setting.measure[0] == "accuracy" else f"_{setting.measure[0]}"
    wanted = {key: score.published + suffix for key, score in SCORES.items() if score.published and key in mean}
    sources: dict[str, dict[str, None]] = {}
    for group in setting.groups:
        tables = tables_for(group.runs[0])
        sought = {key: (column, tables) for key, column in wanted.items()}
        sought |= {key: (key, (COMPONENTS_TABLE,)) for key in ENTROPIES if key in mean}
        for key, (column, names) in sought.items():
            score = mean[key].get(group.label, math.nan)
            found = papers.find(group.runs[0], column, names) if math.isfinite(score) else None
            if found is not None:
                mean.setdefault(f"paper_{key}", {})[group.label] = found["value"]
                std.setdefault(f"paper_{key}", {})[group.label] = found["std"]
                mean.setdefault(f"difference_{key}", {})[group.label] = score - found["value"]
                sources.setdefault(found["source"], {})[shorten(group.name)] = None
    return [f"paper: {source}, beside {', '.join(labels)}" for source, labels in sources.items()]


def check_columns(names: Sequence[str] | None, tables: Sequence[Table]) -> list[str]:
    """A line for each of some columns in which no table has numbers; UserError for a name of no column."""
    filled = {key for table in tables for key in table.columns} | {"all"}
    known = [*all_columns(percent=True), "all"]
    for name in names or ():
        expected = f"expected some of {', '.join(known)}"
        require(name in known, f"--columns: no column {one_line(name)!r}; {expected}")
    return [f"no run has numbers for the column {one_line(name)}" for name in names or () if name not in filled]
