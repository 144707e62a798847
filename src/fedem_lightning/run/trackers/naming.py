"""What a run is called in trackers, and what they show of its configuration."""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from fedem_lightning.records.configs import flatten, resolved
from fedem_lightning.records.secrets import HIDDEN, hide_in_overrides, hide_in_tree, is_secret
from fedem_lightning.run.config_history import tree_of
from fedem_lightning.run.trackers.base import Tracked

LONGEST_NAME, LONGEST_TAG = 120, 64
"""Characters; W&B refuses names of more than 128, and longer tags."""
_IN_THE_NAME = ("algorithm", "adaptation", "dataset", "experiment", "seed")
_WITHOUT_EFFECT = ("run_dir", "ckpt_path", "data_dir", "logger", "callbacks", "engine", "hydra")
_OF_THE_MACHINE = ("devices", "accelerator", "strategy", "num_nodes", "profiler", "enable_progress_bar")


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
    changed = [f"{key}={value}" for key, value in typed if not _leaves_scores_alone(key)]
    parts = [*([experiment] if experiment else []), algorithm, choices["dataset"], *changed]
    group = _clipped(", ".join(parts), LONGEST_NAME - len(", seed=4294967295"))
    tags = {"algorithm": algorithm, "dataset": choices["dataset"], "seed": str(config.seed)}
    if experiment:
        tags = {"experiment": experiment, **tags}
    tags = {name: _clipped(tag, LONGEST_TAG) for name, tag in tags.items()}
    return Tracked(folder, group, f"{group}, seed={config.seed}", tags, flat_config(config), resumed_rounds)


def _leaves_scores_alone(key: str) -> bool:
    first, _, rest = key.partition(".")
    return key in _IN_THE_NAME or first in _WITHOUT_EFFECT or (first == "trainer" and rest in _OF_THE_MACHINE)


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
