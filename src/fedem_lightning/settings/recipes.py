"""Objects as plain values: their recipes, in checkpoints and as the hyper-parameters that loggers show.

A recipe is a dictionary with the object's class under "_target_" and its arguments, as in Hydra's configurations; a
checkpoint makes the object from it again without pickle (`remaking`).
"""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
from torch import Tensor

from fedem_lightning.settings.check import Checked, arguments_of, check_arguments, parameters

RECORDED_FUNCTIONS: list[Callable[..., Any]] = []
"""Those that `recorded` decorates."""


class Recorded(Checked):
    """Remembers the arguments of its constructor in `made_with`, once they have been checked."""

    made_with: dict[str, Any]

    def __new__(cls, *args: Any, **options: Any) -> Self:  # noqa: D102
        made = super().__new__(cls, *args, **options)
        made.__dict__["made_with"] = arguments_of(cls.__init__, (made, *args), options)
        made.__dict__["made_with"].pop("self", None)
        return made


def anew(made: Recorded) -> Any:
    """Another object from the same arguments, without what this one has kept since it was made."""
    return type(made)(**made.made_with)


def arguments_with_defaults(made: Any) -> dict[str, Any]:
    """The arguments of an object's constructor, in its order: those that were given, and the defaults of the others."""
    kind: Callable[..., Any] = type(made)
    result = {name: made.made_with.get(name, one.default) for name, one in parameters(kind).known.items()}
    return {name: value for name, value in result.items() if value is not inspect.Parameter.empty} | made.made_with


def recorded(function: Any) -> Any:
    """Decorates a function that makes a backbone: it remembers the function and its arguments, which are checked."""

    @functools.wraps(function)
    def made(*args: Any, **options: Any) -> Any:
        arguments = arguments_of(function, args, options)
        check_arguments(function.__name__, function, arguments)
        return remember(function(*args, **options), import_path(function), arguments)

    RECORDED_FUNCTIONS.append(made)
    return made


def remember(made: Any, path: str, arguments: Mapping[str, Any]) -> Any:
    """Notes what made an object that is not `Recorded`, by its import path; returns the object.

    What its `found_out` has in addition are arguments with which it can be made without the files that it read.
    """
    made.made_by, made.made_with = path, dict(arguments) | getattr(made, "found_out", {})
    return made


def remember_call(made: Any, factory: Callable[[], Any]) -> Any:
    """Notes which class or function made an object, or a partial of one with keywords, where a file can import it."""
    partial = isinstance(factory, functools.partial) and not factory.args
    function, arguments = (factory.func, factory.keywords) if partial else (factory, {})  # type: ignore[attr-defined]
    named = (inspect.isclass(function) or inspect.isroutine(function)) and function.__qualname__.isidentifier()
    if named and function.__module__ != "__main__" and not hasattr(made, "made_with"):
        remember(made, import_path(function), arguments)
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
    if isinstance(value, np.ndarray | Tensor) and value.ndim == 1 and len(value) <= 1000:
        return recipe(value.tolist())
    if isinstance(value, Sequence):
        return [recipe(part) for part in value]
    if isinstance(value, functools.partial) and not value.args:
        return {"_target_": import_path(value.func), "_partial_": True, **recipe(value.keywords)}
    if isinstance(getattr(value, "made_with", None), dict):
        return {"_target_": getattr(value, "made_by", import_path(type(value))), **recipe(value.made_with)}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if field.init}
        return {"_target_": import_path(type(value)), **recipe(fields)}
    return {"_unknown_": import_path(value if inspect.isroutine(value) or inspect.isclass(value) else type(value))}


def import_path(thing: Any) -> str:
    """Where a class or a function is defined."""
    return f"{thing.__module__}.{thing.__qualname__}"


def is_plain(value: Any) -> bool:
    """Whether `value` is a number, a string or None."""
    return value is None or type(value) in (bool, int, float, str)
