"""Published numbers of the papers, from papers.csv.

Columns: paper and table (together the name that --table takes), dataset, algorithm, clients (that train and unseen ones
together) and rounds (empty where the paper does not say), `when` (keys and values that the run's configuration must
have, KEY=VALUE;KEY=VALUE, or nothing), column (the score), value and std as in the paper (accuracies in percent, losses
and entropies in nats), note. `algorithm+name` is an adaptation after an algorithm.
"""

import math
from collections.abc import Hashable
from importlib.resources import files
from io import StringIO
from typing import Any

import pandas as pd

from fedem_lightning.errors import UserError
from fedem_lightning.report.finished_run import Run
from fedem_lightning.report.groups import as_typed

_TITLES = {"fedem": "FedEM", "three-approaches": "Three approaches", "user-centric": "User-centric"}
_SAME = {"fedavg_plus": "fedavg+finetune", "fedavg+finetune": "fedavg_plus", "mapper": "fedavg+mapper"}
"""Two names of one method in different papers."""

_TEXTS = ("note", "when")
COMPONENTS_TABLE = "fedem-appendix-j3"
CAVEAT = (
    "The papers' numbers belong to their own data, models and rounds; differences mean something where these agree."
)


class Papers:
    """The published numbers: those of one table, a name of `names` (else UserError), or of all that fit a run."""

    def __init__(self, table: str | None = None) -> None:
        text = (files(__package__) / "papers.csv").read_text(encoding="utf-8")
        numbers = pd.read_csv(StringIO(text), dtype=dict.fromkeys(_TEXTS, str)).fillna(dict.fromkeys(_TEXTS, ""))
        numbers["name"] = numbers.paper + "-" + numbers.table
        numbers["source"] = numbers.name.map(_title) + numbers.note.map(lambda note: f" ({note})" if note else "")
        self.numbers = numbers
        if table is not None and table not in self.names:
            raise UserError(f"--table: there is no {table}; expected one of {', '.join(self.names)}")
        self.table = table
        keys = ["name", "dataset", "algorithm", "column"]
        self._index = {key: rows.to_dict("records") for key, rows in self.numbers.groupby(keys, sort=False)}

    @property
    def names(self) -> list[str]:
        """Names of the tables, as for --table."""
        return list(dict.fromkeys(self.numbers.name))

    def find(self, run: Run, column: str, tables: tuple[str, ...]) -> dict[Hashable, Any] | None:
        """The row of `numbers` for a run, from the first of `tables` that has one, or from the requested table.

        A run with other clients or rounds than the paper's gets a number from a requested table alone.
        """
        for name in (self.table,) if self.table else tables:
            for algorithm in (run.algorithm, _SAME.get(run.algorithm)):
                for row in self._index.get((name, run.results["dataset"], algorithm, column), []):
                    if _holds(row["when"], run) and (self.table or _same_size(row, run)):
                        return row
        return None


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


def _title(name: str) -> str:
    """A table's title: fedem-table-2 -> FedEM, table 2."""
    paper, place, number = name.rsplit("-", 2)
    return f"{_TITLES[paper]}, {place} {number.upper().replace('J', 'J.')}"


def _holds(when: str, run: Run) -> bool:
    pairs = (condition.partition("=")[::2] for condition in when.split(";") if condition)
    return all(key in run.config and as_typed(run.config[key]) == value for key, value in pairs)


def _same_size(row: dict[Hashable, Any], run: Run) -> bool:
    """Whether a run has the clients and the rounds of a row of papers.csv, as far as the paper says them."""
    n_clients = run.results["n_clients"] + run.results.get("n_unseen_clients", 0)
    sizes = {"clients": n_clients, "rounds": run.results["rounds"]}
    return all(math.isnan(row[name]) or row[name] == size for name, size in sizes.items())
