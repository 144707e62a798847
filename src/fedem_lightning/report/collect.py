"""Search for runs, and reading of their files."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
from omegaconf import DictConfig, OmegaConf, open_dict

import fedem_lightning.run.cli  # noqa: F401  registers the resolvers that configurations use
from fedem_lightning.errors import UserError, require
from fedem_lightning.report.samples import Samples, Scored, read_samples, scored_clients
from fedem_lightning.run.run_folder import flatten
from fedem_lightning.tasks import headline

SUMS = ("weighted", "pooled", "mean", "bottom_decile", "worst")
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
_INCLUDED = (("fedavg_plus", "finetune"), ("mapper", "mapper"))
"""Adaptations that the algorithm's name implies."""
_NEUTRAL = {"seed": 0, "data_dir": "", "run_dir": None}
"""Values set in a configuration before it is resolved, so that values derived from them (dataset.seed) agree too."""


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
        if adaptation in ("", "none", "noadaptation") or (name, adaptation) in _INCLUDED:
            return name
        return f"{name}+{adaptation}"

    @property
    def seed(self) -> int:
        """The run's seed."""
        return int(self.results["seed"])

    @property
    def measure(self) -> tuple[str, float]:
        """The score that tables show, and its factor in the tables; for a density it is the loss."""
        scores = self.results["test"] or self.results["train"]
        if "minimum_loss" in (self.results.get("reference") or {}):
            return "loss", 1.0
        name, factor, _ = headline(scores)
        return (name, factor) if name in scores else ("loss", 1.0)

    @property
    def participation(self) -> float:
        """The fraction of the clients in a round."""
        share = float(self.config.get("algorithm.participation", 1.0))
        return share if share <= 1 else min(1.0, share / self.results["n_clients"])

    @property
    def date(self) -> tuple[str, float]:
        """The date when the run ended, for sorting; runs without a date in results.json count as older."""
        date = self.results.get("environment", {}).get("date") or ""
        return str(date), (self.folder / "results.json").stat().st_mtime

    @cached_property
    def metrics(self) -> pd.DataFrame | None:
        """The content of metrics.csv, numbers or NaN; None if it is missing or unreadable."""
        try:
            return pd.read_csv(self.folder / "metrics.csv").apply(pd.to_numeric, errors="coerce")
        except (OSError, ValueError):  # pandas' own errors are ValueErrors
            return None

    @cached_property
    def clients(self) -> pd.DataFrame | None:
        """The content of clients.parquet; None if it is missing or unreadable."""
        try:
            return pd.read_parquet(self.folder / "clients.parquet")
        except (OSError, ValueError):
            return None

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


def find_runs(folders: Sequence[str | Path]) -> tuple[list[Run], list[Skipped]]:
    """All runs at any depth below `folders`, complete and skipped ones, each once and sorted by path.

    Raises:
        UserError: a folder is missing, or there is no run in it.

    """
    places: dict[Path, Path] = {}
    for folder in map(Path, folders):
        require(folder.is_dir(), f"{folder}: no such folder")
        found = sorted(p.parent.parent for p in folder.rglob("config.yaml") if p.parent.name == ".hydra")
        require(bool(found), f"{folder}: no run in it or below (a run is a folder with .hydra/config.yaml)")
        for place in found:
            places.setdefault(place.resolve(), place)
    runs, skipped = [], []
    for place in places.values():
        try:
            runs.append(read_run(place))
        except UserError as error:
            skipped.append(Skipped(place, str(error)))
    return runs, skipped


def read_run(folder: Path) -> Run:
    """Reads one run.

    Raises:
        UserError: the run is unfinished or broken; the message says which, without the folder.

    """
    path = folder / "results.json"
    require(path.is_file(), "unfinished: no results.json")
    try:
        results = json.loads(path.read_text())
        missing = _first_missing(results)
    except (OSError, ValueError) as error:
        raise UserError("broken: results.json is unreadable") from error
    except (AttributeError, TypeError) as error:
        raise UserError("broken: results.json holds something else than scores") from error
    require(missing is None, f"broken: results.json has no {missing}")
    return Run(folder, results, read_config(folder / ".hydra" / "config.yaml"))


def read_config(path: Path) -> dict[str, Any]:
    """A run's configuration, resolved as if its seed were 0, with dotted keys.

    Raises:
        UserError: the configuration is unreadable.

    """
    try:
        config = OmegaConf.load(path)
        assert isinstance(config, DictConfig)
        with open_dict(config):
            config.update(_NEUTRAL)
        return flatten(OmegaConf.to_container(config, resolve=True))
    except Exception as error:  # YAML, interpolations, a list instead of keys, ...
        raise UserError(f"broken: .hydra/config.yaml is unreadable ({type(error).__name__})") from error


def _first_missing(results: Any) -> str | None:
    """The first key that tables need and results.json lacks."""
    if not isinstance(results, dict):
        return "keys"
    for key, kind in _REQUIRED.items():
        if not isinstance(results.get(key), kind):
            return key
    for key in ("up_bytes", "down_bytes"):
        if key not in results["communication"]:
            return f"communication.{key}"
    unseen = (results.get("unseen") or {}).get("test") or {}
    for place, scores in (("train", results["train"]), ("test", results["test"]), ("unseen.test", unseen)):
        for measure, sums in scores.items():
            for name in SUMS:
                if name not in sums:
                    return f"{place}.{measure}.{name}"
    return None
