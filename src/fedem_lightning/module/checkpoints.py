"""Checkpoints that explain themselves: what a model is made of, and how a file becomes that model again."""

import inspect
import warnings
import zipfile
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.plugins.io import TorchCheckpointIO

from fedem_lightning.data.schema import Schema
from fedem_lightning.method import Method
from fedem_lightning.models.parts import users_network
from fedem_lightning.settings.check import parameters
from fedem_lightning.settings.errors import UserError, of_a_file, require
from fedem_lightning.settings.files import regular
from fedem_lightning.settings.keys import flatten
from fedem_lightning.settings.recipes import arguments_with_defaults, is_plain, recipe
from fedem_lightning.settings.remaking import call, find, make, without_gone
from fedem_lightning.state.processes import Processes

LIGHTNINGS_OPTIONS = ("map_location", "hparams_file", "strict", "weights_only")
"""Options of `load_from_checkpoint` that are Lightning's own."""
NOT_TRAINED = (
    *("_target_", "n_clients", "engine", "adaptation", "scored_clients"),
    *(f"personalize_{name}" for name in ("fraction", "steps")),
)
"""Arguments on which training does not depend, up to the last bits, or which are compared elsewhere."""
_GROUPS = ("backbone", "aggregation", "compression", "faults", "seed")
"""Arguments of an algorithm that are keys of their own in a configuration."""
OLD_TENSORS = {"UserCentric": ("embedding",), "FedGMM": ("center", "projection"), "Agnostic": ("recent_counts",)}
"""By class: what checkpoints of earlier versions have, and nothing reads any more."""


def save(algorithm: Method, checkpoint: dict[str, Any]) -> None:
    """Adds what a checkpoint has beside tensors: statistics, evaluations, diagnostics, federation and recipe."""
    statistics, schema = algorithm.statistics, algorithm.schema
    statistics.tick()
    checkpoint["statistics"], checkpoint["diagnostics"] = statistics.state_dict(), algorithm.diagnostics
    checkpoint["curves"] = algorithm.curves
    checkpoint["federation"] = algorithm.federation_digest
    checkpoint["schema"] = None if schema is None else schema.state()
    checkpoint["engine_gave_up"], checkpoint["deployed"] = algorithm.local.engine.gives_up, algorithm.is_deployed
    checkpoint["recipe"] = recipe_of(algorithm)
    if algorithm._trainer is not None:
        algorithm.states.collect(Processes.of(algorithm.trainer))
    algorithm.states.without_unwritten(checkpoint.get("state_dict", {}))
    arguments = {name: value for name, value in algorithm.made_with.items() if is_plain(value)}
    checkpoint[algorithm.CHECKPOINT_HYPER_PARAMS_KEY] = arguments  # for load_from_checkpoint


def restore(algorithm: Method, checkpoint: dict[str, Any]) -> None:
    """Takes statistics and diagnostics from a checkpoint (see `check_tensors`); the run counts on from there."""
    check_tensors(checkpoint, algorithm)
    before, trainer = dict(checkpoint.get("recipe") or {}), algorithm._trainer
    goes_on = trainer is not None and trainer.state.fn == "fit" and trainer.is_global_zero
    if goes_on and (differs := recipe_difference(before, recipe_of(algorithm), type(algorithm))):  # it may be meant
        warnings.warn(f"ckpt_path: the fit goes on with other settings: {differs}", stacklevel=2)
    algorithm.statistics.count_on(checkpoint["statistics"])
    algorithm.curves = checkpoint.get("curves", {})  # older checkpoints have none
    algorithm.federation_digest = checkpoint["federation"]
    algorithm.schema = Schema.from_state(checkpoint["schema"]) if checkpoint.get("schema") else None  # older: none
    algorithm._trained = None
    algorithm.diagnostics = checkpoint.get("diagnostics", {})  # older checkpoints have none
    algorithm.local.engine_gave_up = checkpoint.get("engine_gave_up", False)
    algorithm.is_deployed = algorithm.remote is not None or checkpoint.get("deployed", False)
    # Lightning loads the tensors before `trainer.precision=64-true` makes the model double, and would lose bits
    take_dtypes(algorithm, checkpoint["state_dict"])
    algorithm.states.with_unwritten(checkpoint["state_dict"])


