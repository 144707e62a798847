"""A run's folder: never written over, continued only by the same configuration, one run at a time; its checkpoints."""

import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from omegaconf import DictConfig, OmegaConf
from pytorch_lightning.utilities import rank_zero_only

from fedem_lightning.data.federation import Federation
from fedem_lightning.module.algorithm import FederatedAlgorithm
from fedem_lightning.module.checkpoints import check_tensors, read_checkpoint, recipe_difference, recipe_of
from fedem_lightning.settings.configs import read_yaml, resolved
from fedem_lightning.settings.errors import UserError, require
from fedem_lightning.settings.files import regular, write_atomically, writing
from fedem_lightning.settings.keys import MAY_CHANGE, flatten
from fedem_lightning.settings.remaking import without_gone
from fedem_lightning.settings.startup import is_worker_rank

OURS = (".hydra", "checkpoints", "results.json", "metrics.csv", "clients.parquet")
"""What a run has in its folder, beside arrays, whose names depend on the method."""
LOCK = ".fedem_lightning.lock"


@contextmanager
def only_run_in(folder: Path) -> Iterator[None]:
    """Within it no other process can run in this folder; the first process of several takes the lock for all.

    The system drops the lock when the process ends. UserError: another one has it, or the folder cannot be written to.
    """
    if is_worker_rank():
        yield
        return
    new, lock = not folder.exists(), FileLock(folder / LOCK, timeout=0)
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire()
        except Timeout:
            raise UserError(f"run_dir: another process is running {folder}; wait for it, or choose another") from None
    try:
        for path in folder.rglob(".*.tmp"):  # of processes that were killed while they wrote
            path.unlink()
        yield
    finally:
        with suppress(OSError):  # Windows removes no open file
            (folder / LOCK).unlink()
        lock.release()
        if new:
            with suppress(OSError):  # it has content
                folder.rmdir()


def check_run_folder(folder: Path, config: DictConfig) -> None:
    """Refuses a folder with files that a run would write over, unless it holds this run, which continues."""
    held = held_files(folder)
    names = ", ".join(path.name for path in held)
    is_run = bool({".hydra", "checkpoints"} & {path.name for path in held})
    require(is_run or not held, f"run_dir: {folder} holds files that a run may write over ({names}); choose another")
    message = f"run_dir: {folder} already holds a run; choose another, or continue it with ckpt_path=auto"
    require(config.ckpt_path is not None or not held, message)
    path = folder / ".hydra" / "config.yaml"
    if not path.exists():
        return
    trees = read_yaml(path), OmegaConf.to_container(config, resolve=False)  # with `${oc.env:X}` as it is written
    a, b = (flatten(without_gone(resolved(tree))) for tree in trees)  # type: ignore[arg-type]
    for key in sorted(a.keys() | b.keys()):
        require(
            a.get(key) == b.get(key) or bool({key, key.split(".")[0]} & set(MAY_CHANGE)),
            f"{key}: the run in {folder} had {a.get(key)}, now it is {b.get(key)}; resume with the same configuration, "
            "or choose another run_dir",
        )


def held_files(folder: Path) -> list[Path]:
    """What a folder has of the names that a run writes."""
    result = folder.iterdir() if folder.is_dir() else ()
    return sorted(path for path in result if path.name in OURS or path.suffix == ".npz")


def finished_results(folder: Path, config: DictConfig) -> dict[str, Any] | None:
    """What results.json holds, if the run in `folder` has ended and `config` asks for no more rounds; else None."""
    try:
        results: dict[str, Any] = json.loads(regular(folder / "results.json").read_text())
        planned = resolved(read_yaml(folder / ".hydra" / "config.yaml"))["trainer"]["max_epochs"]
        done = config.trainer.max_epochs <= max(planned, results["rounds"])  # it may have ended before its plan
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return results if done else None


def begin_folder(folder: Path, config: DictConfig, overrides: list[str]) -> None:
    """Writes the configuration and the overrides; results of an earlier end go, as more rounds follow."""
    (folder / "results.json").unlink(missing_ok=True)
    contents = {"overrides.yaml": OmegaConf.create(overrides), "config.yaml": config}
    for name, content in contents.items():
        write_atomically(folder / ".hydra" / name, OmegaConf.to_yaml(content).encode())


def leave_folder(folder: Path, before: Sequence[Path]) -> None:
    """Removes what a run has written that ended before its first round, but for what was there `before`."""
    for path in set(held_files(folder)) - set(before):
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def find_checkpoint(ckpt_path: str | None, folder: Path) -> Path | None:
    """The file to resume from: `ckpt_path` itself, or for "auto" the intact one with the most rounds in `folder`.

    UserError: the given file is missing or unreadable; or the run in `folder` cannot go on from it.
    """
    if ckpt_path is None:
        return None
    newest, ended = newest_checkpoint(folder), (folder / "results.json").exists()
    if ckpt_path != "auto":
        own = newest is None and not ended
        require(own, f"run_dir: {folder} already holds a run; continue it with ckpt_path=auto, or choose another")
        read_checkpoint(Path(ckpt_path))
        return Path(ckpt_path)
    require(newest is not None or not ended, f"run_dir: {folder} holds results, but no checkpoint to go on from")
    if newest is None:
        where = folder / "checkpoints"
        rank_zero_only(print)(f"ckpt_path=auto: no checkpoint in {where}, the run starts from the beginning")
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
    """Completed rounds of a checkpoint; UserError if the file is not an intact one of this package."""
    return len(read_checkpoint(path)["statistics"].get("round_seconds", ()))


def check_checkpoint(path: Path, model: FederatedAlgorithm, federation: Federation) -> None:
    """Refuses a checkpoint of another experiment, with other tensors, settings or federation: UserError.

    What training does not depend on may differ.
    """
    checkpoint = read_checkpoint(path)
    check_tensors(checkpoint, model, str(path))
    require(
        checkpoint["federation"] is None or federation.digest() == checkpoint["federation"],
        f"ckpt_path: {path} was trained on another federation (other x or labels, partition, split or seed)",
    )
    differs = recipe_difference(dict(checkpoint.get("recipe") or {}), recipe_of(model), type(model))
    require(differs is None, f"ckpt_path: {path} is of another experiment: {differs}; go on with its settings")
