"""The columns of the table, a run's values in them, and the published numbers of the papers, from papers.csv.

Columns of papers.csv: paper and table (together its name), dataset, algorithm, clients (that train
and unseen ones together) and rounds (empty where the paper does not say), `when` (keys and values that the run's
configuration must have, KEY=VALUE;KEY=VALUE, or nothing), column (the score), value and std as in the paper (accuracies
in percent, losses and entropies in nats), note. `algorithm+name` is an adaptation after an algorithm.
"""

import math
from collections.abc import Hashable
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

import pandas as pd

from fedem_lightning.report.finished_run import Run
from fedem_lightning.report.groups import BASELINES, as_typed
from fedem_lightning.settings.measures import title_of_sum

FIRST = (
    *("weighted", "paper_weighted", "unseen", "bottom_decile", "worse_than_local", "learning_rate", "megabytes"),
    *("global", "val", "mean"),
)
"""The order of the columns that tables show: the first six of these that have numbers."""


class Column(NamedTuple):
    """Header of a column, formats of its mean and its deviation (none: report.csv alone has it)."""

    header: str
    form: str = ".3g"
    std_form: str = ""

    def show(self, value: float, std: float = math.nan) -> str:
        """A mean, and its deviation if there is one, as text; "-" for a value that is not finite."""
        if not math.isfinite(value):
            return "-"
        text = f"{value:,.0f}" if self.form == ".3g" and abs(value) >= 1000 else f"{value:{self.form}}"
        return f"{text} ± {std:{self.std_form}}" if self.std_form and math.isfinite(std) else text


class Score(NamedTuple):
    """A score in results.json, at PLACE.MEASURE.SUMMARY, and the papers' column with which it is compared."""

    header: str
    place: str
    summary: str = "weighted"
    published: str = ""


SCORES = {
    "weighted": Score("test, weighted", "test", "weighted", "average"),
    "pooled": Score("pooled", "test", "pooled"),
    "mean": Score("mean", "test", "mean", "mean"),
    "bottom_decile": Score("worst tenth", "test", "bottom_decile", "bottom_decile"),
    "worst": Score("worst", "test", "worst", "worst"),
    "global": Score("on all clients' samples", "global", "mean"),
    "global_median": Score("median on all", "global", "median"),
    "global_worst": Score("worst on all", "global", "worst"),
    "honest": Score("test, honest", "honest.test"),
    "train": Score("train", "train", published="train"),
    "val": Score("val", "val"),
    "unseen": Score("unseen test", "unseen.test", published="unseen_average"),
    "unseen_mean": Score("unseen mean", "unseen.test", "mean", "unseen_mean"),
    "unseen_train": Score("unseen train", "unseen.train", published="unseen_train"),
}
TESTED = tuple(key for key, score in SCORES.items() if score.place.endswith("test"))
"""The columns of test scores, in which the best row may be bold."""


def all_columns(percent: bool) -> dict[str, Column]:
    """All columns by key, in their order; scores are in percent, or losses and squared errors."""
    form, std = (".1f", ".2f") if percent else (".4g", ".2g")
    columns = {"seeds": Column("seeds", ".0f"), "rounds": Column("rounds", ".0f")}
    columns["learning_rate"] = Column("learning rate", ".3g")
    for key, score in SCORES.items():
        columns[key] = Column(score.header, form, std)
        if score.published:
            columns[f"paper_{key}"] = Column(f"paper {title_of_sum(score.published)}", form, std)
    columns["megabytes"] = Column("MB a client")
    for name in BASELINES:
        columns[f"worse_than_{name}"] = Column(f"worse than {name}, %", ".0f")
        columns[f"loses_to_{name}"] = Column(f"worse than {name} beyond chance, %", ".1f")
    return columns