def recipe_of(algorithm: Method) -> dict[str, Any]:
    """The class of an algorithm and its arguments; the backbone's recipe is that of the network in component 0."""
    made = recipe({name: value for name, value in algorithm.made_with.items() if name != "backbone"})
    kind, backbone = type(algorithm), recipe(users_network(algorithm.components[0]))
    return {"_target_": f"{kind.__module__}.{kind.__qualname__}", "backbone": backbone, **made}


def recipe_difference(before: dict[str, Any], now: dict[str, Any], kind: Any) -> str | None:
    """The first key in which two recipes of a class's algorithms differ, with both values; None: they are the same.

    `before` is that of a checkpoint ({}: an older one, which has none); nothing in it is made.
    """
    if not before:
        return None
    known = {name: part.default for name, part in parameters(kind).known.items()}
    defaults = recipe({name: value for name, value in known.items() if value is not inspect.Parameter.empty})
    a, b = (
        flatten({k: v for k, v in (defaults | r).items() if k not in NOT_TRAINED}) for r in (without_gone(before), now)
    )
    for key in sorted(a.keys() | b.keys()):
        remade = key in ("backbone.pretrained", "backbone.body.pretrained")  # from a file, which has the weights
        if a.get(key) != b.get(key) and not remade:
            name = key if key.split(".")[0] in _GROUPS else f"algorithm.{key}"
            return f"{name} was {a.get(key)}, now it is {b.get(key)}"
    return None


def logged_arguments(algorithm: Method) -> dict[str, Any]:
    """The arguments of an algorithm for Lightning's loggers, as plain values: those given, and the others' defaults."""
    made: dict[str, Any] = {"backbone": users_network(algorithm.components[0]), "engine": algorithm.local.engine_choice}
    made |= {"client_optimizer": algorithm.local.optimizer, "server_optimizer": algorithm.server.make_optimizer}
    return recipe({"algorithm": type(algorithm).__name__, **arguments_with_defaults(algorithm), **made})


def read_checkpoint(path: Path, key: str = "ckpt_path") -> dict[str, Any]:
    """Reads a checkpoint, which messages call `key`, without executing code from it (weights_only).

    UserError: the file is not an intact checkpoint of this package.
    """
    try:
        result = regular(path).stat()
    except OSError as error:
        raise UserError(f"{key}: {path} is no intact checkpoint ({error.strerror})") from error
    intact = _is_intact(path, result.st_ino, result.st_size, result.st_mtime_ns)
    require(intact, f"{key}: {path} is no intact checkpoint (its content and its checksums disagree)")
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # a broken file fails in many ways: zip, pickle, end of file, ...
        raise UserError(f"{key}: {path} is no intact checkpoint ({type(error).__name__})") from error
    known = isinstance(checkpoint, dict) and "federation" in checkpoint
    known = known and all(isinstance(checkpoint.get(part), dict) for part in ("statistics", "state_dict"))
    require(known, f"{key}: {path} is no checkpoint of fedem-lightning")
    for name in OLD_TENSORS.get(_written_by(checkpoint), ()):
        checkpoint["state_dict"].pop(name, None)
    if "private" in checkpoint["state_dict"]:  # D-FedEM's mixture weights, of earlier versions
        checkpoint["state_dict"]["pi"] = checkpoint["state_dict"].pop("private")
    return checkpoint


@lru_cache(maxsize=64)
def _is_intact(path: Path, inode: int, size: int, time: int) -> bool:
    """Whether the content has the checksums of its zip file; a file that has not changed is read once."""
    try:
        with zipfile.ZipFile(path) as file:
            return file.testzip() is None
    except OSError:
        raise
    except Exception:  # no zip file; or a changed header, in many ways
        return False


