"""Search for runs, and reading of their files."""

import json
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from fedem_lightning.errors import UserError, require
from fedem_lightning.records.files import regular
from fedem_lightning.records.measures import headline
from fedem_lightning.report.configs import read_config
from fedem_lightning.report.samples import Samples, Scored, read_samples, scored_clients
from fedem_lightning.report.text import plain
from fedem_lightning.run.method_names import adaptation_of

SUMS = ("weighted", "pooled", "mean", "bottom_decile", "worst")
_OPTIONAL = (
    *("environment", "honest", "val", "unseen", "reference", "recovery", "components", "bounds", "data", "not_finite"),
    "class_scores",
)
"""Keys of results.json with further keys; anything else there counts as nothing."""
_REQUIRED: dict[str, type] = {
    "algorithm": str,
    "dataset": str,
    "backbone": str,
    "seed": int,
    "rounds": int,
    "n_clients": int,
    "train": dict,
    "test": dict,
    "seconds": dict,
    "communication": dict,
}


@dataclass(frozen=True)
class Run:
    """A complete run.

    Args:
        folder: the run's folder.
        results: content of its results.json, see docs/results.md.
        config: the resolved configuration with dotted keys; seed, data_dir and run_dir have neutral values.

    """

    folder: Path
    results: dict[str, Any]
    config: dict[str, Any]

    @property
    def algorithm(self) -> str:
        """The algorithm's name, with "+NAME" for an adaptation after it."""
        name: str = self.results["algorithm"]
        adaptation = self.results.get("adaptation") or str(self.config.get("adaptation._target_", "")).split(".")[-1]
        adaptation = str(adaptation).lower()
        if adaptation == "interpolate" and self.config.get("adaptation.objective") == "mixture":
            adaptation = "mapper"
        if adaptation in ("", "none", "noadaptation") or adaptation == adaptation_of(name):
            return plain(name)
        return plain(f"{name}+{adaptation}")

    @property
    def seed(self) -> int:
        """The run's seed."""
        return int(self.results["seed"])

    @property
    def measure(self) -> tuple[str, float]:
        """The score that tables show, and its factor in the tables.

        Of a density it is the loss, also where an older version has saved an accuracy.
        """
        scores = self.results["test"] or self.results["train"]
        if "minimum_loss" in (self.results.get("reference") or {}):
            return "loss", 1.0
        return headline(scores)[:2]

    @property
    def participation(self) -> float:
        """The fraction of the clients in a round."""
        share = float(self.config.get("algorithm.participation", 1.0))
        return share if share <= 1 else min(1.0, share / self.results["n_clients"])

    @property
    def date(self) -> tuple[str, float]:
        """The date when the run ended, for sorting; runs without a date in results.json count as older."""
        date = self.results["environment"].get("date") if self.results.get("environment") else ""
        return str(date or ""), (self.folder / "results.json").stat().st_mtime

    @cached_property
    def metrics(self) -> pd.DataFrame | None:
        """The content of metrics.csv, numbers or NaN; None if it is missing or unreadable."""
        try:
            table = pd.read_csv(regular(self.folder / "metrics.csv"))
            for name in table.select_dtypes(exclude="number"):  # text among the numbers of a damaged file
                table[name] = pd.to_numeric(table[name], errors="coerce")
            return table
        except Exception:  # whatever pandas meets in a damaged file
            return None

    @cached_property
    def costs(self) -> pd.DataFrame | None:
        """`metrics` with a column `megabytes`: up and down together, for each client that trains; None without them."""
        metrics = self.metrics
        if metrics is None or not {"round", "up_megabytes", "down_megabytes"} <= set(metrics):
            return None
        total = metrics["up_megabytes"] + metrics["down_megabytes"]
        return metrics.assign(megabytes=total / max(1, self.results["n_clients"]))

    @cached_property
    def clients(self) -> pd.DataFrame | None:
        """The content of clients.parquet; None if it is missing or unreadable."""
        try:
            table = pd.read_parquet(regular(self.folder / "clients.parquet"))
        except Exception:  # whatever pyarrow meets in a damaged file
            return None
        return table if "population" in table and table.columns.is_unique else None

    def scored(self, split: str = "test", population: str = "seen") -> Scored | None:
        """The clients with samples in a split, and their scores; None if clients.parquet does not give them."""
        key = (split, population)
        if key not in self._scored:
            table = self.clients
            self._scored[key] = None if table is None else scored_clients(table, population, split, self.measure)
        return self._scored[key]

    @cached_property
    def _scored(self) -> dict[tuple[str, str], Scored | None]:
        return {}

    @cached_property
    def samples(self) -> Samples | None:
        """The content of test_samples.npz; None if it is missing, unreadable, or does not fit clients.parquet."""
        return None if self.clients is None else read_samples(self.folder, len(self.clients))


