"""Clients' models as one `.safetensors` file: components once and each client's weights, or a model for each client.

Tensors: `weights` [K, M]; `components.{m}.{name}` where clients share M components; `clients.{name}` [K, M, ...] where
they have models of their own; `network.{name}`: frozen tensors, the same for all. The metadata has the clients' names,
how to make the network, and the form of the samples, as JSON. The model of a client of its own also has `recipe`, the
algorithm's; `reported`, the scores that the client has sent to the server; and `samples`, the arguments with which
`load_client` reads its samples.
"""

import copy
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from fedem_lightning.aggregation import Models
from fedem_lightning.data.schema import Schema
from fedem_lightning.errors import UserError, require
from fedem_lightning.models.client_model import ClientModels, with_state
from fedem_lightning.models.components import arrange, model_state
from fedem_lightning.models.features import WithFeatures
from fedem_lightning.models.personal_models import OwnModels, SharedModels
from fedem_lightning.records.files import regular, replacing
from fedem_lightning.records.recipes import recipe
from fedem_lightning.records.remaking import LimitedTensors, make, renewed, with_network, without_download

FORMAT = "fedem-lightning clients 1"
MODEL = "model.safetensors"
"""The model of a client of its own, in its folder: in one for each run."""
STATE = "state.safetensors"
"""Beside it: what the client goes on from."""
_TENSORS = ("seen", "n_train")  # of the schema


def write_clients(path: Path, models: ClientModels, notes: Mapping[str, Any] | None = None) -> None:
    """Writes the models in one step: a stop leaves no half of a file.

    Args:
        path: the file.
        models: of the clients.
        notes: what the file says besides, by name; plain values.

    Raises:
        UserError: the system refuses; an earlier file stays as it was.

    """
    personal = models.personal
    tensors: Models = {"weights": personal.mixture}
    if isinstance(personal, SharedModels):
        network: nn.Module = personal.components[0]
        for m, component in enumerate(personal.components):
            tensors |= {f"components.{m}.{name}": tensor for name, tensor in model_state(component).items()}
    else:
        network = personal.backbone
        tensors |= {f"clients.{name}": tensor for name, tensor in personal.models.items()}
    own = model_state(network)
    tensors |= {f"network.{n}": t for n, t in network.state_dict().items() if n not in own}
    schema = {name: v.tolist() if isinstance(v, Tensor) else v for name, v in models.schema.state().items()}
    facts = {"clients": list(models.names), "network": recipe(network), "schema": schema, **(notes or {})}
    metadata = {"format": FORMAT, **{name: json.dumps(value) for name, value in facts.items()}}
    own_memory = {name: t.detach().cpu().contiguous().clone() for name, t in tensors.items()}
    with replacing(path) as temporary:
        try:
            save_file(own_memory, temporary, metadata)
        except SafetensorError as error:  # which hides the system's error
            raise OSError(str(error)) from error


def read_clients(path: Path, trust: Sequence[str] = (), backbone: nn.Module | None = None) -> ClientModels:
    """Reads the models.

    Args:
        path: the file.
        trust: packages of yours whose classes the file may name.
        backbone: the network, if the file cannot name it.

    Raises:
        UserError: the file is missing, broken, or not of this package.

    """
    metadata, tensors = _read(path)
    try:
        return _models(metadata, tensors, trust, backbone)
    except UserError:
        raise
    except Exception as error:  # whatever is missing, or of another form
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise UserError(f"{path}: its parts are not those of a file of clients' models ({reason})") from error


def read_notes(path: Path) -> dict[str, Any]:
    """What a file of clients' models says by name; those of `write_clients` are among it.

    Raises:
        UserError: see `read_clients`.

    """
    try:
        return {name: json.loads(value) for name, value in _read(path)[0].items() if name != "format"}
    except ValueError as error:
        raise UserError(f"{path}: its notes are no JSON ({error})") from error


def clients_file(path: Path) -> Path | None:
    """The file of clients' models that a path means: itself, or that in the folder of a client of its own.

    Args:
        path: a file; a run's folder; or the folder of a client of its own, or the one for a run in it.

    Returns:
        None: the path means a run or a checkpoint.

    Raises:
        UserError: the client has models of several runs, or has no model yet.

    """
    if path.suffix == ".safetensors":
        return path
    if not path.is_dir() or (path / "checkpoints").is_dir():
        return None
    if (path / MODEL).is_file():
        return path / MODEL
    found = [file for file in path.glob(f"*/{MODEL}") if not (file.parent / "checkpoints").is_dir()]
    newest = max(found, key=lambda file: file.stat().st_mtime, default=None)
    several = f"{path}: models of {len(found)} runs, expected one of them; the newest: {newest and newest.parent}"
    require(len(found) < 2, several)
    waits = any(path.glob(STATE)) or any(path.glob(f"*/{STATE}"))
    require(
        newest is not None or not waits,
        f"{path}: this client has no model yet; it keeps the newest one whenever the server asks for its scores",
    )
    return newest


def _read(path: Path) -> tuple[dict[str, str], Models]:
    """The metadata and the tensors of a file of clients' models."""
    require(path.is_file(), f"{path}: no such file")
    try:
        with safe_open(regular(path), framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no dictionary
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path}: no intact .safetensors file ({error})") from error
    require(metadata.get("format") == FORMAT, f"{path}: no file of clients' models of this version")
    return metadata, tensors


def _models(
    metadata: dict[str, str], tensors: dict[str, Tensor], trust: Sequence[str], backbone: nn.Module | None
) -> ClientModels:
    names, saved, made_of = (json.loads(metadata[key]) for key in ("clients", "schema", "network"))
    schema = Schema.from_state(saved | {name: torch.tensor(saved[name]) for name in _TENSORS})
    with LimitedTensors(tensors):
        network = _network(without_download(renewed(made_of)), trust, backbone)
    network = network.to(tensors["weights"].dtype).eval()  # first, so that no tensor loses bits
    arrange(network, torch.device("cpu"))
    network.load_state_dict(_under("network.", tensors), strict=False)
    return ClientModels(tuple(names), _personal(network, tensors), schema)


def _network(made_of: Any, trust: Sequence[str], backbone: nn.Module | None) -> nn.Module:
    """The network of a recipe; `backbone` stands for it, or for the user's network in it."""
    if backbone is None:
        made: nn.Module = make(made_of, trust, "backbone")
        return made
    own = copy.deepcopy(backbone)
    filled = with_network(made_of, own)
    if filled == made_of and {"backbone", "head"} <= made_of.keys():  # a network of the method's around the user's
        filled = {**made_of, "backbone": own}
    if isinstance(own, WithFeatures) or filled == made_of or recipe(own).get("_target_") == made_of.get("_target_"):
        return own
    return copy.deepcopy(make(filled, trust, "backbone"))


def _personal(network: nn.Module, tensors: dict[str, Tensor]) -> SharedModels | OwnModels:
    weights, own = tensors["weights"], _under("clients.", tensors)
    if own:
        return OwnModels(network, own, weights)
    states: list[Any] = [_under(f"components.{m}.", tensors) for m in range(weights.shape[1])]
    return SharedModels(nn.ModuleList(with_state(network, state) for state in states), weights)


def _under(prefix: str, tensors: dict[str, Tensor]) -> Models:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
