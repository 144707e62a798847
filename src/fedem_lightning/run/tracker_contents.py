"""What trackers get: what a run is called there, its configuration, and the numbers of its results."""

import hashlib
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from omegaconf import DictConfig

from fedem_lightning.records.configs import flatten, resolved
from fedem_lightning.records.measures import HIGHER_IS_BETTER, headline
from fedem_lightning.records.secrets import HIDDEN, hide_in_overrides, hide_in_tree, is_secret
from fedem_lightning.run.resuming import tree_of
from fedem_lightning.run.trackers import Outcome, Tracked
from fedem_lightning.settings.keys import BY_NAME

LONGEST_NAME, LONGEST_TAG = 120, 64
"""Characters; W&B refuses names of more than 128, and longer tags."""


def tracked(
    folder: Path, config: DictConfig, choices: Mapping[str, str], overrides: Sequence[str], resumed_rounds: int = 0
) -> Tracked:
    """Names a run after its experiment, method, data and the keys that the user has changed.

    Args:
        folder: of the run.
        config: the composed configuration.
        choices: choices of the groups algorithm, adaptation, dataset and, if there is one, experiment, by name.
        overrides: what the user typed.
        resumed_rounds: rounds of the checkpoint from which the run continues.

    """
    typed = [override.lstrip("+").partition("=")[::2] for override in hide_in_overrides(overrides)]
    experiment = choices.get("experiment")
    adapted = choices.get("adaptation", "none") not in ("none", choices["algorithm"])
    algorithm = f"{choices['algorithm']}+{choices['adaptation']}" if adapted else choices["algorithm"]
    changed = [f"{key}={value}" for key, value in typed if not _unlisted(key)]
    parts = [*([experiment] if experiment else []), algorithm, choices["dataset"], *changed]
    group = _clipped(", ".join(parts), LONGEST_NAME - len(", seed=4294967295"))
    tags = {"algorithm": algorithm, "dataset": choices["dataset"], "seed": str(config.seed)}
    if experiment:
        tags = {"experiment": experiment, **tags}
    tags = {name: _clipped(tag, LONGEST_TAG) for name, tag in tags.items()}
    return Tracked(folder, group, f"{group}, seed={config.seed}", tags, flat_config(config), resumed_rounds)


def _unlisted(key: str) -> bool:
    """Whether a key that was typed is no part of the run's name, which says it otherwise, or has nothing to say."""
    part = BY_NAME.get(key.partition(".")[0])
    return (key in BY_NAME and not BY_NAME[key].listed) or (part is not None and part.effect == "none")


def _clipped(text: str, longest: int) -> str:
    """The text in one line; a digest keeps two long texts apart that begin alike."""
    line = " ".join(text.split())
    if len(line) <= longest:
        return line
    digest = hashlib.sha256(line.encode()).hexdigest()[:6]
    return f"{line[: longest - 7]}~{digest}"


def flat_config(config: DictConfig) -> dict[str, Any]:
    """The resolved configuration with dotted keys.

    Keys that hold secrets (`api_key`, `password`, `token`, ...) are left out. A value from the environment stays as it
    is written in the configuration, `${oc.env:NAME}`, also where another value is made of it.
    """
    flat = flatten(hide_in_tree(resolved(tree_of(config))))
    return {key: value for key, value in flat.items() if value != HIDDEN and not is_secret(key, value)}


def best_and_last(curves: pd.DataFrame) -> dict[str, float]:
    """Scores of the best and of the last round with an evaluation.

    The best round is chosen on validation alone: it has the best `val/accuracy` (of a regression `val/mse`, of a
    density `val/loss`), and of equal ones it is the first. `best/test/accuracy` is the test score of that round, not
    the largest test score.

    Args:
        curves: metrics.csv.

    Returns:
        best/NAME and last/NAME for every score NAME of validation and test, and their rounds best/round, last/round;
        without validation samples no best; empty without an evaluation.

    """
    names = [name for name in curves.columns if str(name).startswith(("val/", "test/"))]
    evaluated = curves.dropna(subset=names, how="all") if names else curves.iloc[:0]
    if evaluated.empty:
        return {}
    found = {"last": evaluated.iloc[-1]}
    measure = headline(str(name).partition("/")[2] for name in names)[0]
    if f"val/{measure}" in evaluated and evaluated[f"val/{measure}"].notna().any():
        values = evaluated[f"val/{measure}"].to_numpy()
        best = np.nanargmax(values) if HIGHER_IS_BETTER[measure] else np.nanargmin(values)
        found["best"] = evaluated.iloc[int(best)]
    return {f"{kind}/{name}": float(row[name]) for kind, row in found.items() for name in ["round", *names]}


def flat_numbers(results: dict[str, Any]) -> dict[str, float]:
    """The finite numbers of results.json, by paths such as results/test/accuracy/weighted; lists are left out."""
    flat = {f"results/{key.replace('.', '/')}": value for key, value in flatten(results).items()}
    return {
        key: value
        for key, value in flat.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    }


def score_histograms(clients: pd.DataFrame) -> dict[str, np.ndarray]:
    """Test scores of the scored clients for histograms: clients/test_MEASURE, and clients/unseen_test_MEASURE."""
    found = {}
    for population, group in clients.groupby("population"):
        before = "" if population == "seen" else f"{population}_"
        for column in (name for name in group if str(name).startswith("test_")):
            if len(values := group[column].dropna().to_numpy()):
                found[f"clients/{before}{column}"] = values
    return found


def outcome(folder: Path, results: dict[str, Any], clients: pd.DataFrame, figures: list[Path]) -> Outcome:
    """What trackers get of a finished run."""
    curves = folder / "metrics.csv"
    scores = best_and_last(pd.read_csv(curves)) if curves.exists() else {}
    files = [folder / "results.json", folder / "clients.parquet"]
    return Outcome(results["rounds"], scores, flat_numbers(results), clients, figures, files)
