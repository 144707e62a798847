"""Keys of a configuration that the package treats apart.

Other keys, such as algorithm.batch_size, are in no list: the constructor that takes them says all there is to say.
"""

from collections.abc import Iterable
from typing import Any

GROUPS = (
    *("algorithm", "adaptation", "dataset", "backbone", "engine", "trainer", "faults", "aggregation"),
    *("compression", "callbacks", "logger", "network"),
)
"""Those that make parts of a run."""
NEEDED = ("algorithm", "dataset", "backbone", "engine", "trainer")
"""Groups of which a run needs one choice."""
NAMED = ("callbacks", "logger", "network")
"""Groups that hold several parts by name, or none."""
HANDED = {
    "algorithm": (
        *("backbone", "n_clients", "adaptation", "engine", "networks", "aggregation", "compression", "faults"),
        "seed",
    ),
    "trainer": ("callbacks", "logger", "plugins", "default_root_dir"),
}
"""Arguments that a run itself hands over; a configuration cannot set them."""
CALLS_RUN = ("algorithm", "adaptation", "dataset", "backbone", "experiment")
"""Groups by whose choices results.json calls a run."""
FINDS_RUN = ("run_dir", "ckpt_path")
"""They say where the run is, and nothing of the run itself."""
OF_SETTING = ("dataset", "backbone", "fidelity")
"""Runs that differ in them stand in different tables."""
PASSED_ON = (
    *("n_components", "initialization", "personalize_steps", "local_training"),
    *("learning_rates", "default_lr", "method_settings", "rates_chosen_for"),
)
"""They change the results through keys of the algorithm, where reports see it."""
UNCHOSEN = (None, "other_data")
"""What results.json says under `chosen_by` of a learning rate that nobody has chosen for a run's data."""
MAY_CHANGE = (
    *("trainer", "callbacks", "logger", "algorithm.title", *FINDS_RUN),
    *(key for key in PASSED_ON if key != "local_training"),
)
"""A resumed run may have other values of them."""
_OF_TRAINER = (
    *(
        "devices",
        "accelerator",
        "num_nodes",
        "strategy",
        "profiler",
        "enable_progress_bar",
        "deterministic",
        "benchmark",
    ),
    *("check_val_every_n_epoch", "log_every_n_steps", "num_sanity_val_steps", "enable_model_summary"),
    *("enable_checkpointing", "inference_mode", "use_distributed_sampler", "default_root_dir"),
)
WITHOUT_EFFECT = (
    *("engine", "callbacks", "logger", "hydra", "data_dir", "dataset.data_dir", *FINDS_RUN),
    *(f"trainer.{name}" for name in _OF_TRAINER),
)
"""They change nothing that is scored."""


def flatten(tree: Any, prefix: str = "") -> dict[str, Any]:
    """Nested dictionaries as one, with dotted keys."""
    if not isinstance(tree, dict):
        return {prefix: tree}
    flat = {}
    for key, part in tree.items():
        flat.update(flatten(part, f"{prefix}.{key}" if prefix else str(key)))
    return flat


def short(key: str, config: Iterable[str]) -> str:
    """The shortest ending of a dotted key that no other key of `config` has."""
    parts, others = key.split("."), [f".{other}" for other in config if other != key]
    endings = (".".join(parts[-n:]) for n in range(1, len(parts)))
    return next((ending for ending in endings if not any(other.endswith(f".{ending}") for other in others)), key)
