"""Published numbers of the papers, from papers.csv.

Columns: paper and table (together the name that --table takes), dataset, algorithm, clients (that train and unseen ones
together) and rounds (empty where the paper does not say), `when` (keys and values that the run's configuration must
have, KEY=VALUE;KEY=VALUE, or nothing), column (the score), value and std as in the paper (accuracies in percent, losses
and entropies in nats), note. `algorithm+name` is an adaptation after an algorithm.
"""

import math
from collections.abc import Hashable
from importlib.resources import files
from typing import Any

import pandas as pd

from fedem_lightning.errors import require
from fedem_lightning.report.finished_run import Run
from fedem_lightning.report.groups import as_typed

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
