"""Recipes: objects as plain values, from which a checkpoint makes them again without pickle.

A recipe is a dictionary with the object's class under "_target_" and its arguments, as in Hydra's configurations.
"""

import dataclasses
import functools
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any, Self, cast

import numpy as np
import torch
from torch import nn

from fedem_lightning.errors import UserError, require
from fedem_lightning.records.hyperparameters import is_plain
from fedem_lightning.settings.check import Checked, arguments_of, check_arguments

_PACKAGE = "fedem_lightning"
ROOMS = tuple(
    f"{_PACKAGE}.{room}"
    for room in (
        *("adaptation", "aggregation", "algorithms", "backbones", "compression", "engine", "faults", "local_solver"),
        *("models", "network", "tasks", "topology"),
    )
)
"""Parts of this package whose `Checked` classes and `recorded` functions a file may name: none of them reads a file."""
_MARKS = ("_target_", "_partial_")
_recorded_functions: list[Callable[..., Any]] = []


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

    _recorded_functions.append(made)
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


def make(made_of: Any, trusted: Sequence[str] = (), key: str = "", rooms: Sequence[str] = ROOMS) -> Any:
    """The value of a recipe, which may come from elsewhere: nothing is called but what `find` allows.

    Args:
        made_of: the recipe: numbers, texts, None, and lists and dictionaries of them; the user's network in it, which
            no file can hold, stays.
        trusted: the user's packages, whose classes may be made as well.
        key: name of the argument, for messages.
        rooms: parts of this package whose classes may be made.

    Raises:
        UserError: the recipe names something that cannot be made again, or that is not allowed; or it holds something
            else than plain values.

    """
    if is_plain(made_of) or isinstance(made_of, nn.Module):
        return made_of
    if isinstance(made_of, list | tuple):
        return [make(part, trusted, key, rooms) for part in made_of]
    require(type(made_of) is dict, f"{key}: the file has a {type(made_of).__name__}, expected plain values")
    if "_unknown_" in made_of:
        raise UserError(
            f"{key}: the file does not say how to make {made_of['_unknown_']} again, which was made in Python or by an "
            f"older version; in Python load(..., {key}=...) takes it"
        )
    target = find(made_of["_target_"], trusted, key, rooms) if "_target_" in made_of else None
    arguments = {name: make(part, trusted, str(name), rooms) for name, part in made_of.items() if name not in _MARKS}
    if target is None:
        return arguments
    if made_of.get("_partial_"):
        return functools.partial(target, **arguments)
    made = call(target, arguments, key)
    if isinstance(made, nn.Module) and not hasattr(made, "made_with"):
        remember(made, made_of["_target_"], {name: made_of[name] for name in arguments})
    return made


def call(target: Callable[..., Any], arguments: Mapping[str, Any], key: str) -> Any:
    """What a target of a file makes of the file's arguments; UserError if it cannot."""
    try:
        return target(**arguments)
    except UserError:
        raise
    except Exception as error:  # whatever is missing, or of another form
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise UserError(f"{key}: the file's {target.__name__} cannot be made ({reason})") from error


def without_download(made_of: Any) -> Any:
    """The recipe of a network whose weights a file brings: neither it nor a network in it asks for pretrained ones."""
    if isinstance(made_of, list | tuple):
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


def renewed(made_of: Any) -> Any:
    """A recipe of a file with the import paths that its classes and functions have today; nothing is made."""
    if isinstance(made_of, list):
        return [renewed(part) for part in made_of]
    if not isinstance(made_of, dict):
        return made_of
    found = {name: renewed(part) for name, part in made_of.items()}
    if str(found.get("_target_")).startswith(f"{_PACKAGE}."):
        with suppress(UserError):  # it stays as it is
            found["_target_"] = _path(find(found["_target_"]))
    return found


def find(path: Any, trusted: Sequence[str] = (), key: str = "", rooms: Sequence[str] = ROOMS) -> Callable[..., Any]:
    """What a file means by an import path.

    A file may name the `Checked` classes and `recorded` functions that are defined in `rooms`, and torch's optimisers;
    of the user's packages, classes that are defined in them, and functions of a module that is trusted by its own name.
    What a module has only imported is never found. Nothing else is imported: to import a module is to run it. What has
    moved within `rooms` since the file was written is found by its name.

    Raises:
        UserError: the path means none of these.

    """
    require(isinstance(path, str), f"{key}: the file's _target_ is no text")
    module, _, name = path.rpartition(".")
    if module == _PACKAGE or _within(module, rooms):
        for place in _places(module, rooms):
            found = getattr(place, name, None)
            known = any(found is function for function in _recorded_functions)
            known = known or (inspect.isclass(found) and issubclass(found, Checked))
            if known and _within(found.__module__, rooms):
                return cast(Callable[..., Any], found)
    elif _within(module, ["torch.optim"]):
        found = getattr(torch.optim, name, None)
        if inspect.isclass(found) and issubclass(found, torch.optim.Optimizer):
            return found
    elif _within(module, trusted):
        found = _import(module, name, key)
        if inspect.isclass(found) and _within(found.__module__, trusted):
            return found
        if inspect.isfunction(found) and found.__module__ == module and module in trusted:
            return found
        raise UserError(f"{key}: the file wants to call {path}, which {module} does not define")
    if _within(module, [_PACKAGE, "torch.optim"]):
        raise UserError(f"{key}: the file wants to call {path}, which is no part of a model")
    raise UserError(
        f"{key}: the file wants to call {path}, which is not part of this package; if you trust it, add "
        f"--trust {module}, or in Python trust={module!r}"
    )


def _places(module: str, rooms: Sequence[str]) -> Iterator[ModuleType]:
    """Where something may be that was in a module: there, in its room, in the package, in another room."""
    own = [room for room in rooms if _within(module, [room])]
    for place in (module, *own, _PACKAGE, *rooms):
        with suppress(Exception):  # the module is gone, or is no name of one
            there = importlib.import_module(place)
            yield there
            parts = pkgutil.iter_modules(getattr(there, "__path__", ()), f"{place}.") if place != _PACKAGE else ()
            yield from (importlib.import_module(part.name) for part in parts if not part.name.endswith("__main__"))


def _within(module: str, packages: Sequence[str]) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def _import(module: str, name: str, key: str) -> Any:
    try:
        return getattr(importlib.import_module(module), name)
    except Exception as error:  # importing somebody's module may fail in any way
        raise UserError(f"{key}: cannot import {module}.{name} ({type(error).__name__}: {error})") from error


def _path(thing: Any) -> str:
    return f"{thing.__module__}.{thing.__qualname__}"
