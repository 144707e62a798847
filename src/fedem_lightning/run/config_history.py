"""The configurations of a run: `.hydra/config.yaml` is the present one, and those before a change are kept beside it.

`.hydra/config.until-round-NNNNNN.yaml` governed the rounds up to that one; so for the overrides and results.json.
"""

import re
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from fedem_lightning.errors import UserError
from fedem_lightning.records.configs import flatten, read_yaml, resolved, with_data_dir
from fedem_lightning.records.files import write_atomically
from fedem_lightning.records.secrets import hide_in_overrides, hide_in_tree

_KEPT = re.compile(r"config\.until-round-(\d+)\.yaml")
_OF_THE_COMMAND = ("ckpt_path", "run_dir")
"""Keys that say how a command found the run."""


def read_own_config(folder: Path) -> dict[str, Any] | None:
    """The configuration of the run in `folder`, as it is written; None if there is none.

    Raises:
        UserError: it is unreadable.

    """
    path = folder / ".hydra" / "config.yaml"
    return _read(path) if path.exists() else None


def _read(path: Path) -> dict[str, Any]:
    try:
        return read_yaml(path)
    except UserError as error:
        raise UserError(f"{path} is {error}; put back what the run wrote, or train in another run_dir") from error


def save_config(folder: Path, config: DictConfig, overrides: list[str], rounds: int = 0) -> None:
    """Writes .hydra/config.yaml and .hydra/overrides.yaml, unless they say the same already.

    Args:
        folder: of the run.
        config: the composed configuration.
        overrides: as the user typed them.
        rounds: that the run has behind it. Results of that time are kept like a changed configuration.

    Raises:
        UserError: the earlier configuration is unreadable, or the system refuses to write.

    """
    earlier = read_own_config(folder)
    results = folder / "results.json"
    if results.exists():
        write_atomically(_kept(folder, "results.json", rounds), results.read_bytes())
        results.unlink()
    tree = tree_of(config)
    if earlier is not None and not _changed(earlier, tree):
        return
    contents = {  # the configuration last: if it is there, the overrides are
        "overrides.yaml": OmegaConf.create(hide_in_overrides(overrides)),
        "config.yaml": OmegaConf.create(hide_in_tree(tree)),
    }
    for name, content in contents.items():
        path, kept = folder / ".hydra" / name, _kept(folder, name, rounds)
        begun = earlier is not None and path.exists()  # else the command that wrote it was killed before it began
        if begun and not kept.exists():  # else the configuration between them has led to no checkpoint
            write_atomically(kept, path.read_bytes())
        write_atomically(path, OmegaConf.to_yaml(content).encode())


def continued(folder: Path) -> list[dict[str, Any]]:
    """After which rounds the run in `folder` went on with a changed configuration, and the keys that changed then."""
    places = {int(m[1]): path for path in (folder / ".hydra").glob("*") if (m := _KEPT.fullmatch(path.name))}
    configs = [*(_read(places[rounds]) for rounds in sorted(places)), read_own_config(folder)]
    pairs = zip(sorted(places), configs, configs[1:], strict=False)
    found = [(rounds, _changed(before, after)) for rounds, before, after in pairs if before and after]
    return [{"round": rounds, "changed": keys} for rounds, keys in found if keys]


def tree_of(config: DictConfig) -> dict[str, Any]:
    """A composed configuration as it is written."""
    tree: dict[str, Any] = OmegaConf.to_container(config, resolve=False)  # type: ignore[assignment]
    return tree


def differences(before: dict[str, Any], now: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """The keys in which two configurations differ once they are resolved, with both values, in alphabetical order."""
    a, b = (flatten(hide_in_tree(resolved(with_data_dir(tree)))) for tree in (before, now))
    return {key: (a.get(key), b.get(key)) for key in sorted(a.keys() | b.keys()) if a.get(key) != b.get(key)}


def _changed(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    return [key for key in differences(before, after) if key not in _OF_THE_COMMAND]


def _kept(folder: Path, name: str, rounds: int) -> Path:
    stem, ending = name.split(".")
    return folder / ".hydra" / f"{stem}.until-round-{rounds:06d}.{ending}"
