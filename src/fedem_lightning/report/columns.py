"""The columns of the table, a run's values in them, and the published numbers of the papers, from papers.csv.

Columns of papers.csv: paper and table (together the name that --table takes), dataset, algorithm, clients (that train
and unseen ones together) and rounds (empty where the paper does not say), `when` (keys and values that the run's
configuration must have, KEY=VALUE;KEY=VALUE, or nothing), column (the score), value and std as in the paper (accuracies
in percent, losses and entropies in nats), note. `algorithm+name` is an adaptation after an algorithm.
"""

import math
from collections.abc import Hashable
from importlib.resources import files
from typing import Any, NamedTuple

import pandas as pd
from scipy import special

from fedem_lightning.errors import require
from fedem_lightning.records import title_of_sum
from fedem_lightning.report.finished_run import Run
from fedem_lightning.report.groups import BASELINES, as_typed

FIRST = (
    *("weighted", "paper_weighted", "unseen", "bottom_decile", "worse_than_local", "learning_rate", "megabytes"),
    *("val", "mean"),
)
"""The order of the columns that tables show unless the user names others: the first six of these that have numbers."""


class Column(NamedTuple):
    """Header of a column, formats of its mean and its deviation (none: report.csv alone has it), place in results.json.

    Values in percent are 100 times those of the file.
    """

    header: str
    form: str = ".3g"
    std_form: str = ""
    place: str = ""
    percent: bool = False

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
    "honest": Score("test, honest", "honest.test"),
    "train": Score("train", "train", published="train"),
    "val": Score("val", "val"),
    "unseen": Score("unseen test", "unseen.test", published="unseen_average"),
    "unseen_mean": Score("unseen mean", "unseen.test", "mean", "unseen_mean"),
    "unseen_train": Score("unseen train", "unseen.train", published="unseen_train"),
}
TESTED = tuple(key for key, score in SCORES.items() if score.place.endswith("test"))
"""The columns of test scores, in which the best row may be bold."""
ENTROPIES = {"entropy": "seen", "unseen_entropy": "unseen"}
"""The clients of whose mixture weights a column has the entropy."""
_OTHERS = {
    "balanced_accuracy": Column("balanced accuracy", ".1f", ".2f", "class_scores.balanced_accuracy.pooled", True),
    "auroc": Column("AUROC", ".3f", ".3f", "class_scores.auroc.pooled"),
    "worse_than_majority": Column("worse than majority, %", ".0f", "", "class_scores.worse_than_majority", True),
    "megabytes": Column("MB a client"),
    "seconds": Column("s a round", place="seconds.per_round"),
    "components": Column("components", ".0f"),
    "entropy": Column("entropy", ".2f", ".2f"),
    "paper_entropy": Column("paper entropy", ".2f"),
    "unseen_entropy": Column("unseen entropy", ".2f", ".2f"),
    "paper_unseen_entropy": Column("paper unseen entropy", ".2f"),
    "dead": Column("dead components", ".2g"),
    "pi_cosine_distance": Column("weights' distance", ".2g", ".1g", "recovery.pi_cosine_distance"),
    "theta_cosine_distance": Column("components' distance", ".2g", ".1g", "recovery.theta_cosine_distance"),
    "group_accuracy": Column("clients in their group, %", ".1f", ".2f", "recovery.group_accuracy", True),
    "adjusted_rand_index": Column("adjusted Rand index", ".2f", ".2f", "recovery.adjusted_rand_index"),
    "groups_found": Column("groups found", ".3g", ".2g", "recovery.groups_found"),
}


def all_columns(percent: bool) -> dict[str, Column]:
    """All columns by key, in their order; scores are in percent, or losses and squared errors."""
    form, std = (".1f", ".2f") if percent else (".4g", ".2g")
    columns = {"seeds": Column("seeds", ".0f"), "rounds": Column("rounds", ".0f", place="rounds")}
    columns["learning_rate"] = Column("learning rate", ".3g")
    for key, score in SCORES.items():
        columns[key] = Column(score.header, form, std)
        if score.published:
            columns[f"paper_{key}"] = Column(f"paper {title_of_sum(score.published)}", form, std)
    columns["interval"] = Column("95 % interval", form)
    columns |= _OTHERS
    for name in BASELINES:
        columns[f"worse_than_{name}"] = Column(f"worse than {name}, %", ".0f")
        columns[f"loses_to_{name}"] = Column(f"worse than {name} beyond chance, %", ".1f")
    return columns


