"""Hyper-parameters for Lightning's loggers: arguments of a model or a data module as plain values."""

import dataclasses
import functools
import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pytorch_lightning.utilities.parsing import collect_init_args
from torch import Tensor, nn


def constructor_arguments(made: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The arguments of the constructors that are running; the `__init__` of a base class calls it.

    Args:
        made: the object under construction.

    Returns:
        All arguments, those of the class before those of its base classes; and the arguments of the class alone.

    """
    frame = inspect.currentframe()
    assert frame is not None  # CPython has frames
    assert frame.f_back is not None
    found = collect_init_args(frame.f_back, [], classes=(type(made),))  # the object's class comes last
    return functools.reduce(lambda above, own: above | own, found, {}), found[-1] if found else {}


def plain(value: Any) -> Any:
    """Values as numbers, strings, lists and dictionaries, which loggers show and checkpoints hold without pickling.

    An object becomes a dictionary: its class, and its public attributes that are plain or dataclasses. A network
    becomes its class and number of parameters.
    """
    if is_plain(value):
        return value
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, (str, Path)):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): plain(part) for key, part in value.items()}
    if isinstance(value, Sequence):
        return [plain(part) for part in value]
    if isinstance(value, np.ndarray | Tensor) and value.ndim == 1 and len(value) <= 1000:
        return plain(value.tolist())
    if isinstance(value, functools.partial):
        return {"class": plain(value.func), **plain(value.keywords)}
    if isinstance(value, nn.Module):
        return {"class": type(value).__name__, "parameters": sum(p.numel() for p in value.parameters())}
    if inspect.isclass(value) or inspect.isroutine(value):
        return value.__name__
    return {"class": type(value).__name__, **_attributes(value)}


def is_plain(value: Any) -> bool:
    """Whether `value` is a number, a string or None."""
    return value is None or type(value) in (bool, int, float, str)


def _attributes(value: Any) -> dict[str, Any]:
    public = {name: part for name, part in getattr(value, "__dict__", {}).items() if not name.startswith("_")}
    return {name: plain(part) for name, part in public.items() if is_plain(part) or dataclasses.is_dataclass(part)}
