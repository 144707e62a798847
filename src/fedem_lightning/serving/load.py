"""Loads trained models from a run's folder or a file, without its configuration, its data, and pickle."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedem_lightning.algorithms import FederatedAlgorithm
from fedem_lightning.algorithms.checkpoints import model_of, read_checkpoint
from fedem_lightning.errors import UserError, require
from fedem_lightning.models.client_model import ClientModels
from fedem_lightning.run.run_folder import newest_checkpoint
from fedem_lightning.serving.client_files import clients_file, read_clients
from fedem_lightning.settings.check import check_arguments


def load(path: str | Path, trust: Sequence[str] | str = (), **arguments: Any) -> FederatedAlgorithm:
    """The model of a run, in eval mode on the CPU.

    Args:
        path: a run's folder, whose newest intact checkpoint is taken, or a `.ckpt` file.
        trust: packages of yours whose classes the checkpoint may name; those of this package are known.
        arguments: of the algorithm's class; they replace those of the checkpoint. `backbone=` is needed for a network
            that the checkpoint cannot name.

    Raises:
        UserError: there is no intact checkpoint, or it does not say how to make the model.

    """
    check_arguments("", load, {"path": path, "trust": trust})
    own = clients_file(Path(path).expanduser())
    require(
        own is None,
        f"{path}: clients' models, which load_clients takes (in Python); expected a run's folder or a .ckpt file",
    )
    file = checkpoint_of(Path(path).expanduser())
    checkpoint = read_checkpoint(file, "RUN")
    given = {"engine": "auto", "networks": None, **arguments}  # no simulated time, and any machine
    model: FederatedAlgorithm = model_of(checkpoint, None, [trust] if isinstance(trust, str) else trust, given)
    require(model.schema is not None, f"{path}: written by an older version, which did not save the clients' names")
    return model


def load_clients(path: str | Path, trust: Sequence[str] | str = (), **arguments: Any) -> ClientModels:
    """The models of all clients of a run that trained, of a `.safetensors` file, or of a client of its own.

    Args:
        path: a run's folder, a `.ckpt` or a `.safetensors` file, or the folder of a client of its own (`deploy`).
        trust, arguments: see `load`.

    Raises:
        UserError: see `load`; or clients of the run adapt their models to samples, which a checkpoint does not keep, or
            are clients of their own, which keep their models.

    """
    check_arguments("", load_clients, {"path": path, "trust": trust})
    if (file := clients_file(Path(path).expanduser())) is not None:
        return read_clients(file, [trust] if isinstance(trust, str) else trust, **arguments)
    return load(path, trust, **arguments).trained_model.clients_models()


def checkpoint_of(path: Path) -> Path:
    """The checkpoint that a path means.

    Raises:
        UserError: there is none.

    """
    if path.is_file():
        return path
    require(path.is_dir(), f"{path}: no such run or file")
    runs = sorted({p.parent.parent for p in path.glob("*/checkpoints/*.ckpt")})
    if not (path / "checkpoints").is_dir():
        require(not runs, f"{path}: a folder of {len(runs)} runs, expected one of them, e.g. {runs[0] if runs else ''}")
        raise UserError(f"{path}: no checkpoint here; expected a run's folder or a .ckpt file")
    found = newest_checkpoint(path)
    if found is None:
        raise UserError(f"{path / 'checkpoints'}: no intact checkpoint")
    return found
