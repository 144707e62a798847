"""Search for runs, and a check of what they say: finished ones are read, the others skipped with a reason."""

import json
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedem_lightning.errors import UserError, one_line, require
from fedem_lightning.records.configs import flatten, read_yaml, resolved
from fedem_lightning.records.files import regular
from fedem_lightning.report.finished_run import Run

SUMMARIES = ("weighted", "pooled", "mean", "bottom_decile", "worst")
"""How results.json sums up a score over clients."""
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
_NEUTRAL = {"seed": 0, "data_dir": "", "run_dir": None}
"""Values set in a configuration before it is resolved, so that values derived from them (dataset.seed) agree too."""


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
        require(folder.is_dir(), f"{one_line(folder)}: no such folder")
        found = sorted(_places(folder))
        if not found:
            skipped.append(Skipped(folder, "no run in it or below (a run is a folder with .hydra/config.yaml)"))
        for place in found:
            places.setdefault(place.resolve(), place)
    require(bool(places), "; ".join(f"{one_line(s.folder)}: {s.reason}" for s in skipped))
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


def read_config(path: Path) -> dict[str, Any]:
    """A run's configuration with dotted keys, resolved as if its seed were 0.

    Raises:
        UserError: see `read_yaml` and `resolved`.

    """
    return flatten(resolved(read_yaml(path) | _NEUTRAL))


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
            for name in SUMMARIES:
                if name not in sums:
                    return f"{place}.{measure}.{name}"
                if not isinstance(sums[name], (int, float, type(None))):
                    raise TypeError(name)
    return None
