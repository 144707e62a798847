"""The table of scores: each row is a group of runs, with mean and deviation over seeds and the paper's number."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from fedem_lightning.report.cells import Cell, Table, TableColumn, mean_cells, shorten
from fedem_lightning.report.finished_run import Run
from fedem_lightning.report.gains_by_client import compare_clients, gains_and_losses
from fedem_lightning.report.groups import BASELINES, Group, Setting
from fedem_lightning.report.papers import Papers, tables_for
from fedem_lightning.report.recommending import recommended
from fedem_lightning.report.significance import leaders
from fedem_lightning.report.warning_lines import UNCHOSEN, unchosen, warning_lines


class _Score(NamedTuple):
    """A measured column and its published counterpart.

    Args:
        header: header of the column.
        place: where results.json has the score: dotted keys above the measure.
        summary: the key below the measure.
        published: the papers' column with which it is compared.
        difference: header of the difference; empty: it is not shown.
        only_beside: whether to leave it out unless a paper has a number for it.

    """

    header: str
    place: str
    summary: str = "weighted"
    published: str = ""
    difference: str = ""
    only_beside: bool = False


_SUMMARIES = {
    "weighted": _Score("test, weighted", "test", "weighted", "average", "difference"),
    "pooled": _Score("pooled", "test", "pooled"),
    "mean": _Score("mean", "test", "mean", "mean", "mean difference"),
    "bottom_decile": _Score("bottom decile", "test", "bottom_decile", "bottom_decile"),
    "worst": _Score("worst", "test", "worst", "worst", "worst difference"),
}
_OTHERS = {
    "honest": _Score("test, honest", "honest.test"),
    "train": _Score("train", "train", published="train"),
    "val": _Score("val", "val"),
    "unseen": _Score("unseen test", "unseen.test", "weighted", "unseen_average", "unseen test difference"),
    "unseen_mean": _Score("unseen mean", "unseen.test", "mean", "unseen_mean", "unseen mean difference", True),
    "unseen_train": _Score("unseen train", "unseen.train", published="unseen_train"),
}
_SCORES = _SUMMARIES | _OTHERS
_LAST = {
    "balanced_accuracy": TableColumn("balanced accuracy", ".1f", ".2f"),
    "auroc": TableColumn("AUROC", ".3f", ".3f"),
    "worse_than_majority": TableColumn("worse than majority, %", ".0f"),
    "megabytes": TableColumn("MB a client"),
    "seconds": TableColumn("s a round"),
    "rejected": TableColumn("rejected", ".0f"),
}


def final_scores(run: Run) -> dict[str, float | None]:
    """Scores of a run after its last round, in the table's unit, if it has them; NaN for one that is not finite."""
    (measure, factor), results = run.measure, run.results
    found: dict[str, float | None] = {}
    for key, score in _SCORES.items():
        scores = results
        for part in score.place.split("."):
            scores = scores.get(part) or {}
        if score.summary in scores.get(measure, {}):
            value = scores[measure][score.summary]
            found[key] = factor * value if value is not None and math.isfinite(value) else math.nan
    classes, sent = results["class_scores"], results["communication"]
    if classes.get("imbalanced"):
        auroc, balanced = (classes.get(name, {}).get("pooled") for name in ("auroc", "balanced_accuracy"))
        found |= {"balanced_accuracy": balanced and 100 * balanced, "auroc": auroc}
        found["worse_than_majority"] = 100 * classes["worse_than_majority"]
    found["megabytes"] = (sent["up_bytes"] + sent["down_bytes"]) / 1e6 / max(1, results["n_clients"])
    rejected = {"rejected": results["rejected_updates"]} if results.get("rejected_updates") else {}
    return {**found, "seconds": results["seconds"].get("per_round"), "rounds": results["rounds"], **rejected}


def score_columns(percent: bool) -> dict[str, TableColumn]:
    """All columns of the table of scores, in their order; `filled` leaves out the empty ones."""
    form, std = (".1f", ".2f") if percent else (".4g", ".2g")
    columns = {"seeds": TableColumn("seeds", ".0f"), "rounds": TableColumn("rounds", ".0f")}
    columns["learning_rate"] = TableColumn("learning rate", ".3g")
    columns["rate_chosen"] = TableColumn("learning rate: 1 chosen for the data, 0 default", ".0f", is_detail=True)
    columns |= {key: TableColumn(score.header, form, std) for key, score in _SUMMARIES.items()}
    for key, score in _SCORES.items():
        columns |= {"minimum": TableColumn("minimum", form)} if key == "honest" else {}
        columns[key] = TableColumn(score.header, form, std)
        columns[f"paper_{key}"] = TableColumn(f"paper {score.published.replace('_', ' ')}", form, std)
        columns[f"difference_{key}"] = TableColumn(score.difference, f"+{form}")
    columns |= _LAST
    for name in BASELINES:
        columns[f"worse_than_{name}"] = TableColumn(f"worse than {name}, %", ".0f")
        columns[f"loses_to_{name}"] = TableColumn(f"worse than {name} beyond chance, %", ".1f", is_detail=True)
    return columns


