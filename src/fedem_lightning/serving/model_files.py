"""Trained models in files, without configuration, data and pickle: a run's checkpoint, or one `.safetensors` file.

Tensors of the latter: `weights` [K, M]; `components.{m}.{name}` where clients share M components; `clients.{name}`
[K, M, ...] where they have models of their own; `network.{name}`: frozen tensors, the same for all. The metadata has
the clients' names, how to make the network, and the form of the samples, as JSON.
"""

import copy
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from fedem_lightning.aggregate import Models
from fedem_lightning.data.schema import Schema
from fedem_lightning.models.components import arrange, model_state
from fedem_lightning.models.personal_models import ClientModels, OwnModels, SharedModels, with_state
from fedem_lightning.module.algorithm import FederatedAlgorithm
from fedem_lightning.module.checkpoints import model_of, read_checkpoint
from fedem_lightning.run.callbacks.between_rounds import BEST
from fedem_lightning.run.run_folder import newest_checkpoint
from fedem_lightning.settings.check import check_arguments
from fedem_lightning.settings.errors import UserError, of_a_file, require
from fedem_lightning.settings.files import regular, replacing
from fedem_lightning.settings.recipes import recipe
from fedem_lightning.settings.remaking import make, with_network

FORMAT = "fedem-lightning clients 1"


def load(path: str | Path, trust: Sequence[str] | str = (), **arguments: Any) -> FederatedAlgorithm:
    """The model of a run, in eval mode on the CPU.

    Args:
        path: a run's folder, whose best round is taken where it was kept, else its newest intact checkpoint; or a
            `.ckpt` file.
        trust: packages of yours whose classes the checkpoint may name; those of this package are known.
        arguments: of the algorithm's class; they replace those of the checkpoint. `backbone=` is needed for a network
            that the checkpoint cannot name.

    Raises:
        UserError: there is no intact checkpoint, or it does not say how to make the model.

    """
    check_arguments("", load, {"path": path, "trust": trust})
    single = Path(path).suffix == ".safetensors"
    wanted = "which load_clients takes (in Python); expected a run's folder or a .ckpt file"
    require(not single, f"{path}: clients' models, {wanted}")
    checkpoint = read_checkpoint(checkpoint_of(Path(path).expanduser()), "RUN")
    given = {"engine": "auto", **arguments}  # for any machine
    model: FederatedAlgorithm = model_of(checkpoint, None, [trust] if isinstance(trust, str) else trust, given)
    require(model.schema is not None, f"{path}: written by an older version, which did not save the clients' names")
    return model


def load_clients(path: str | Path, trust: Sequence[str] | str = (), **arguments: Any) -> ClientModels:
    """The models of all clients of a run that trained, or of a `.safetensors` file.

    Args:
        path: a run's folder, a `.ckpt` or a `.safetensors` file.
        trust, arguments: see `load`.

    Raises:
        UserError: see `load`; or clients of the run adapt their models to samples, which a checkpoint does not keep.

    """
    if Path(path).suffix == ".safetensors":
        return read_clients(Path(path).expanduser(), [trust] if isinstance(trust, str) else trust, **arguments)
    return load(path, trust, **arguments).trained_model.clients_models()


def checkpoint_of(path: Path) -> Path:
    """The checkpoint that a path means; UserError if there is none."""
    if path.is_file():
        return path
    require(path.is_dir(), f"{path}: no such run or file")
    best = path / "checkpoints" / BEST
    result = best if best.exists() else newest_checkpoint(path)
    if result is None:
        runs = sorted({p.parent.parent for p in path.glob("*/checkpoints/*.ckpt")})
        some = f"a folder of {len(runs)} runs, expected one of them, e.g. {runs[0]}" if runs else "no checkpoint here"
        raise UserError(f"{path}: {some}; expected a run's folder or a .ckpt file")
    return result


def write_clients(path: Path, models: ClientModels) -> None:
    """Writes the models in one step: a stop or a refusal leaves no half of a file, and an earlier one as it was."""
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
    facts = {"clients": list(models.names), "network": recipe(network), "schema": schema}
    metadata = {"format": FORMAT, **{name: json.dumps(value) for name, value in facts.items()}}
    own_memory = {name: t.detach().cpu().contiguous().clone() for name, t in tensors.items()}
    with replacing(path) as temporary:
        try:
            save_file(own_memory, temporary, metadata)
        except SafetensorError as error:  # which hides the system's error
            raise OSError(str(error)) from error


def read_clients(path: Path, trust: Sequence[str] = (), backbone: nn.Module | None = None) -> ClientModels:
    """Reads the models; `backbone` is the network, if the file cannot name it; UserError if the file is broken."""
    with of_a_file(f"{path}: no intact .safetensors file of clients' models of this version"):
        with safe_open(regular(path), framework="pt") as file:
            metadata = file.metadata()
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no dictionary
        assert metadata["format"] == FORMAT
        names, saved, made_of = (json.loads(metadata[key]) for key in ("clients", "schema", "network"))
        schema = Schema.from_state(saved | {name: torch.tensor(saved[name]) for name in ("seen", "n_train")})
        weights, own = tensors["weights"], _with_prefix(tensors, "clients.")
        network = _network(made_of, trust, backbone).to(weights.dtype).eval()  # first, so that no tensor loses bits
        arrange(network, torch.device("cpu"))
        network.load_state_dict(_with_prefix(tensors, "network."), strict=False)
        if own:
            return ClientModels(tuple(names), OwnModels(network, own, weights), schema)
        states: list[Any] = [_with_prefix(tensors, f"components.{m}.") for m in range(weights.shape[1])]
        components = nn.ModuleList(with_state(network, state) for state in states)
        return ClientModels(tuple(names), SharedModels(components, weights), schema)


def _network(made_of: Any, trust: Sequence[str], backbone: nn.Module | None) -> nn.Module:
    """The network of a recipe; `backbone` stands for it, or for the user's network in it."""
    if backbone is None:
        return make(made_of, trust, "backbone")
    own = copy.deepcopy(backbone)
    filled = with_network(made_of, own)
    if filled == made_of and {"backbone", "head"} <= made_of.keys():  # a network of the method's around the user's
        filled = {**made_of, "backbone": own}
    return own if filled in (own, made_of) else copy.deepcopy(make(filled, trust, "backbone"))


def _with_prefix(tensors: Models, prefix: str) -> Models:
    """The tensors whose names begin with `prefix`, by the rest of their names."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