class CheckpointReader(TorchCheckpointIO):
    """Reads a Trainer's checkpoints without executing code from them."""

    def load_checkpoint(self, path: Any, map_location: Any = None, weights_only: bool | None = None) -> dict[str, Any]:
        """The content of a local file (see `read_checkpoint`), or of what Lightning finds at another address."""
        if "://" in str(path):
            return super().load_checkpoint(path, map_location, weights_only=True)
        return read_checkpoint(Path(str(path)))


def model_of(checkpoint: dict[str, Any], kind: Any, trust: Sequence[str], given: dict[str, Any]) -> Any:
    """The model of a checkpoint's content, in eval mode, of class `kind`; None: the one that the checkpoint names.

    It may make objects of the user's packages in `trust`; arguments in `given` replace those of the checkpoint.
    UserError: the checkpoint does not say how to make one of them, or its parts do not fit together.
    """
    model = made_from(checkpoint.get("recipe"), kind, trust, given)
    with of_a_file(f"the checkpoint's parts are not those of a {type(model).__name__}"):
        model.on_load_checkpoint(checkpoint)
        model.load_state_dict(checkpoint["state_dict"])
    as_saved = model.schema is None or model.schema.n_clients == model.n_clients
    require(as_saved, f"n_clients: the checkpoint is of other clients than the {model.n_clients} given; leave it out")
    return model.eval()


def made_from(saved: Any, kind: Any, trust: Sequence[str], given: dict[str, Any]) -> Any:
    """The algorithm of a recipe, with new tensors in place of those that the file holds; see `model_of`."""
    require(isinstance(saved, dict | None), "algorithm: the checkpoint's recipe is no dictionary")
    saved = without_gone(saved or {})
    arguments = {name: value for name, value in saved.items() if name != "_target_" and name not in given}
    if kind is None:
        require(bool(saved), "the checkpoint was written by an older version, and does not say what it holds")
        kind = find(saved.get("_target_"), trust, "algorithm")
        require(
            inspect.isclass(kind) and issubclass(kind, pl.LightningModule),
            f"algorithm: the file names {saved['_target_']}, which is no algorithm",
        )
    return call(kind, make(arguments, trust) | given, "algorithm")


def take_dtypes(model: Method, saved: dict[str, torch.Tensor]) -> None:
    """Gives each tensor the dtype that it has in a `state_dict`, so that it loses no bits when it is loaded."""
    model.to(next(saved[name].dtype for name, _ in model.components.named_parameters(prefix="components")))
    tensors = [*model.named_parameters(), *model.named_buffers()]
    for name, tensor in tensors:  # those of another dtype than the networks
        if name in saved and tensor.dtype != saved[name].dtype:
            tensor.data = tensor.data.to(saved[name].dtype)


def _written_by(checkpoint: dict[str, Any]) -> str:
    """The class of the method that wrote a checkpoint; older ones do not say."""
    return str((checkpoint.get("recipe") or {}).get("_target_", "")).rpartition(".")[2]


def check_tensors(checkpoint: dict[str, Any], model: Method, file: str = "the checkpoint") -> None:
    """UserError for a checkpoint of another method, or with a tensor of another shape; messages call it `file`."""
    saved, mine, kind, written_by = (
        checkpoint["state_dict"],
        model.state_dict(),
        type(model).__name__,
        _written_by(checkpoint),
    )
    for name in sorted((saved.keys() | mine.keys()) - model.states.sized_by_data):
        before, now = (_shape(t, name) for t in (saved, mine))
        message = f"has {name} of shape {before}, this run's is {now}: algorithm, backbone and data must agree"
        if written_by not in ("", kind):
            message = f"was written by {written_by}, and {kind} cannot go on from it; resume with {written_by}"
        require(before == now, f"ckpt_path: {file} {message}")


def _shape(saved: dict[str, torch.Tensor], name: str) -> tuple[int, ...] | None:
    """A tensor's shape; of rows without those that were never written, that of all rows; None: there is no tensor."""
    if name not in saved:
        return None
    store, _, last = name.rpartition(".")
    shape, written = tuple(saved[name].shape), saved.get(f"{store}.written") if last.startswith("rows_") else None
    if written is None or shape[:1] != (int(written.sum()),):
        return shape
    return (len(written), *shape[1:])
