"""Search for runs, and a check of what they say: finished ones are read, the others skipped with a reason."""

import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from pydantic import BaseModel, ValidationError

from fedem_lightning.errors import UserError, one_line, require
from fedem_lightning.records.configs import flatten, read_yaml, resolved
from fedem_lightning.records.files import regular
from fedem_lightning.records.measures import headline
from fedem_lightning.report.finished_run import Run

OPTIONAL = (
    *("environment", "honest", "val", "unseen", "reference", "recovery", "components", "data", "not_finite"),
    "class_scores",
)
"""Keys of results.json with further keys; anything else there counts as nothing."""
_NEUTRAL = {"seed": 0, "data_dir": "", "run_dir": None}
"""Values set in a configuration before it is resolved, so that values derived from them (dataset.seed) agree too."""


class _Sums(BaseModel):
    weighted: float | None
    pooled: float | None
    mean: float | None
    bottom_decile: float | None
    worst: float | None


class _Bytes(BaseModel):
    up_bytes: float
    down_bytes: float


class _Results(BaseModel):
    """What tables need of results.json."""

    algorithm: str
    dataset: str
    backbone: str
    seed: int
    rounds: int
    n_clients: int
    train: dict[str, _Sums]
    test: dict[str, _Sums]
    seconds: dict[str, Any]
    communication: _Bytes


@dataclass(frozen=True)
class Skipped:
    """A run that tables leave out, and the reason."""

    folder: Path
    reason: str


def read_run(folder: Path) -> Run:
    """Reads one run.

    Raises:
        UserError: the run is unfinished or broken; the message says which, without the folder.

    """
    path = folder / "results.json"
    require(path.is_file(), f"unfinished: no results.json{_progress(folder)}")
    try:
        results = json.loads(regular(path).read_text())
        _Results.model_validate(results, strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        raise UserError(f"broken: results.json: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error
    except (OSError, ValueError, RecursionError) as error:
        raise UserError("broken: results.json is unreadable") from error
    results |= {key: {} for key in OPTIONAL if not isinstance(results.get(key), dict)}
    return Run(folder, results, read_config(folder / ".hydra" / "config.yaml"))


def find_runs(folders: Sequence[str | Path], read: Callable[[Path], Run] = read_run) -> tuple[list[Run], list[Skipped]]:
    """All runs at any depth below `folders`, complete and skipped ones, each once and sorted by path.

    A folder without a run is among the skipped ones. Links to folders are not followed.

    Args:
        folders: any folders.
        read: `read_run`, or the same with a memory.

    Raises:
        UserError: a folder is missing.

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
    for place in places.values():
        try:
            runs.append(read(place))
        except UserError as error:
            skipped.append(Skipped(place, str(error)))
    return runs, skipped


def _places(folder: Path) -> Iterator[Path]:
    """The folders with .hydra/config.yaml."""
    for place, below, _ in os.walk(folder):
        if ".hydra" in below and (Path(place) / ".hydra" / "config.yaml").is_file():
            yield Path(place)
        below[:] = [name for name in below if name not in (".hydra", "checkpoints")]


def read_config(path: Path) -> dict[str, Any]:
    """A run's configuration with dotted keys, resolved as if its seed were 0.

    Raises:
        UserError: see `read_yaml` and `resolved`.

    """
    return flatten(resolved(read_yaml(path) | _NEUTRAL))


def _progress(folder: Path) -> str:
    """How far an unfinished run has come: its round, and its last scores in metrics.csv."""
    metrics = Run(folder, {}, {}).metrics
    if metrics is None or "round" not in metrics or not metrics["round"].notna().any():
        return ""
    try:
        planned = read_config(folder / ".hydra" / "config.yaml").get("trainer.max_epochs")
    except UserError:
        planned = None
    said = f"; round {metrics['round'].max():.0f}" + (f" of {planned}" if isinstance(planned, int) else "")
    for split in ("val", "test"):
        measures = [str(c).removeprefix(f"{split}/") for c in metrics if str(c).startswith(f"{split}/")]
        name, factor, _ = headline(measures)
        values = metrics[f"{split}/{name}"].dropna() if name in measures else pd.Series(dtype=float)
        if len(values):
            said += f", {split} {name} {factor * float(values.iloc[-1]):.4g}"
    return said