def run_values(run: Run) -> dict[str, float]:
    """A run's scores after training, in the table's unit, its costs and its mixture; NaN for what is not finite.

    A column that the run says nothing about is missing. Entropies are the clients' mean of -sum_m pi_m ln pi_m in nats.
    """
    (measure, factor), results = run.measure, run.results
    places = {key: (f"{score.place}.{measure}.{score.summary}", factor) for key, score in SCORES.items()}
    placed = {key: column for key, column in all_columns(factor == 100).items() if column.place}
    if not results["class_scores"].get("imbalanced"):
        placed = {key: column for key, column in placed.items() if not column.place.startswith("class_scores")}
    places |= {key: (column.place, 100.0 if column.percent else 1.0) for key, column in placed.items()}
    found = {key: _at(results, place, scale) for key, (place, scale) in places.items()}
    sent, rates = results["communication"], results.get("learning_rates")
    found["megabytes"] = (sent["up_bytes"] + sent["down_bytes"]) / 1e6 / max(1, results["n_clients"])
    if rates:
        found["learning_rate"] = rates[0]["rate"]
    for key, population in ENTROPIES.items():
        pi = run.weights(population)
        found[key] = None if pi is None else float(special.entr(pi).sum(axis=1).mean())
        if pi is not None and population == "seen":
            found |= {"components": pi.shape[1], "dead": len(results["components"].get("dead", ()))}
    given = {key: float(value) for key, value in found.items() if value is not None}
    return {key: value if math.isfinite(value) else math.nan for key, value in given.items()}


def _at(tree: Any, place: str, scale: float) -> float | None:
    """A number of results.json, scaled; None if it is not there."""
    for part in place.split("."):
        tree = (tree or {}).get(part)
    return None if tree is None else scale * tree


_TITLES = {"fedem": "FedEM", "three-approaches": "Three approaches", "user-centric": "User-centric"}
_SAME = {"fedavg_plus": "fedavg+finetune", "fedavg+finetune": "fedavg_plus", "mapper": "fedavg+mapper"}
"""Two names of one method in different papers."""

COMPONENTS_TABLE = "fedem-appendix-j3"
CAVEAT = (
    "The papers' numbers belong to their own data, models and rounds; differences mean something where these agree."
)


class Papers:
    """The published numbers: those of one table, a name of `numbers` (else UserError), or of all that fit a run."""

    def __init__(self, table: str | None = None) -> None:
        texts = ("note", "when")
        with (files(__package__) / "papers.csv").open(encoding="utf-8") as file:
            self.numbers = pd.read_csv(file, dtype=dict.fromkeys(texts, str)).fillna(dict.fromkeys(texts, ""))
        self.numbers["name"] = self.numbers.paper + "-" + self.numbers.table
        names = ", ".join(dict.fromkeys(self.numbers.name))
        require(table is None or table in names.split(", "), f"--table: there is no {table}; expected one of {names}")
        self.table = table
        keys = ["name", "dataset", "algorithm", "column"]
        self._index = {key: rows.to_dict("records") for key, rows in self.numbers.groupby(keys, sort=False)}

    def find(self, run: Run, column: str, tables: tuple[str, ...]) -> dict[Hashable, Any] | None:
        """The row of `numbers` for a run, from the first of `tables` that has one, or from the requested table.

        A run with other clients or rounds than the paper's gets a number from a requested table alone.
        """
        n_clients = run.results["n_clients"] + run.results.get("n_unseen_clients", 0)
        sizes = {"clients": n_clients, "rounds": run.results["rounds"]}
        for name in (self.table,) if self.table else tables:
            for algorithm in (run.algorithm, _SAME.get(run.algorithm)):
                for row in self._index.get((name, run.results["dataset"], algorithm, column), []):
                    pairs = [condition.partition("=")[::2] for condition in row["when"].split(";") if condition]
                    holds = all(key in run.config and as_typed(run.config[key]) == value for key, value in pairs)
                    fits = all(math.isnan(row[key]) or row[key] == size for key, size in sizes.items())
                    if holds and (self.table or fits):
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
        return (COMPONENTS_TABLE,) if sampled else ("fedem-table-3",)
    if sampled:
        return ("fedem-table-8",)
    return ("fedem-table-2", "fedem-table-6", "fedem-appendix-j2")  # Table 7 has 1 / M of the rounds for FedEM
