"""The table of scores: each row is a group of runs, with mean and deviation over seeds and the paper's number."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedem_lightning.report.cells import Cell, Table, TableColumn, mean_cells
from fedem_lightning.report.collect import SUMMARIES
from fedem_lightning.report.finished_run import Run
from fedem_lightning.report.groups import Setting
from fedem_lightning.report.markup import shorten
from fedem_lightning.report.more_columns import minimum_cell
from fedem_lightning.report.papers import Papers, tables_for
from fedem_lightning.report.significance import TESTED, leaders
from fedem_lightning.run.summary import not_finite_lines


@dataclass(frozen=True)
class _Score:
    """A measured column and its published counterpart.

    Args:
        key: key of the column.
        header: header of the column.
        published: the papers' column with which it is compared.
        difference: whether to show the difference.
        only_beside: whether to leave it out unless a paper has a number for it.

    """

    key: str
    header: str
    published: str = ""
    difference: bool = False
    only_beside: bool = False


_SCORES = (
    _Score("weighted", "test, weighted", "average", difference=True),
    _Score("pooled", "pooled"),
    _Score("mean", "mean", "mean", difference=True),
    _Score("bottom_decile", "bottom decile", "bottom_decile"),
    _Score("worst", "worst", "worst", difference=True),
    _Score("honest", "test, honest"),
    _Score("train", "train", "train"),
    _Score("val", "val"),
    _Score("unseen", "unseen test", "unseen_average", difference=True),
    _Score("unseen_mean", "unseen mean", "unseen_mean", difference=True, only_beside=True),
    _Score("unseen_train", "unseen train", "unseen_train"),
)
_IMBALANCED = {
    "balanced_accuracy": TableColumn("balanced accuracy", ".1f", ".2f"),
    "auroc": TableColumn("AUROC", ".3f", ".3f"),
    "worse_than_majority": TableColumn("worse than majority, %", ".0f"),
}


def final_scores(run: Run) -> dict[str, float | None]:
    """Scores of a run after its last round, in the table's unit, if it has them."""
    measure, factor = run.measure
    results = run.results
    unseen = results.get("unseen") or {}
    found = {key: _sum(results["test"], measure, key) for key in SUMMARIES}
    found["honest"] = _sum((results.get("honest") or {}).get("test"), measure, "weighted")
    found["train"] = _sum(results["train"], measure, "weighted")
    found["val"] = _sum(results.get("val"), measure, "weighted")
    found["unseen"] = _sum(unseen.get("test"), measure, "weighted")
    found["unseen_mean"] = _sum(unseen.get("test"), measure, "mean")
    found["unseen_train"] = _sum(unseen.get("train"), measure, "weighted")
    classes = _class_scores(results)
    scaled = {key: value and factor * value for key, value in found.items()}
    sent = results["communication"]
    return {
        **{key: value for key, value in scaled.items() if value is not None},
        **classes,
        "megabytes": (sent["up_bytes"] + sent["down_bytes"]) / 1e6 / max(1, results["n_clients"]),
        "seconds": results["seconds"].get("per_round"),
        "rounds": results["rounds"],
        **({"rejected": rejected} if (rejected := results.get("rejected_updates")) else {}),
    }


def _class_scores(results: dict[str, Any]) -> dict[str, float | None]:
    """Scores of imbalanced classes, pooled over the test samples; nothing where they are balanced."""
    found = results.get("class_scores") or {}
    if not found.get("imbalanced"):
        return {}
    auroc, balanced = (found.get(name, {}).get("pooled") for name in ("auroc", "balanced_accuracy"))
    worse = {"worse_than_majority": 100 * found["worse_than_majority"]}
    return {"balanced_accuracy": balanced and 100 * balanced, "auroc": auroc, **worse}


def _sum(scores: dict[str, dict[str, float | None]] | None, measure: str, name: str) -> float | None:
    """A summary from results.json; None if there is no such score, NaN if it is null, which means not finite."""
    if not scores or measure not in scores or name not in scores[measure]:
        return None
    value = scores[measure][name]
    return value if value is not None and math.isfinite(value) else math.nan


