"""What a run goes on from: its newest checkpoint, or a file."""

from pathlib import Path

from pytorch_lightning.utilities import rank_zero_only

from fedem_lightning.algorithms import FederatedAlgorithm
from fedem_lightning.algorithms.checkpoints import check_tensors, read_checkpoint, recipe_of
from fedem_lightning.algorithms.recipe_differences import recipe_difference
from fedem_lightning.data.federation import Federation
from fedem_lightning.errors import UserError, require


def find_checkpoint(ckpt_path: str | None, folder: Path) -> Path | None:
    """The file to resume from: `ckpt_path` itself, or for "auto" the intact one with the most rounds in `folder`.

    Raises:
        UserError: the given file is missing or unreadable; or the run in `folder` cannot go on from it.

    """
    if ckpt_path is None:
        return None
    newest, ended = newest_checkpoint(folder), (folder / "results.json").exists()
    if ckpt_path != "auto":
        require(Path(ckpt_path).is_file(), f"ckpt_path: no file {ckpt_path}")
        read_checkpoint(Path(ckpt_path))
        own = newest is None and not ended
        require(own, f"run_dir: {folder} already holds a run; continue it with ckpt_path=auto, or choose another")
        newest = Path(ckpt_path)
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
    """Completed rounds of a checkpoint.

    Raises:
        UserError: the file is not an intact checkpoint of this package.

    """
    return len(read_checkpoint(path)["statistics"].get("round_seconds", ()))


def check_checkpoint(path: Path, model: FederatedAlgorithm, federation: Federation) -> None:
    """Refuses a checkpoint of another experiment: what would follow is not the run that its configuration says.

    Raises:
        UserError: its tensors or its settings are not those of `model`, or it was trained on another federation. What
            training does not depend on may differ.

    """
    checkpoint = read_checkpoint(path)
    check_tensors(checkpoint, model, str(path))
    require(
        checkpoint["federation"] is None or federation.digest() == checkpoint["federation"],
        f"ckpt_path: {path} was trained on another federation (other x or labels, partition, split or seed)",
    )
    differs = recipe_difference(dict(checkpoint.get("recipe") or {}), recipe_of(model), type(model))
    require(differs is None, f"ckpt_path: {path} is of another experiment: {differs}; go on with its settings")
