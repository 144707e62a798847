"""Search for runs, and a check of what they say: finished ones are read, the others skipped with a reason."""

import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from fedem_lightning.errors import UserError, one_line, require
from fedem_lightning.records.configs import read_yaml, resolved
from fedem_lightning.records.files import regular
from fedem_lightning.report.finished_run import Run
from fedem_lightning.settings.keys import flatten

_OPTIONAL = (
    *("environment", "honest", "val", "unseen", "reference", "recovery", "components", "data", "not_finite"),
    "class_scores",
)
"""Keys of results.json with further keys; anything else there counts as nothing."""
_NEUTRAL = {"seed": 0, "data_dir": "", "run_dir": None}
"""Values set in a configuration before it is resolved, so that values derived from them (dataset.seed) agree too."""


def find_runs(folders: Sequence[str | Path]) -> tuple[list[Run], list[str]]:
    """All runs at any depth below `folders`, each once and sorted by path, and a line for each that cannot be read.

    A run is a folder with results.json or .hydra/config.yaml. A folder without a run, and one that cannot be opened,
    have a line, too. Links to folders are not followed.

    Raises:
        UserError: a folder is missing.

    """
    places: dict[Path, Path] = {}
    runs: list[Run] = []
    skipped: list[str] = []
    for folder in map(Path, folders):
        require(folder.is_dir(), f"{one_line(folder)}: no such folder")
        closed: list[OSError] = []
        found = sorted(_places(folder, closed.append))
        skipped += [f"{one_line(error.filename)}: cannot be opened ({error.strerror})" for error in closed]
        if not found and not closed:
            skipped.append(f"{one_line(folder)}: no run in it or below (a run is a folder with .hydra/config.yaml)")
        for place in found:
            places.setdefault(place.resolve(), place)
    for place in places.values():
        try:
            runs.append(read_run(place))
        except UserError as error:
            skipped.append(f"{one_line(place)}: {error}")
    return runs, skipped


def _places(folder: Path, closed: Callable[[OSError], None]) -> Iterator[Path]:
    """The folders of runs; `closed` gets the error of each folder that cannot be opened."""
    for place, below, files in os.walk(folder, onerror=closed):
        if "results.json" in files or (Path(place) / ".hydra" / "config.yaml").is_file():
            yield Path(place)
        below[:] = [name for name in below if name not in (".hydra", "checkpoints")]


def read_run(folder: Path) -> Run:
    """Reads one run.

    Raises:
        UserError: the run is unfinished or broken; the message says which, without the folder.

    """
    path = folder / "results.json"
    require(path.exists(), f"unfinished: no results.json{_progress(folder)}")
    try:
        results = json.loads(regular(path).read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"broken: results.json cannot be read ({type(error).__name__})") from error
    require(isinstance(results, dict), "broken: results.json has no keys")
    results |= {key: {} for key in _OPTIONAL if not isinstance(results.get(key), dict)}
    return Run(folder, results, read_config(folder / ".hydra" / "config.yaml"))


def read_config(path: Path) -> dict[str, Any]:
    """A run's configuration with dotted keys, resolved as if its seed were 0.

    Raises:
        UserError: see `read_yaml` and `resolved`.

    """
    return flatten(resolved(read_yaml(path) | _NEUTRAL))


def _progress(folder: Path) -> str:
    """The last round of an unfinished run, as metrics.csv has it."""
    metrics = Run(folder, {}, {}).metrics
    known = metrics is not None and "round" in metrics and metrics["round"].notna().any()
    return f"; round {metrics['round'].max():.0f}" if metrics is not None and known else ""
