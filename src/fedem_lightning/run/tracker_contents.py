"""What trackers get: what a run is called there, its configuration, and the numbers of its results."""

import hashlib
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from omegaconf import DictConfig

from fedem_lightning.records.configs import flatten, resolved, short
from fedem_lightning.records.measures import HIGHER_IS_BETTER, SPLITS, headline
from fedem_lightning.run.resuming import tree_of
from fedem_lightning.run.trackers import Outcome, Tracked
from fedem_lightning.settings.keys import BY_NAME

LONGEST_GROUP, LONGEST_TAG = 48, 64
"""Characters; W&B refuses longer tags, and its lists cut longer names."""
_ALSO_COUNTED = ("schema_version", "seed", "rounds", "communication", "stragglers", "rejected_updates")
"""Keys of results.json that the configuration or the metrics of the rounds have, too."""


def tracked(
    folder: Path, config: DictConfig, choices: Mapping[str, str], overrides: Sequence[str], resumed_rounds: int = 0
) -> Tracked:
    """Names a run after its experiment, method, data and the keys that the user has changed: fedem-femnist-s3.

    Args:
        folder: of the run.
        config: the composed configuration.
        choices: choices of the groups algorithm, adaptation, dataset and, if there is one, experiment, by name.
        overrides: what the user typed.
        resumed_rounds: rounds of the checkpoint from which the run continues.

    """
    typed = [override.lstrip("+").partition("=")[::2] for override in overrides]
    experiment = choices.get("experiment")
    adapted = choices.get("adaptation", "none") not in ("none", choices["algorithm"])
    algorithm = f"{choices['algorithm']}+{choices['adaptation']}" if adapted else choices["algorithm"]
    flat, tags = flat_config(config), {"algorithm": algorithm, "dataset": choices["dataset"], "seed": str(config.seed)}
    changed = [(key, value) for key, value in typed if not _unlisted(key)]
    if experiment:
        tags = {"experiment": experiment, **tags}
    parts = [algorithm, choices["dataset"], *([experiment] if experiment not in (None, choices["dataset"]) else [])]
    tags = {name: _clipped(tag, LONGEST_TAG) for name, tag in tags.items()}
    group = _group(parts, changed, flat)
    return Tracked(folder, group, f"{group}-s{config.seed}", tags, flat, resumed_rounds)


def _group(parts: Sequence[str], changed: Sequence[tuple[str, str]], flat: Mapping[str, Any]) -> str:
    """The parts, and the changed keys by their last words: fedem-femnist-lr=0.1; a digest stands for many."""
    said = "-".join([*parts, *(f"{short(key, flat)}={value}" for key, value in changed)])
    if len(said) <= LONGEST_GROUP and not any(c.isspace() for c in said):
        return said
    everything = ", ".join([*parts, *(f"{key}={value}" for key, value in changed)])
    digest = hashlib.sha256(everything.encode()).hexdigest()[:6]
    return f"{'-'.join('-'.join(parts).split())[: LONGEST_GROUP - 7]}-{digest}"


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

    A value from the environment stays as it is written in the configuration, `${oc.env:NAME}`, also where another value
    is made of it.
    """
    return flatten(resolved(tree_of(config)))


def best_round(curves: pd.DataFrame) -> dict[str, float]:
    """Scores of the best round, which is chosen on validation alone.

    It has the best `val/accuracy` (of a regression `val/mse`, of a density `val/loss`), and of equal ones it is the
    first. `best/test/accuracy` is the test score of that round, not the largest test score.

    Args:
        curves: metrics.csv.

    Returns:
        best/round, best/val/MEASURE and best/test/MEASURE; empty without an evaluation of validation samples.

    """
    measure = headline(str(name).rpartition("/")[2] for name in curves.columns)[0]
    names = [name for split in ("val", "test") if (name := f"{split}/{measure}") in curves]
    if f"val/{measure}" not in names or not (values := curves[f"val/{measure}"].to_numpy(dtype=float)).size:
        return {}
    if np.isnan(values).all():
        return {}
    row = curves.iloc[int(np.nanargmax(values) if HIGHER_IS_BETTER[measure] else np.nanargmin(values))]
    return {f"best/{name}": float(row[name]) for name in ["round", *names]}


def named_scores(results: dict[str, Any]) -> dict[str, float]:
    """The finite scores of results.json, by the names that metrics.csv and `Trainer.test` give them.

    Returns:
        test/accuracy (weighted by training samples), test/accuracy_mean, test/accuracy_worst, ...; test_unseen/... of
        unseen and test_honest/... of honest clients.

    """
    populations = {"": results, "_unseen": results.get("unseen") or {}, "_honest": results.get("honest") or {}}
    found = {
        f"{split}{population}/{measure}" + ("" if kind == "weighted" else f"_{kind}"): value
        for population, scores in populations.items()
        for split in SPLITS
        for measure, sums in (scores.get(split) or {}).items()
        for kind, value in sums.items()
    }
    return {name: value for name, value in found.items() if _is_number(value)}


def other_numbers(results: dict[str, Any]) -> dict[str, float]:
    """The finite numbers of results.json that are no scores, by paths such as results/seconds/total; no lists."""
    left_out = (*SPLITS, "unseen", "honest", *_ALSO_COUNTED)
    flat = flatten({key: value for key, value in results.items() if key not in left_out})
    return {f"results/{key.replace('.', '/')}": value for key, value in flat.items() if _is_number(value)}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def outcome(folder: Path, results: dict[str, Any], clients: pd.DataFrame, figures: list[Path]) -> Outcome:
    """What trackers get of a finished run."""
    curves = folder / "metrics.csv"
    files = [folder / "results.json", folder / "clients.parquet"]
    return Outcome(
        rounds=results["rounds"],
        measure=headline(results["train"])[0],
        scores=named_scores(results),
        best=best_round(pd.read_csv(curves)) if curves.exists() else {},
        numbers=other_numbers(results),
        clients=clients,
        figures=figures,
        files=files,
    )
