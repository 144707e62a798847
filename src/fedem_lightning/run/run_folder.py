"""A run's folder: never written over, and continued only by the run it belongs to."""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hydra.utils import to_absolute_path
from omegaconf import DictConfig
from pytorch_lightning.utilities import rank_zero_only

from fedem_lightning.algorithms import FederatedAlgorithm
from fedem_lightning.algorithms.checkpoints import check_tensors, read_checkpoint, recipe_of, say_if_unverified
from fedem_lightning.algorithms.recipe_differences import differences_line, recipe_differences
from fedem_lightning.data.federation import Federation
from fedem_lightning.errors import UserError, require
from fedem_lightning.records.configs import read_yaml, resolved
from fedem_lightning.records.files import regular
from fedem_lightning.run.config_history import continued, differences, read_own_config, tree_of
from fedem_lightning.run.failures import user_message
from fedem_lightning.startup.rank import in_another_process

OURS = (".hydra", "checkpoints", "results.json", "metrics.csv", "clients.parquet", "trackers.json")
"""What a run has in its folder, beside figures and arrays: `DRAWN_OR_KEPT`."""
DRAWN_OR_KEPT = (".png", ".npz")
"""Endings of a run's other files; their names depend on the method."""
IN_FOLDERS = {".hydra": (".yaml", ".json"), "checkpoints": (".ckpt",)}
"""Endings of the files in a run's own folders."""
FREE_ON_RESUME = (
    *("ckpt_path", "run_dir", "trainer", "logger", "callbacks"),
    *("chosen_for", "default_lr", "learning_rates", "method_settings", "n_components"),
)
"""Parts of the configuration that a resumed run may change; what the last five set is compared in `algorithm`."""


def check_run_folder(folder: Path, config: DictConfig) -> None:
    """Refuses a folder that holds a run, unless this one continues it with an unchanged configuration.

    Raises:
        UserError: see above; or the folder holds files that are no run's, and that a run would write over.

    """
    check_kinds(folder)
    held = [name for name in OURS if os.path.lexists(folder / name)]
    if config.ckpt_path is None:
        require(
            not held,
            f"run_dir: {folder} already holds a run ({', '.join(held)}); choose another, or continue it with "
            "ckpt_path=auto",
        )
    if not {".hydra", "checkpoints"} & set(held):
        files = folder.iterdir() if folder.is_dir() else ()
        taken = held or sorted(path.name for path in files if path.suffix in DRAWN_OR_KEPT)
        require(
            not taken,
            f"run_dir: {folder} holds no run that could go on, but files that a run may write over "
            f"({', '.join(taken)}); choose another",
        )
    earlier = read_own_config(folder)
    continued(folder)  # reads the configurations before that one, too, which results.json will need
    for key, (before, now) in ({} if earlier is None else differences(earlier, tree_of(config))).items():
        if key.split(".")[0] not in FREE_ON_RESUME and not _same_path(before, now):
            raise UserError(
                f"{key}: the run in {folder} had {before}, now it is {now}; resume with the same "
                "configuration, or choose another run_dir"
            )


@contextmanager
def left_as_it_was(folder: Path, has_trained: Callable[[], bool]) -> Iterator[None]:
    """Removes what a run has made in its folder, if it is refused before its first round has ended.

    Some mistakes show only in the first round. The folder is then free for the corrected command.

    Args:
        folder: of the run.
        has_trained: whether a round has ended.

    """
    before = set(os.listdir(folder)) if folder.is_dir() else set()
    try:
        yield
    except Exception as error:
        if user_message(error) is not None and not has_trained() and not in_another_process():
            for path in folder.iterdir():
                if path.name in before or not (path.name in OURS or path.suffix in DRAWN_OR_KEPT):
                    continue  # it may be the user's, or a tracker's
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink(missing_ok=True)
        raise


def _same_path(before: Any, now: Any) -> bool:
    """Whether two values are one path: a run with hydra.job.chdir=true has absolute ones in its configuration."""
    if not (isinstance(before, str) and isinstance(now, str)):
        return False
    return len({os.path.normpath(to_absolute_path(os.path.expanduser(path))) for path in (before, now)}) == 1


def check_kinds(folder: Path) -> None:
    """Refuses a run's folder in which something else has the name of a file that a run writes, or the reverse.

    Raises:
        UserError: there is one.

    """
    away = "move it away, or choose another run_dir"
    for place in (folder / name for name in OURS[:2]):
        is_none = os.path.lexists(place) and not place.is_dir()
        require(not is_none, f"run_dir: {place} is a file, but a run keeps a folder of that name; {away}")
    for place in (folder, folder / ".hydra", folder / "checkpoints"):
        for path in sorted(place.iterdir()) if place.is_dir() else ():
            is_file = path.name in OURS[2:] or path.suffix in (*DRAWN_OR_KEPT, *IN_FOLDERS.get(place.name, ()))
            what = "a folder" if path.is_dir() else "no regular file"
            fits = not is_file or path.is_file() or not path.exists()  # a link to nothing is skipped or replaced
            require(fits, f"run_dir: {path} is {what}, but a run writes a file of that name; {away}")


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
        say_if_unverified(Path(ckpt_path))
        return Path(ckpt_path)
    newest = newest_checkpoint(folder)
    if newest is not None:
        say_if_unverified(newest)
    else:
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
    """Rounds that a checkpoint has behind it.

    Raises:
        UserError: the file is not an intact checkpoint of this package.

    """
    return len(read_checkpoint(path)["statistics"].get("round_seconds", ()))


def finished_results(folder: Path, config: DictConfig) -> dict[str, Any] | None:
    """What results.json holds, if the run in `folder` has ended and `config` asks for no more rounds; else None."""
    try:
        results: dict[str, Any] = json.loads(regular(folder / "results.json").read_text())
        planned = resolved(read_yaml(folder / ".hydra" / "config.yaml"))["trainer"]["max_epochs"]
        done = config.trainer.max_epochs <= max(planned, results["rounds"])  # it may have ended before its plan
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return results if done else None


def check_checkpoint(path: Path, model: FederatedAlgorithm, federation: Federation) -> None:
    """Refuses a checkpoint of another experiment: what would follow is not the run that its configuration says.

    Raises:
        UserError: its tensors, its server optimizer or its settings are not those of `model`, or it was trained on
            another federation. `NOT_TRAINED` may differ.

    """
    checkpoint = read_checkpoint(path)
    check_tensors(checkpoint, model, str(path))
    require(
        checkpoint["federation"] is None or federation.has_digest(checkpoint["federation"]),
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
