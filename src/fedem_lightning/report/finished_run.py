"""Finished runs: search, a check of what they say, and the content of their files; others have a reason."""

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedem_lightning.settings.configs import read_yaml, resolved
from fedem_lightning.settings.errors import UserError, one_line, require
from fedem_lightning.settings.files import regular
from fedem_lightning.settings.keys import dataset_name, flatten, implied_adaptation
from fedem_lightning.settings.measures import HIGHER_IS_BETTER, headline


@dataclass(frozen=True)
class Run:
    """A complete run: the content of its results.json (docs/results.md), and its configuration, see `read_config`."""

    folder: Path
    results: dict[str, Any]
    config: dict[str, Any]

    @property
    def algorithm(self) -> str:
        """The algorithm's name, with "+NAME" for an adaptation after it."""
        name: str = self.results["algorithm"]
        adaptation = self.results.get("adaptation") or str(self.config.get("adaptation._target_", "")).split(".")[-1]
        adaptation = adaptation.lower()
        if adaptation in ("", "none", "noadaptation") or adaptation == implied_adaptation(name):
            return one_line(name)
        return one_line(f"{name}+{adaptation}")

    @property
    def seed(self) -> int:
        """The run's seed."""
        return int(self.results["seed"])

    @property
    def measure(self) -> tuple[str, float]:
        """The score that tables show, and its factor in the tables."""
        return headline(self.results["test"] or self.results["train"])[:2]

    @property
    def sign(self) -> int:
        """1 if higher values of `measure` are better, else -1."""
        return 1 if HIGHER_IS_BETTER[self.measure[0]] else -1

    @property
    def participation(self) -> float:
        """The fraction of the clients in a round."""
        share = float(self.config.get("algorithm.participation", 1.0))
        return share if share <= 1 else min(1.0, share / self.results["n_clients"])

    @property
    def keeps_best(self) -> bool:
        """Whether its scores are those of the best round on validation, and not of the last one."""
        return "callbacks.best_round._target_" in self.config or self.results.get("scored_round") is not None

    @property
    def date(self) -> str:
        """When the run ended, for sorting."""
        return str(self.results["environment"].get("date") or "")

    @cached_property
    def metrics(self) -> pd.DataFrame:
        """The content of metrics.csv, numbers or NaN; empty if it is missing or unreadable."""
        with suppress(Exception):  # whatever pandas meets in a damaged file
            return pd.read_csv(regular(self.folder / "metrics.csv")).apply(pd.to_numeric, errors="coerce")
        return pd.DataFrame()

    @cached_property
    def clients(self) -> pd.DataFrame:
        """The content of clients.parquet; without rows if it is missing or unreadable."""
        with suppress(Exception), regular(self.folder / "clients.parquet").open("rb") as file:
            return pd.read_parquet(file)  # pyarrow opens no path that is not text
        return pd.DataFrame({"id": [], "population": []})

    @cached_property
    def scored(self) -> pd.DataFrame:
        """The clients that train and have a test score, by name; no rows if clients.parquet lacks them.

        Columns: row (in clients.parquet), n_test, score (in the table's unit).
        """
        measure, factor = self.measure
        table = self.clients.reindex(columns=["id", "population", "n_test", f"test_{measure}"])
        table.columns = pd.Index(["id", "population", "n_test", "score"])
        score = factor * pd.to_numeric(table["score"], errors="coerce")
        table = table.assign(id=table["id"].astype(str), row=np.arange(len(table)), score=score)
        table = table[(table["population"] == "seen") & score.notna()].set_index("id")[["row", "n_test", "score"]]
        return table if table.index.is_unique else table[:0]

    @cached_property
    def samples(self) -> pd.DataFrame | None:
        """The scores of all test samples, from test_samples.npz; None without them, or if they do not fit the clients.

        Columns: row (in clients.parquet), id, and the measure: whether the prediction is right, bool, or float64.
        """
        clients = self.clients
        with suppress(Exception):  # a zip archive, headers and arrays can each be damaged, with an error of their own
            with regular(self.folder / "test_samples.npz").open("rb") as raw, np.load(raw, allow_pickle=False) as file:
                row, values, measure = np.repeat(np.arange(len(clients)), file["n"]), file["values"], file["measure"]
            values = values if values.dtype == bool else values.astype(np.float64)
            return pd.DataFrame({"row": row, "id": clients["id"].to_numpy()[row], str(measure): values})
        return None


_OPTIONAL = (
    *("environment", "honest", "val", "unseen", "reference", "data", "not_finite"),
    *("class_scores", "convergence"),
)
"""Keys of results.json with further keys; anything else there counts as nothing."""
_NEUTRAL = {"seed": 0, "data_dir": "", "run_dir": None}
"""Values set in a configuration before it is resolved, so that values derived from them (dataset.seed) agree too."""


def find_runs(folders: Sequence[str | Path]) -> tuple[list[Run], list[str]]:
    """All runs at any depth below `folders`, each once and sorted by path, and a line for each that cannot be read.

    A run is a folder with results.json or .hydra/config.yaml. A folder without a run has a line, too. Links to folders
    are not followed. UserError: a folder is missing.
    """
    places: dict[Path, Path] = {}
    runs: list[Run] = []
    skipped: list[str] = []
    for folder in map(Path, folders):
        require(folder.is_dir(), f"{one_line(folder)}: no such folder")
        result = {path.parent for path in folder.rglob("results.json")}
        result |= {path.parents[1] for path in folder.rglob(".hydra/config.yaml")}
        if not result:
            skipped.append(f"{one_line(folder)}: no run in it or below (a run is a folder with .hydra/config.yaml)")
        for place in sorted(result):
            places.setdefault(place.resolve(), place)
    for place in places.values():
        try:
            runs.append(read_run(place))
        except UserError as error:
            skipped.append(f"{one_line(place)}: {error}")
    return runs, skipped


def read_run(folder: Path) -> Run:
    """Reads one run; UserError says, without the folder, that it is unfinished or broken."""
    path = folder / "results.json"
    require(path.exists(), "unfinished: no results.json")
    try:
        results = json.loads(regular(path).read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"broken: results.json cannot be read ({type(error).__name__})") from error
    require(isinstance(results, dict), "broken: results.json has no keys")
    results |= {key: {} for key in _OPTIONAL if not isinstance(results.get(key), dict)}
    if isinstance(source := results["data"].get("source"), str):  # older runs are called table, npz, ...
        results["dataset"] = dataset_name(str(results.get("dataset")), source)
    return Run(folder, results, read_config(folder / ".hydra" / "config.yaml"))


def read_config(path: Path) -> dict[str, Any]:
    """A run's configuration with dotted keys, resolved as if its seed were 0."""
    return flatten(resolved(read_yaml(path) | _NEUTRAL))
