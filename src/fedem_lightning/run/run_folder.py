"""A run's folder: never written over, and continued only by the run it belongs to."""

import json
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pytorch_lightning.utilities import rank_zero_only

from fedem_lightning.algorithms.checkpoints import read_checkpoint
from fedem_lightning.data.federation import Federation
from fedem_lightning.errors import UserError, require
from fedem_lightning.run.files import write_atomically
from fedem_lightning.run.secrets import hide_in_overrides, hide_in_tree

OURS = (".hydra", "checkpoints", "results.json", "metrics.csv", "clients.parquet")
FREE_ON_RESUME = ("ckpt_path", "run_dir", "trainer", "logger", "callbacks")
"""Parts of the configuration that a resumed run may change."""


def check_run_folder(folder: Path, config: DictConfig) -> None:
    """Refuses a folder that holds a run, unless this one continues it with an unchanged configuration."""
    held = [name for name in OURS if (folder / name).exists()]
    if not held:
        return
    require(
        config.ckpt_path is not None,
        f"run_dir: {folder} already holds a run ({', '.join(held)}); choose another, or continue it with "
        "ckpt_path=auto",
    )
    saved = folder / ".hydra" / "config.yaml"
    if not saved.exists():
        return
    both = (OmegaConf.load(saved), config)
    before, now = (flatten(hide_in_tree(OmegaConf.to_container(c, resolve=True))) for c in both)
    for key in sorted(before.keys() | now.keys()):
        if key.split(".")[0] not in FREE_ON_RESUME and before.get(key) != now.get(key):
            raise UserError(
                f"{key}: the run in {folder} had {before.get(key)}, now it is {now.get(key)}; resume with the same "
                "configuration, or choose another run_dir"
            )


def flatten(tree: Any, prefix: str = "") -> dict[str, Any]:
    """Nested dictionaries as one, with dotted keys."""
    if not isinstance(tree, dict):
        return {prefix: tree}
    flat = {}
    for key, part in tree.items():
        flat.update(flatten(part, f"{prefix}.{key}" if prefix else str(key)))
    return flat


def save_config(folder: Path, config: DictConfig, overrides: list[str]) -> None:
    """Writes .hydra/config.yaml and .hydra/overrides.yaml; a resumed run leaves the first ones as they are.

    Raises:
        UserError: another run has begun in this folder since `check_run_folder`.

    """
    try:
        (folder / ".hydra").mkdir(parents=True)
    except FileExistsError as error:
        if config.ckpt_path is None:
            raise UserError(f"run_dir: another run has just begun in {folder}; choose another") from error
        return
    shown = OmegaConf.create(hide_in_tree(OmegaConf.to_container(config, resolve=False)))
    for name, content in (("config", shown), ("overrides", OmegaConf.create(hide_in_overrides(overrides)))):
        write_atomically(folder / ".hydra" / f"{name}.yaml", OmegaConf.to_yaml(content).encode())


def find_checkpoint(ckpt_path: str | None, folder: Path) -> Path | None:
    """The file to resume from: `ckpt_path` itself, or for "auto" the intact one with the most rounds in `folder`.

    Raises:
        UserError: the given file is missing or unreadable.

    """
    if ckpt_path is None:
        return None
    if ckpt_path != "auto":
        require(Path(ckpt_path).is_file(), f"ckpt_path: no file {ckpt_path}")
        read_checkpoint(Path(ckpt_path))
        return Path(ckpt_path)
    newest = newest_checkpoint(folder)
    if newest is None:
        rank_zero_only(print)(
            f"ckpt_path=auto: no checkpoint in {folder / 'checkpoints'}, the run starts from the beginning"
        )
    return newest


def newest_checkpoint(folder: Path) -> Path | None:
    """The intact checkpoint of a run with the most rounds, whatever its file's name; None: there is none."""
    rounds: dict[Path, int] = {}
    for path in sorted((folder / "checkpoints").glob("*.ckpt")):
        try:
            rounds[path] = rounds_of(path)
        except UserError as error:
            rank_zero_only(print)(f"skipped: {error}")
    return max(rounds, key=lambda path: (rounds[path], path.name)) if rounds else None


def rounds_of(path: Path) -> int:
    """Rounds that a checkpoint has behind it.

    Raises:
        UserError: the file is not an intact checkpoint of this package.

    """
    return len(read_checkpoint(path)["statistics"].get("round_seconds", ()))


def finished_results(folder: Path, config: DictConfig) -> dict[str, Any] | None:
    """What results.json holds, if the run in `folder` has ended and `config` asks for no more rounds; else None."""
    try:
        results: dict[str, Any] = json.loads((folder / "results.json").read_text())
        planned = OmegaConf.load(folder / ".hydra" / "config.yaml").trainer.max_epochs
        done = config.trainer.max_epochs <= max(planned, results["rounds"])  # it may have ended before its plan
    except (OSError, ValueError, TypeError, KeyError, OmegaConfBaseException):
        return None
    return results if done else None


def check_checkpoint(path: Path, model: torch.nn.Module, federation: Federation) -> None:
    """Refuses a checkpoint whose tensors are not those of `model`, or that was trained on another federation."""
    checkpoint = read_checkpoint(path)
    saved, mine = checkpoint["state_dict"], model.state_dict()
    by_data = set(getattr(model, "sized_by_data", ()))
    for name in sorted((saved.keys() | mine.keys()) - by_data):
        before, now = (tuple(t[name].shape) if name in t else None for t in (saved, mine))
        require(
            before == now,
            f"ckpt_path: {path} has {name} of shape {before}, this run's is {now}: algorithm, backbone and data must "
            "agree",
        )
    require(
        checkpoint["federation"] is None or federation.has_digest(checkpoint["federation"]),
        f"ckpt_path: {path} was trained on another federation (other x or labels, partition, split or seed)",
    )
