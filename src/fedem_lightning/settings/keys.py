"""Keys of a configuration that the package treats apart, and the configurations that come with it.

Other keys, such as algorithm.batch_size, are in no list: the constructor that takes them says all there is to say.
"""

import difflib
import functools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

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
        *("backbone", "n_clients", "adaptation", "engine"),
        *("aggregation", "compression", "faults", "seed"),
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
LOOKS = ("algorithm.title",)
"""Of a method in tables and figures."""
MAY_CHANGE = (
    *("trainer", "callbacks", "logger", *LOOKS, *FINDS_RUN),
    *(key for key in PASSED_ON if key != "local_training"),
    "dataset.standardize_targets",  # the model tells
)
"""A resumed run may have other values of them."""
_OF_TRAINER = (
    *("devices", "accelerator", "num_nodes", "strategy", "profiler", "enable_progress_bar", "deterministic"),
    "benchmark",
    *("check_val_every_n_epoch", "log_every_n_steps", "num_sanity_val_steps", "enable_model_summary"),
    *("enable_checkpointing", "inference_mode", "use_distributed_sampler", "default_root_dir"),
)
WITHOUT_EFFECT = (
    *("engine", "callbacks", "logger", "hydra", "scores", "data_dir", "dataset.data_dir"),
    *FINDS_RUN,
    *(f"trainer.{name}" for name in _OF_TRAINER),
)
"""They change nothing that is scored."""


_OWN = ("table", "npz", "hub", "folder", "pfllib")
"""Choices of data sets that are files of a user's own."""
_ENDINGS = (".csv", ".parquet", ".npz", ".json", ".jsonl")


def dataset_name(choice: str, source: Any) -> str:
    """What results call a data set: a user's own by its file, without the ending; others by their choice."""
    if choice not in _OWN or not isinstance(source, str):
        return choice
    path = Path(source)
    name = path.stem if path.suffix.lower() in _ENDINGS else path.name
    return f"{name} ({choice})" if name in shipped("dataset") else name or choice


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


_PACKAGED = Path(__file__).parents[1] / "configs"
CONFIG_DIR = _PACKAGED if _PACKAGED.is_dir() else Path(__file__).parents[3] / "configs"
"""Configurations: in a wheel inside the package, in a checkout at its root."""


def choices() -> dict[str, list[str]]:
    """The choices of each configuration group, by the group's name."""
    folders = sorted({path.parent for path in CONFIG_DIR.rglob("*.yaml") if "groups" not in path.parts} - {CONFIG_DIR})
    files = {str(f.relative_to(CONFIG_DIR)): sorted(path.stem for path in f.glob("*.yaml")) for f in folders}
    return files | {group: [*result] for group, result in small_groups().items()}


@functools.cache
def small_groups() -> dict[str, dict[str, dict[str, Any]]]:
    """Groups whose choices stand in one file, groups/GROUP.yaml; `settings.configs` hands them to Hydra."""
    folder = CONFIG_DIR / "groups"
    return {str(path.relative_to(folder).with_suffix("")): _read(path) for path in sorted(folder.rglob("*.yaml"))}


@functools.cache
def shipped(group: str) -> dict[str, dict[str, Any]]:
    """What the choices of a group say, without the files that they build on, by the name of the choice."""
    files = {path.stem: _read(path) for path in sorted((CONFIG_DIR / group).glob("*.yaml"))}
    return small_groups().get(group, files)


def _read(path: Path) -> dict[str, Any]:
    result: dict[str, Any] = yaml.load(path.read_text(encoding="utf-8"), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return result or {}


def method_title(algorithm: str, own: Any = None) -> str:
    """A method for readers, as its paper writes it: qffl -> q-FFL, fedavg+finetune -> FedAvg + finetune."""
    name, _, adaptation = algorithm.partition("+")
    titles = {method: tree.get("title") for method, tree in shipped("algorithm").items()}
    # a title of another method is that of the file on which this method's file builds
    title = own if own and own not in titles.values() else titles.get(name)
    return " + ".join(filter(None, (str(title or name), adaptation)))


def implied_adaptation(algorithm: str) -> str | None:
    """The adaptation that a shipped method's file chooses, which its name implies: fedavg_plus -> finetune."""
    entries = shipped("algorithm").get(algorithm, {}).get("defaults", [])
    chosen = {group: name for entry in entries if isinstance(entry, dict) for group, name in entry.items()}
    return next((name for group, name in chosen.items() if group.startswith("override /adaptation")), None)


SAME = {
    **{name: "per_fedavg" for name in ("peravg", "perfedavgfo", "fedmaml", "reptile")},
    **{name: "fedavg_plus" for name in ("fedavgft", "fedavgfinetune", "finetune", "ft")},
    **{name: "fedavg aggregation=private" for name in ("dpfedavg", "dpfedavgfixed", "dpfedavgadaptive", "fedavgdp")},
    **{name: "qffl" for name in ("qfedavg", "qffedavg")},
    **{name: "clustered" for name in ("cfl", "clusteredfl")},
    **{name: "local" for name in ("localonly", "standalone", "separate")},
    **{name: "fedavg aggregation=multi_krum" for name in ("krum", "multikrum")},
    **{name: f"fedavg algorithm/server_optimizer={name}" for name in ("fedadam", "fedyogi", "fedadagrad")},
    "fedopt": "fedavg algorithm/server_optimizer=fedadam",
    "fedmedian": "fedavg aggregation=median",
    "fedtrimmedavg": "fedavg aggregation=trimmed_mean",
    "fedmtl": "mocha",
    "ifca": "hypcluster",
}
"""What to write after `algorithm=`, by the folded name that peers use for the same method."""


def fold(name: str) -> str:
    """A name without case and separators: LG-FedAvg and lg_fedavg are the same."""
    return "".join(filter(str.isalnum, name)).lower()


def nearest(name: str, names: Iterable[str]) -> str | None:
    """The one of `names` that somebody may have meant: in other case, with two letters swapped, or spelt alike."""
    folded, typed = {fold(other): other for other in names}, fold(name)
    swapped = (other for other in folded if sorted(other) == sorted(typed))
    near = typed if typed in folded else next(iter([*swapped, *difflib.get_close_matches(typed, folded, n=1)]), None)
    return None if near is None else folded[near]
