"""What a run goes on from: its newest checkpoint, and the configurations that it has had.

`.hydra/config.yaml` is the present configuration, and those before a change are kept beside it:
`.hydra/config.until-round-NNNNNN.yaml` governed the rounds up to that one; so for the overrides and results.json.
"""

import re
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from pytorch_lightning.utilities import rank_zero_only

from fedem_lightning.algorithms import FederatedAlgorithm
from fedem_lightning.algorithms.checkpoints import check_tensors, read_checkpoint, recipe_of
from fedem_lightning.algorithms.recipe_differences import differences_line, recipe_differences
from fedem_lightning.data.federation import Federation
from fedem_lightning.errors import UserError, require
from fedem_lightning.records.configs import flatten, read_yaml, resolved
from fedem_lightning.records.files import write_atomically
from fedem_lightning.settings.keys import KEYS

_KEPT = re.compile(r"config\.until-round-(\d+)\.yaml")
_UNTOLD = {key.name for key in KEYS if key.finds_run or key.effect == "words"}
"""Keys that say how a command found the run, or what readers call its method."""


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
        rounds: completed rounds of the run. Results of that time are kept like a changed configuration.

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
        "overrides.yaml": OmegaConf.create(overrides),
        "config.yaml": OmegaConf.create(tree),
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
    a, b = (flatten(resolved(tree)) for tree in (before, now))
    return {key: (a.get(key), b.get(key)) for key in sorted(a.keys() | b.keys()) if a.get(key) != b.get(key)}


def _changed(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    return [key for key in differences(before, after) if key not in _UNTOLD]


def _kept(folder: Path, name: str, rounds: int) -> Path:
    stem, ending = name.split(".")
    return folder / ".hydra" / f"{stem}.until-round-{rounds:06d}.{ending}"


def check_not_back(folder: Path, checkpoint: Path | None, config: DictConfig) -> None:
    """Refuses to go back: the files of later rounds would belong to another run.

    Raises:
        UserError: the run in `folder` has a checkpoint of more rounds than `checkpoint`, or than planned.

    """
    newest = checkpoint if checkpoint is None or config.ckpt_path == "auto" else newest_checkpoint(folder)
    if checkpoint is None or newest is None:
        return
    planned = config.trainer.max_epochs
    begin, done = rounds_of(checkpoint), rounds_of(newest)
    require(
        begin >= done,
        f"ckpt_path: {checkpoint} is of round {begin}, and the run in {folder} has gone on to round {done}; continue "
        "with ckpt_path=auto, or choose another run_dir",
    )
    require(
        planned >= done,
        f"trainer.max_epochs: the run in {folder} has gone on to round {done}, got {planned}; expected at least "
        f"{done}, or another run_dir",
    )


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
    """The intact checkpoint of a run with the most rounds, whatever its file's name; None: there is none.

    A file that is not intact is named in a line.
    """
    rounds: dict[Path, int] = {}
    for path in sorted((folder / "checkpoints").glob("*.ckpt")):
        try:
            rounds[path] = rounds_of(path)
        except UserError as error:
            rank_zero_only(print)(f"skipped: {error}")
    return max(rounds, key=lambda path: (rounds[path], path.name)) if rounds else None


def rounds_of(path: Path) -> int:
    """Completed rounds of a checkpoint.

    Raises:
        UserError: the file is not an intact checkpoint of this package.

    """
    return len(read_checkpoint(path)["statistics"].get("round_seconds", ()))


def check_checkpoint(path: Path, model: FederatedAlgorithm, federation: Federation) -> None:
    """Refuses a checkpoint of another experiment: what would follow is not the run that its configuration says.

    Raises:
        UserError: its tensors, its server optimizer or its settings are not those of `model`, or it was trained on
            another federation. `NOT_TRAINED` may differ.

    """
    checkpoint = read_checkpoint(path)
    check_tensors(checkpoint, model, str(path))
    require(
        checkpoint["federation"] is None or federation.digest() == checkpoint["federation"],
        f"ckpt_path: {path} was trained on another federation (other x or labels, partition, split or seed)",
    )
    _check_optimizer(path, checkpoint, model)
    differing = recipe_differences(dict(checkpoint.get("recipe") or {}), recipe_of(model))
    require(
        not differing,
        f"ckpt_path: {path} is of another experiment: {differences_line(differing)}; go on with its settings",
    )


def _check_optimizer(path: Path, checkpoint: dict[str, Any], model: FederatedAlgorithm) -> None:
    """Lightning would put the options of the checkpoint in place of this run's, or fail in the first round."""
    groups = [_options(state["param_groups"]) for state in checkpoint.get("optimizer_states") or ()]
    mine = [_options(model.configure_optimizers().state_dict()["param_groups"])]
    for before, now in zip(groups, mine, strict=False):
        for key in sorted(before.keys() | now.keys()):
            require(
                before.get(key) == now.get(key),
                f"ckpt_path: {path} was written with another server optimizer: {key} was {before.get(key)}, "
                f"now it is {now.get(key)}",
            )


def _options(groups: list[dict[str, Any]]) -> dict[str, Any]:
    """Options of an optimiser by name, and how many tensors each of its groups has."""
    return {
        f"{name} of group {i}" if i else name: len(value) if name == "params" else value
        for i, group in enumerate(groups)
        for name, value in group.items()
    }