@dataclass(frozen=True)
class Skipped:
    """A run that tables leave out, and the reason."""

    folder: Path
    reason: str


def find_runs(
    folders: Sequence[str | Path], known: dict[Path, tuple[float, Run]] | None = None
) -> tuple[list[Run], list[Skipped]]:
    """All runs at any depth below `folders`, complete and skipped ones, each once and sorted by path.

    A folder without a run is among the skipped ones. Links to folders are not followed.

    Args:
        folders: any folders.
        known: runs by folder that an earlier call has read, with the time of their results; new ones are added.

    Raises:
        UserError: a folder is missing, or there is no run in any of them.

    """
    places: dict[Path, Path] = {}
    runs, skipped = [], []
    for folder in map(Path, folders):
        require(folder.is_dir(), f"{plain(folder)}: no such folder")
        found = sorted(_places(folder))
        if not found:
            skipped.append(Skipped(folder, "no run in it or below (a run is a folder with .hydra/config.yaml)"))
        for place in found:
            places.setdefault(place.resolve(), place)
    require(bool(places), "; ".join(f"{plain(s.folder)}: {s.reason}" for s in skipped))
    for place in places.values():
        try:
            runs.append(_read_once(place, {} if known is None else known))
        except UserError as error:
            skipped.append(Skipped(place, str(error)))
    return runs, skipped


def _places(folder: Path) -> Iterator[Path]:
    """The folders with .hydra/config.yaml."""
    for place, below, _ in os.walk(folder):
        if ".hydra" in below and (Path(place) / ".hydra" / "config.yaml").is_file():
            yield Path(place)
        below[:] = [name for name in below if name not in (".hydra", "checkpoints")]


def _read_once(folder: Path, known: dict[Path, tuple[float, Run]]) -> Run:
    path = folder / "results.json"
    written = path.stat().st_mtime if path.is_file() else math.nan
    if folder not in known or known[folder][0] != written:
        known[folder] = written, read_run(folder)
    return known[folder][1]


def read_run(folder: Path) -> Run:
    """Reads one run.

    Raises:
        UserError: the run is unfinished or broken; the message says which, without the folder.

    """
    path = folder / "results.json"
    require(path.is_file(), f"unfinished: no results.json{_last_round(folder)}")
    try:
        results = json.loads(regular(path).read_text())
        missing = _first_missing(results)
    except (OSError, ValueError, RecursionError) as error:
        raise UserError("broken: results.json is unreadable") from error
    except (AttributeError, TypeError) as error:
        raise UserError("broken: results.json holds something else than scores") from error
    require(missing is None, f"broken: results.json has no {missing}")
    results |= {key: {} for key in _OPTIONAL if not isinstance(results.get(key), dict)}
    return Run(folder, results, _planned(read_config(folder / ".hydra" / "config.yaml"), results["rounds"]))


def _planned(config: dict[str, Any], rounds: int) -> dict[str, Any]:
    """The configuration with as many rounds as were run: older versions left it as it was when they went on."""
    planned = config.get("trainer.max_epochs")
    return config | {"trainer.max_epochs": rounds} if isinstance(planned, int) and 0 <= planned < rounds else config


def _last_round(folder: Path) -> str:
    """What an unfinished run says of its last round."""
    metrics = Run(folder, {}, {}).metrics
    if metrics is None or "round" not in metrics or not math.isfinite(last := metrics["round"].max()):
        return ""
    return f"; the last round in metrics.csv is {last:.0f}"


def _first_missing(results: Any) -> str | None:
    """The first key that tables need and results.json lacks."""
    if not isinstance(results, dict):
        return "keys"
    for key, kind in _REQUIRED.items():
        if not isinstance(results.get(key), kind):
            return key
    for key in ("up_bytes", "down_bytes"):
        if not isinstance(results["communication"].get(key), (int, float)):
            return f"communication.{key}"
    unseen = (results.get("unseen") or {}).get("test") or {}
    for place, scores in (("train", results["train"]), ("test", results["test"]), ("unseen.test", unseen)):
        for measure, sums in scores.items():
            for name in SUMS:
                if name not in sums:
                    return f"{place}.{measure}.{name}"
                if not isinstance(sums[name], (int, float, type(None))):
                    raise TypeError(name)
    return None
