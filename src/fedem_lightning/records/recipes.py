"""Recipes: objects as plain values, from which a checkpoint makes them again without pickle.

A recipe is a dictionary with the object's class under "_target_" and its arguments, as in Hydra's configurations.
"""

import dataclasses
import functools
import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
from torch import nn

from fedem_lightning.errors import UserError, require
from fedem_lightning.records.hyperparameters import is_plain
from fedem_lightning.settings.check import Checked, arguments_of, check_arguments

_ROOMS = [
    *("adaptation", "aggregation", "algorithms", "backbones", "compression", "engine", "faults", "local_solver"),
    *("network", "tasks"),
    *("models.gaussians", "models.neighbours", "models.prototypes", "models.two_heads", "topology"),
]
TRUSTED = ("torch.optim", *(f"fedem_lightning.{room}" for room in _ROOMS))
"""What a file may name: nothing there touches files. The user must allow others: to call them is to run code."""


class Recorded(Checked):
    """Remembers the arguments of its constructor in `made_with`, once they have been checked."""

    made_with: dict[str, Any]

    def __new__(cls, *args: Any, **options: Any) -> Self:  # noqa: D102
        made = super().__new__(cls, *args, **options)
        made.__dict__["made_with"] = arguments_of(cls.__init__, (made, *args), options)
        made.__dict__["made_with"].pop("self", None)
        return made


def recorded(function: Any) -> Any:
    """Decorates a function that makes a backbone: it remembers the function and its arguments, which are checked."""

    @functools.wraps(function)
    def made(*args: Any, **options: Any) -> Any:
        arguments = arguments_of(function, args, options)
        check_arguments(function.__name__, function, arguments)
        return remember(function(*args, **options), _path(function), arguments)

    return made


def remember(made: Any, path: str, arguments: Mapping[str, Any]) -> Any:
    """Notes what made an object that is not `Recorded`, by its import path; returns the object."""
    made.made_by, made.made_with = path, dict(arguments)
    return made


def remember_call(made: Any, factory: Callable[[], Any]) -> Any:
    """Notes which class or function made an object, or a partial of one with keywords, where a file can import it."""
    partial = isinstance(factory, functools.partial) and not factory.args
    function, arguments = (factory.func, factory.keywords) if partial else (factory, {})  # type: ignore[attr-defined]
    named = (inspect.isclass(function) or inspect.isroutine(function)) and function.__qualname__.isidentifier()
    if named and function.__module__ != "__main__" and not hasattr(made, "made_with"):
        remember(made, _path(function), arguments)
    return made


def recipe(value: Any) -> Any:
    """A value as numbers, strings, None, lists and dictionaries; "_unknown_" names what cannot be made again."""
    if is_plain(value):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, (str, Path)):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): recipe(part) for key, part in value.items()}
    if isinstance(value, Sequence):
        return [recipe(part) for part in value]
    if isinstance(value, functools.partial) and not value.args:
        return {"_target_": _path(value.func), "_partial_": True, **recipe(value.keywords)}
    if isinstance(getattr(value, "made_with", None), dict):
        return {"_target_": getattr(value, "made_by", _path(type(value))), **recipe(value.made_with)}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if field.init}
        return {"_target_": _path(type(value)), **recipe(fields)}
    return {"_unknown_": _path(value if inspect.isroutine(value) or inspect.isclass(value) else type(value))}


def make(made_of: Any, trusted: Sequence[str] = (), key: str = "") -> Any:
    """The value of a recipe.

    Args:
        made_of: the recipe.
        trusted: packages or modules beside `TRUSTED` from which objects may be made.
        key: name of the argument, for messages.

    Raises:
        UserError: the recipe names something that cannot be made again, or is not trusted.

    """
    if isinstance(made_of, list):
        return [make(part, trusted, key) for part in made_of]
    if not isinstance(made_of, dict):
        return made_of
    if "_unknown_" in made_of:
        raise UserError(
            f"{key}: the file does not say how to make {made_of['_unknown_']} again, which was made in Python or by an "
            f"older version; in Python load(..., {key}=...) takes it"
        )
    target = _import(made_of["_target_"], trusted, key) if "_target_" in made_of else None
    arguments = {name: make(part, trusted, name) for name, part in made_of.items() if name not in _MARKS}
    if target is None:
        return arguments
    if made_of.get("_partial_"):
        return functools.partial(target, **arguments)
    made = target(**arguments)
    if isinstance(made, nn.Module) and not hasattr(made, "made_with"):
        remember(made, made_of["_target_"], {name: made_of[name] for name in arguments})
    return made


def without_download(made_of: Any) -> Any:
    """The recipe of a network whose weights a file brings: neither it nor a network in it asks for pretrained ones."""
    if isinstance(made_of, list):
        return [without_download(part) for part in made_of]
    if not isinstance(made_of, dict):
        return made_of
    return {name: name != "pretrained" and without_download(part) for name, part in made_of.items()}


def with_network(made_of: Any, network: Any) -> Any:
    """The recipe with `network` in place of what cannot be made again."""
    if isinstance(made_of, list):
        return [with_network(part, network) for part in made_of]
    if not isinstance(made_of, dict):
        return made_of
    if "_unknown_" in made_of:
        return network
    return {name: with_network(part, network) for name, part in made_of.items()}


_MARKS = ("_target_", "_partial_")


def check_trusted(path: str, trusted: Sequence[str], key: str) -> None:
    """Raises UserError if a file may not call what this import path names: it is in none of the trusted packages."""
    module, _, name = path.rpartition(".")
    allowed = any(module == package or module.startswith(f"{package}.") for package in trusted)
    package = module.partition(".")[0]
    require(
        allowed and not name.startswith("_"),
        f"{key}: the file wants to call {path}, which is not part of this package; if you trust it, add "
        f"--trust {package}, or in Python trust={package!r}",
    )


def _import(path: str, trusted: Sequence[str], key: str) -> Any:
    check_trusted(path, (*TRUSTED, *trusted), key)
    module, _, name = path.rpartition(".")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise UserError(f"{key}: cannot import {path} ({error})") from error


def _path(thing: Any) -> str:
    return f"{thing.__module__}.{thing.__qualname__}"