def run_values(run: Run) -> dict[str, float]:
    """A run's scores after training, in the table's unit, and its costs; NaN for what is not finite.

    A column that the run says nothing about is missing.
    """
    (measure, factor), results = run.measure, run.results
    result = {key: _at(results, score, measure, factor) for key, score in SCORES.items()}
    sent, rates = results["communication"], results.get("learning_rates")
    result["rounds"] = results["rounds"]
    result["megabytes"] = (sent["up_bytes"] + sent["down_bytes"]) / 1e6 / max(1, results["n_clients"])
    if rates:
        result["learning_rate"] = rates[0]["rate"]
    given = {key: float(value) for key, value in result.items() if value is not None}
    return {key: value if math.isfinite(value) else math.nan for key, value in given.items()}


def _at(tree: Any, score: Score, measure: str, factor: float) -> float | None:
    """A score of results.json, scaled; None if it is not there."""
    for part in (*score.place.split("."), measure, score.summary):
        tree = (tree or {}).get(part)
    return None if tree is None else factor * tree


_TITLES = {"fedem": "FedEM", "three-approaches": "Three approaches", "user-centric": "User-centric"}
_SAME = {"fedavg_plus": "fedavg+finetune", "fedavg+finetune": "fedavg_plus", "mapper": "fedavg+mapper"}
"""Two names of one method in different papers."""

CAVEAT = (
    "The papers' numbers belong to their own data, models and rounds; differences mean something where these agree."
)


@cache
def papers_numbers() -> pd.DataFrame:
    """The published numbers, with the column name: that of a paper and its table."""
    texts = ("note", "when")
    with (files(__package__) / "papers.csv").open(encoding="utf-8") as file:
        numbers = pd.read_csv(file, dtype=dict.fromkeys(texts, str)).fillna(dict.fromkeys(texts, ""))
    return numbers.assign(name=numbers.paper + "-" + numbers.table)


@cache
def _numbers_of() -> dict[Hashable, list[dict[Hashable, Any]]]:
    keys = ["name", "dataset", "algorithm", "column"]
    return {key: rows.to_dict("records") for key, rows in papers_numbers().groupby(keys, sort=False)}


def published(run: Run, column: str) -> dict[Hashable, Any] | None:
    """The row of `papers_numbers` for a run, of the first table that has one for its clients and rounds."""
    n_clients = run.results["n_clients"] + run.results.get("n_unseen_clients", 0)
    sizes = {"clients": n_clients, "rounds": run.results["rounds"]}
    for name in tables_for(run):
        for algorithm in (run.algorithm, _SAME.get(run.algorithm)):
            for row in _numbers_of().get((name, run.results["dataset"], algorithm, column), []):
                pairs = [condition.partition("=")[::2] for condition in row["when"].split(";") if condition]
                holds = all(key in run.config and as_typed(run.config[key]) == value for key, value in pairs)
                if holds and all(math.isnan(row[key]) or row[key] == size for key, size in sizes.items()):
                    return row
    return None


def source(row: dict[Hashable, Any]) -> str:
    """Where a row of papers.csv stands, for readers: FedEM, table 2."""
    place, number = row["table"].split("-")
    title = f"{_TITLES[row['paper']]}, {place} {number.upper().replace('J', 'J.')}"
    return f"{title} ({row['note']})" if row["note"] else title


def tables_for(run: Run) -> tuple[str, ...]:
    """The tables to compare a run with, in order of preference, by client sampling and unseen clients."""
    if run.config.get("dataset.one_hot"):  # Appendix J.4 has no accuracies
        return ()
    if run.config.get("dataset.shift") or str(run.config.get("backbone._target_")).endswith("LeNet5"):
        return ("user-centric-table-1",)  # the only paper with true groups, or with this model
    sampled = run.participation < 1
    if run.results["dataset"] == "density":
        return ("three-approaches-table-1",)
    if run.results.get("unseen"):
        return ("fedem-appendix-j3",) if sampled else ("fedem-table-3",)
    if sampled:
        return ("fedem-table-8",)
    return ("fedem-table-2", "fedem-table-6", "fedem-appendix-j2")  # Table 7 has 1 / M of the rounds for FedEM
