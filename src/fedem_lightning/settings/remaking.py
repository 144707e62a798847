"""Objects made again from the recipes of a file, which may come from elsewhere: a file runs nothing of its own."""

import functools
import importlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from fedem_lightning.settings.check import Checked, parameters
from fedem_lightning.settings.errors import UserError, imported, of_a_file, require
from fedem_lightning.settings.keys import LOOKS, flatten
from fedem_lightning.settings.recipes import RECORDED_FUNCTIONS, is_plain, remember

_PACKAGE = "fedem_lightning"
_ROOMS = {
    "algorithm": ("methods",),
    "backbone": ("models", "torch.nn"),
    "server_optimizer": ("local.server_step", "torch.optim"),
    "client_optimizer": ("local.optimizers",),
    "task": ("data.tasks",),
    "adaptation": ("evaluate.adapt",),
    "engine": ("local.engine",),
    "aggregation": ("aggregate",),
    "compression": ("aggregate.compression",),
    "faults": ("aggregate.faults",),
    "topology": ("aggregate.topology",),
}
_ANYWHERE = tuple(room for key, rooms in _ROOMS.items() if key != "algorithm" for room in rooms)
"""By key, where its classes are: parts of this package, or of torch. No constructor there runs or reads anything."""
_DOWNLOADS = ("pretrained", "use_pretrained_backbone")
_FROM_FILE = {"pretrained": False, "path": None}
"""Arguments of networks that would download or read a file; the weights are in the checkpoint."""
_TIMM = "timm.models._factory.create_model"
GONE: dict[str, Any] = {
    **{"initial_weights": "uniform", "max_depth": 5, "unseen": "tree", "source": "pool", "features": "strongest"},
    **{"max_passes": 100, "personalize_steps": 1, "cache": True, "t_dl": 1.0, "max_streams": 20, "clip_rate": 0.2},
    **{"perturbation": 0.1, "component_weights": "samples", "noise_scale": 1.0, "capacity": 1.0},
    **{"selection": "val", "part": "all"},
    **{"linkage": "complete", "exploration_decay": 0.05, "initial_epochs": 1, "prediction": "prototype"},
    **{"router_rate": 1.0, "precondition": True, "sampling": "by_size", "loss": "logistic", "work": 0.5},
    **{"embedding": "inputs", "dimension": 16, "covariance": "diagonal", "pooling": "mean"},
    **{"hessian": "first_order", "delta": 1e-3, "window": 1},  # of Per-FedAvg
    **{"level": "sample", "steps": 1, "temperature": 1.0, "concentration": 1.0},  # of an E-step
}
"""Defaults of options that are gone, which files of earlier versions name; where it is not here, it was off."""
_NO_PART = ("networks", "warmup_rounds")
"""Options that are gone, and on which a model that has been trained does not depend."""
LAST = "45f9539f"
"""The last commit that had them."""


def make(made_of: Any, trusted: Sequence[str] = (), key: str = "") -> Any:
    """The value of a recipe, which may come from elsewhere: nothing is called but what `find` allows.

    The recipe has numbers, texts, None, and lists and dictionaries of them; the user's network in it, which no file can
    hold, stays. Classes of the `trusted` packages may be made as well; `key` is the argument's name, for messages.
    UserError: it names something that cannot be made again, or is not allowed; or it holds other values.
    """
    if is_plain(made_of) or isinstance(made_of, nn.Module):
        return made_of
    if isinstance(made_of, list | tuple):
        return [make(part, trusted, key) for part in made_of]
    require(type(made_of) is dict, f"{key}: the file has a {type(made_of).__name__}, expected plain values")
    made_of = without_gone(made_of)
    if "_unknown_" in made_of:
        raise UserError(
            f"{key}: the file does not say how to make {made_of['_unknown_']} again, which was made in Python or by an "
            f"older version; in Python load(..., {key}=...) takes it; or train again with the class, or a "
            f"functools.partial of it, in place of an instance"
        )
    made_of = {str(n): False if n in _DOWNLOADS and part is True else part for n, part in made_of.items()}
    for name in ("auto_map", "checkpoint_path"):  # an encoder's code from a hub; a file that timm would read
        made_of.pop(name, None)
    target = find(made_of["_target_"], trusted, key) if "_target_" in made_of else None
    arguments = {
        name: make(part, trusted, name) for name, part in made_of.items() if name not in ("_target_", "_partial_")
    }
    if target is None:
        return arguments
    if _within(target.__module__, [f"{_PACKAGE}.models.backbones"]):
        arguments |= {name: value for name, value in _FROM_FILE.items() if name in parameters(target).known}
    if made_of.get("_partial_"):
        return functools.partial(target, **arguments)
    made = call(target, arguments, key)
    if isinstance(made, nn.Module) and not hasattr(made, "made_with"):
        remember(made, made_of["_target_"], {name: made_of.get(name) for name in arguments})
    return made


