"""The configurations that come with the package: where they are, what there is to choose, what methods are called."""

import functools
from pathlib import Path
from typing import Any

import yaml

_PACKAGED = Path(__file__).parents[1] / "configs"
CONFIG_DIR = _PACKAGED if _PACKAGED.is_dir() else Path(__file__).parents[3] / "configs"
"""Configurations: in a wheel inside the package, in a checkout at its root."""


def choices() -> dict[str, list[str]]:
    """The choices of each configuration group, by the group's name."""
    folders = sorted({path.parent for path in CONFIG_DIR.rglob("*.yaml") if "groups" not in path.parts} - {CONFIG_DIR})
    files = {str(f.relative_to(CONFIG_DIR)): sorted(path.stem for path in f.glob("*.yaml")) for f in folders}
    return files | {group: [*found] for group, found in small_groups().items()}


@functools.cache
def small_groups() -> dict[str, dict[str, dict[str, Any]]]:
    """Groups whose choices stand in one file, groups/GROUP.yaml; `records.configs` hands them to Hydra."""
    folder = CONFIG_DIR / "groups"
    return {str(path.relative_to(folder).with_suffix("")): _read(path) for path in sorted(folder.rglob("*.yaml"))}


@functools.cache
def shipped(group: str) -> dict[str, dict[str, Any]]:
    """What the choices of a group say, without the files that they build on, by the name of the choice."""
    files = {path.stem: _read(path) for path in sorted((CONFIG_DIR / group).glob("*.yaml"))}
    return small_groups().get(group, files)


def _read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.load(path.read_text(encoding="utf-8"), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return found or {}


def method_title(algorithm: str, own: Any = None) -> str:
    """A method for readers, as its paper writes it: qffl -> q-FFL, fedavg+finetune -> FedAvg + finetune.

    Args:
        algorithm: its name, with "+NAME" for an adaptation after it.
        own: `algorithm.title` of the run's configuration. One that the package gives another method is no title of this
            one: its file builds on that method's.

    Returns:
        The title, with the adaptation; the name stands for a title where there is none.

    """
    name, _, adaptation = algorithm.partition("+")
    titles = {method: tree.get("title") for method, tree in shipped("algorithm").items()}
    title = own if own and own not in titles.values() else titles.get(name)
    return " + ".join(filter(None, (str(title or name), adaptation)))


def implied_adaptation(algorithm: str) -> str | None:
    """The adaptation that a shipped method's file chooses, which its name implies: fedavg_plus -> finetune."""
    entries = shipped("algorithm").get(algorithm, {}).get("defaults", [])
    chosen = {group: name for entry in entries if isinstance(entry, dict) for group, name in entry.items()}
    return next((name for group, name in chosen.items() if group.startswith("override /adaptation")), None)