def scores_table(
    setting: Setting,
    papers: Papers,
    what: str = "scores after the last round",
    scores: Callable[[Run], dict[str, float | None] | None] = final_scores,
    tables: Callable[[Run], tuple[str, ...]] = tables_for,
) -> Table:
    """The table of the scores that the function `scores` returns for every run (None: no score for this run).

    Args:
        setting: the setting to compare.
        papers: published numbers to compare with.
        what: description of the scores in the title.
        scores: function from a run to its scores by key of the column.
        tables: function from a run to the papers' tables that fit it.

    """
    measure, factor = setting.measure
    what = f"{what}, {setting.unit.replace(',', ' in')}"
    table = Table("scores", what, setting, score_columns(factor == 100))
    tested: dict[str, dict[str, dict[int, float]]] = {}
    for group in setting.groups:
        found = {run.seed: scores(run) for run in group.runs}
        known = {seed: row for seed, row in found.items() if row is not None}
        cells = {"seeds": Cell(len(found))} | (mean_cells(list(known.values())) if len(known) == len(found) else {})
        for key in ("val", *(key for key, score in _SCORES.items() if score.place.endswith("test"))):
            seeds = {seed: value for seed, row in known.items() if (value := row.get(key)) is not None}
            if seeds and np.isfinite(list(seeds.values())).all():
                tested.setdefault(key, {})[group.label] = seeds
        cells |= _rate(group) | (_minimum(group.runs) if measure == "loss" else {})
        cells |= _published(cells, group.runs[0], papers, tables(group.runs[0]), measure)
        table.rows.append((group, cells))
    beside = {key for _, cells in table.rows for key in cells if key.startswith("paper_")}
    for key in (key for key, score in _SCORES.items() if score.only_beside and f"paper_{key}" not in beside):
        del table.columns[key]
        tested.pop(key, None)
    val = tested.pop("val", {})
    by_column = {key: pd.DataFrame(rows) for key, rows in tested.items()}
    table.seeds = tested
    table.leaders, table.warnings = leaders(by_column, setting.groups[0].runs[0].sign)
    if len(val) == len(setting.groups):
        sure = recommended(setting.groups, pd.DataFrame(val)).sure
        table.recommended = None if sure is None else sure.label
    beyond = set(table.leaders.values()) - {table.recommended}
    if names := [shorten(group.in_text) for group in setting.groups if group.label in beyond]:
        line = "best by test scores beyond chance, but not bold, because --recommend is not sure of it"
        table.warnings.append(f"{line}: {', '.join(names)}")
    table.add_sources()
    if scores is final_scores:  # clients.parquet has the scores after the last round only
        _add_baselines(table)
    table.warnings += warning_lines(setting)
    return table


def _published(
    cells: dict[str, Cell], run: Run, papers: Papers, tables: tuple[str, ...], measure: str
) -> dict[str, Cell]:
    """The papers' numbers and the differences of a row."""
    suffix, more = "" if measure == "accuracy" else f"_{measure}", {}
    for key, score in _SCORES.items():
        found = papers.find(run, score.published + suffix, tables) if score.published and key in cells else None
        if found is not None:
            more[f"paper_{key}"] = found
            more |= {f"difference_{key}": Cell(cells[key].value - found.value)} if score.difference else {}
    return more


def _add_baselines(table: Table) -> None:
    """Adds the shares of clients worse off than with a baseline, over common seeds; of several the first counts."""
    for name in BASELINES:
        baseline = next((group for group in table.setting.groups if group.algorithm == name), None)
        for group, cells in table.rows:
            clients = compare_clients(group, baseline) if baseline is not None and group is not baseline else None
            if clients is not None:
                seeds = [gains_and_losses(part) for _, part in clients.groupby("seed")]
                shares = [{f"worse_than_{name}": 100 * s.worse, f"loses_to_{name}": 100 * s.loses} for s in seeds]
                cells |= mean_cells(shares)


def _rate(group: Group) -> dict[str, Cell]:
    """The learning rate, with a mark if nobody chose it or an adaptation's for the data."""
    rates = group.runs[0].results.get("learning_rates")
    if not rates:
        return {}
    mark, n = UNCHOSEN if unchosen(group) else "", len(group.runs)
    rate = Cell(float(rates[0]["rate"]), n=n, mark=mark)
    return {"learning_rate": rate, "rate_chosen": Cell(float(not mark), n=n)}


def _minimum(runs: Sequence[Run]) -> dict[str, Cell]:
    """The least expected test loss, a mean over seeds; nothing if a run does not have it.

    If each client predicts with one of q models (`n_served_models` in results.json) it is a range, from the best to the
    worst way to merge the true groups into q. Otherwise it is the loss of one model for each client.
    """
    ranges = []
    for run in runs:
        least, n_models = run.results["reference"].get("minimum_loss"), run.results.get("n_served_models")
        by_models = run.results["data"].get("minimum_loss_by_models") or {}
        if least is None or (n_models is not None and str(n_models) not in by_models):
            return {}  # in the second case there are more models than true groups
        ranges.append(by_models.get(str(n_models), (least, least)))
    low, high = np.mean(ranges, axis=0).tolist()
    return {"minimum": Cell(low, n=len(runs), high=high if high > low else None)}