def without_gone(made_of: Any) -> Any:
    """A recipe without the options that are gone; UserError if one has another value than its default was."""
    if isinstance(made_of, list | tuple):
        return [without_gone(part) for part in made_of]
    if not isinstance(made_of, dict):
        return made_of
    module, _, kind = str(made_of.get("_target_", "")).rpartition(".")
    places = (_PACKAGE, f"{_PACKAGE}.data.tasks") if _within(module, [_PACKAGE]) else ()
    target = next(filter(None, (getattr(importlib.import_module(place), kind, None) for place in places)), None)
    takes = parameters(target) if callable(target) else None
    kept = {}
    for name, value in made_of.items():
        if name in _NO_PART and not (takes is None or name in takes.known):
            continue
        part = without_gone(value)
        if takes is None or takes.open or name in takes.known or name.startswith("_") or f"algorithm.{name}" in LOOKS:
            kept[name] = part
            continue
        for key, default in flatten({name: part}).items():
            last = key.rpartition(".")[2]
            gone = last == "_target_" or (default in (None, GONE[last]) if last in GONE else not default)
            message = (
                f"{name}: the file has {kind}.{key}={default}, an option that commit {LAST} has and later ones do not"
            )
            require(gone, f"{message}; only its default can be loaded")
    return kept


def call(target: Callable[..., Any], arguments: Mapping[str, Any], key: str) -> Any:
    """What a target of a file makes of the file's arguments; UserError if it cannot."""
    with of_a_file(f"{key}: the file's {target.__name__} cannot be made"), _offline():
        return target(**arguments)


@contextmanager
def _offline() -> Iterator[None]:
    """Within it Hugging Face's hub is never asked, whatever network a recipe or an encoder's configuration names."""
    try:
        from huggingface_hub import constants
    except ImportError:  # of an extra
        yield
        return
    before, constants.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE, True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before


def find(path: Any, trusted: Sequence[str] = (), key: str = "") -> Callable[..., Any]:
    """What a file means by an import path.

    A file may name the `Checked` classes and `recorded` functions of this package that fit the key, networks and
    optimisers of torch, and what the user's packages define: classes, and functions of a module that is trusted by its
    own name. What a module has only imported is never found. No other module is imported: to import one is to run it.
    UserError: the path means none of these.
    """
    require(isinstance(path, str), f"{key}: the file's _target_ is no text")
    if path == _TIMM:  # makes networks by their names
        return imported("timm", "timm", key).create_model
    module, _, name = path.rpartition(".")
    rooms = [room if room.startswith("torch.") else f"{_PACKAGE}.{room}" for room in _ROOMS.get(key, _ANYWHERE)]
    known = _within(module, [_PACKAGE, "torch.nn", "torch.optim", *trusted])
    hint = f"if you trust it, add --trust {module}, or in Python trust={module!r}"
    require(known, f"{key}: the file wants to call {path}, which is not part of this package; {hint}")
    result = None
    if module == _PACKAGE or _within(module, [*rooms, *trusted]):
        try:
            result = getattr(importlib.import_module(module), name, None)
        except Exception as error:  # importing somebody's module may fail in any way
            if not _within(module, [_PACKAGE]):
                raise UserError(f"{key}: cannot import {module}.{name} ({type(error).__name__}: {error})") from error
    if result is None and _within(module, [_PACKAGE]):  # another module has it now
        places = map(importlib.import_module, (_PACKAGE, *(room for room in rooms if _within(room, [_PACKAGE]))))
        result = next((getattr(place, name) for place in places if hasattr(place, name)), None)
    home = str(getattr(result, "__module__", ""))
    kinds = Checked if _within(home, [_PACKAGE]) else (torch.optim.Optimizer, nn.Module)
    fits = inspect.isclass(result) and _within(home, rooms) and issubclass(result, kinds)
    fits = fits or (any(result is function for function in RECORDED_FUNCTIONS) and _within(home, rooms))
    fits = fits or (inspect.isclass(result) and _within(home, trusted))
    fits = fits or (inspect.isfunction(result) and home == module and module in trusted)
    require(fits, f"{key}: the file wants to call {path}, which is no {key or 'part of a model'} that {module} defines")
    assert callable(result)
    return result


def with_network(made_of: Any, network: Any) -> Any:
    """The recipe with `network` in place of what cannot be made again."""
    if isinstance(made_of, list | tuple):
        return [with_network(part, network) for part in made_of]
    if not isinstance(made_of, dict):
        return made_of
    return network if "_unknown_" in made_of else {name: with_network(part, network) for name, part in made_of.items()}


def _within(module: str, packages: Sequence[str]) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)