def not_finite_notes(setting: Setting) -> list[str]:
    """A line for each run with clients whose scores are not finite."""
    runs = [(group, run) for group in setting.groups for run in group.runs]
    return [
        f"{shorten(group.label)}, seed {run.seed}: {line}"
        for group, run in runs
        for line in not_finite_lines(run.results)
    ]


def score_columns(percent: bool) -> dict[str, TableColumn]:
    """All columns of the table of scores, in their order; `filled` leaves out the empty ones."""
    form, std = (".1f", ".2f") if percent else (".4g", ".2g")
    signed = "+" + form
    columns = {"seeds": TableColumn("seeds", ".0f"), "rounds": TableColumn("rounds", ".0f")}
    seen, others = [s for s in _SCORES if s.key in SUMMARIES], [s for s in _SCORES if s.key not in SUMMARIES]
    columns |= {score.key: TableColumn(score.header, form, std) for score in seen}
    for score in seen:
        columns |= _beside(score, form, std, signed)
    columns["minimum"] = TableColumn("minimum", form)
    for score in others:
        columns |= {score.key: TableColumn(score.header, form, std), **_beside(score, form, std, signed)}
    return columns | {
        **_IMBALANCED,
        "megabytes": TableColumn("MB a client"),
        "seconds": TableColumn("s a round"),
        "rejected": TableColumn("rejected", ".0f"),
    }


def _beside(score: _Score, form: str, std: str, signed: str) -> dict[str, TableColumn]:
    name = {"weighted": "average", "worst": "worst"}.get(score.key, score.header)
    prefix = "" if score.key == "weighted" else f"{score.header} "
    columns = {f"paper_{score.key}": TableColumn(f"paper {name}", form, std)} if score.published else {}
    if score.difference:
        columns[f"difference_{score.key}"] = TableColumn(f"{prefix}difference", signed)
    return columns


def scores_table(setting: Setting, papers: Papers) -> Table:
    """The table of scores after each run's last round.

    Args:
        setting: the setting to compare.
        papers: published numbers to compare with.

    """
    return build(setting, papers, "scores after the last round", final_scores)


def build(
    setting: Setting,
    papers: Papers,
    what: str,
    scores: Callable[[Run], dict[str, float | None] | None],
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
    title = f"{shorten(setting.title)}: {what}, {setting.unit.replace(',', ' in')}"
    table = Table("scores", title, setting, score_columns(factor == 100))
    columns: dict[str, dict[str, dict[int, float]]] = {}
    for group in setting.groups:
        found = {run.seed: scores(run) for run in group.runs}
        cells = _measured(list(found.values()))
        for key in TESTED:
            seeds = {
                seed: value for seed, row in found.items() if row is not None and (value := row.get(key)) is not None
            }
            if seeds and np.isfinite(list(seeds.values())).all():
                columns.setdefault(key, {})[group.label] = seeds
        minimum = minimum_cell(group.runs) if measure == "loss" else None
        cells |= {} if minimum is None else {"minimum": minimum}
        _add_published(cells, group.runs[0], papers, tables(group.runs[0]), measure)
        table.rows.append((group, cells))
    beside = {key for _, cells in table.rows for key in cells if key.startswith("paper_")}
    for score in _SCORES:
        if score.only_beside and f"paper_{score.key}" not in beside:
            del table.columns[score.key]
            columns.pop(score.key, None)
    table.leaders, notes = leaders(columns, setting.groups[0].runs[0].sign)
    table.notes += notes
    table.add_sources()
    return table


def _measured(seeds: Sequence[dict[str, float | None] | None]) -> dict[str, Cell]:
    cells = {"seeds": Cell(len(seeds))}
    if any(scores is None for scores in seeds):
        return cells
    return cells | mean_cells([scores for scores in seeds if scores is not None])


def _add_published(cells: dict[str, Cell], run: Run, papers: Papers, tables: tuple[str, ...], measure: str) -> None:
    """Adds the papers' numbers and the differences to a row."""
    suffix = "" if measure == "accuracy" else f"_{measure}"
    for score in _SCORES:
        found = papers.find(run, score.published + suffix, tables) if score.published else None
        if found is None or score.key not in cells:
            continue
        cells[f"paper_{score.key}"] = found
        if score.difference:
            cells[f"difference_{score.key}"] = Cell(cells[score.key].value - found.value)
