"""Objects made again from the recipes of a file, which may come from elsewhere: only this package's, within limits."""

import functools
import importlib
import inspect
import math
import pkgutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from types import ModuleType
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from fedem_lightning.errors import UserError, require
from fedem_lightning.records.recipes import RECORDED_FUNCTIONS, import_path, is_plain, remember
from fedem_lightning.settings.check import Checked

_PACKAGE = "fedem_lightning"
ROOMS = tuple(
    f"{_PACKAGE}.{room}"
    for room in (
        *("adaptation", "aggregation", "algorithms", "backbones", "client_optimizers", "compression", "engine"),
        *("faults", "local_solver", "models", "network", "tasks", "topology"),
    )
)
"""Parts of this package whose `Checked` classes and `recorded` functions a file may name: none of them reads a file."""
_MARKS = ("_target_", "_partial_")
_COPIES, _SPARE_ELEMENTS, _SPARE_OPERATIONS = 40, 10**8, 20_000
_COUNTED = ("arange", "eye", "randperm", "linspace")
"""Operations whose size is a number, not a list of numbers."""


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
            f"older version; in Python load(..., {key}=...) takes it; or train again with the class, or a "
            f"functools.partial of it, in place of an instance"
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


def _changed(made_of: Any, change: Callable[[dict[str, Any]], Any]) -> Any:
    """A recipe in which `change` has replaced each dictionary, the inner ones first."""
    if isinstance(made_of, list | tuple):
        return [_changed(part, change) for part in made_of]
    if not isinstance(made_of, dict):
        return made_of
    return change({name: _changed(part, change) for name, part in made_of.items()})


def without_download(made_of: Any) -> Any:
    """The recipe of a network whose weights a file brings: neither it nor a network in it asks for pretrained ones."""

    def change(part: dict[str, Any]) -> dict[str, Any]:
        pretrained = dict.fromkeys(part.keys() & {"pretrained"}, False)
        return part | pretrained | ({"path": None} if part.get("config") and "path" in part else {})

    return _changed(made_of, change)


def with_network(made_of: Any, network: Any) -> Any:
    """The recipe with `network` in place of what cannot be made again."""
    return _changed(made_of, lambda part: network if "_unknown_" in part else part)


def renewed(made_of: Any) -> Any:
    """A recipe of a file with the import paths that its classes and functions have today; nothing is made."""

    def change(part: dict[str, Any]) -> dict[str, Any]:
        if str(part.get("_target_")).startswith(f"{_PACKAGE}."):
            with suppress(UserError):  # it stays as it is
                part["_target_"] = import_path(find(part["_target_"]))
        return part

    return _changed(made_of, change)


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
            known = any(found is function for function in RECORDED_FUNCTIONS)
            known = known or (inspect.isclass(found) and issubclass(found, Checked))
            if known and _within(found.__module__, rooms):
                return cast(Callable[..., Any], found)
    elif _within(module, ["torch.optim"]):
        found = getattr(torch.optim, name, None)
        if inspect.isclass(found) and issubclass(found, torch.optim.Optimizer):
            return found
    elif _within(module, trusted):
        try:
            found = getattr(importlib.import_module(module), name)
        except Exception as error:  # importing somebody's module may fail in any way
            raise UserError(f"{key}: cannot import {module}.{name} ({type(error).__name__}: {error})") from error
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


class LimitedTensors(TorchDispatchMode):
    """A context in which tensors may be made as far as a file can need them.

    Args:
        held: the tensors of the file. What is made may have 40 times as many elements, and 10^8 more; and may take 40
            operations for each of them, and 20,000 more.

    Raises:
        UserError: an operation would pass the limit, before it allocates anything.

    """

    def __init__(self, held: Mapping[str, Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        elements = sum(t.numel() for t in held.values() if isinstance(t, Tensor))
        self.elements = _COPIES * elements + _SPARE_ELEMENTS
        self.operations = _COPIES * len(held) + _SPARE_OPERATIONS

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        self.operations -= 1
        if not func.is_view:
            self.elements -= _size(func, [*args, *(kwargs or {}).values()])  # in-place operations count too
        enough = self.elements >= 0 and self.operations >= 0
        require(enough, "the file asks for a model that is far larger than the tensors in it")
        return func(*args, **(kwargs or {}))


def _size(func: Any, given: Sequence[Any]) -> int:
    """At least the number of elements that an operation makes, unless it combines tensors."""
    numbers = [value for value in given if type(value) is int]
    lists = [value for value in given if isinstance(value, list | tuple) and all(type(i) is int for i in value)]
    tensors = [value.numel() for value in given if isinstance(value, Tensor)]
    made = max((abs(math.prod(sizes)) for sizes in lists if sizes), default=0)
    if func.overloadpacket.__name__ == "repeat":
        made *= max(tensors)
    if func.overloadpacket.__name__ in _COUNTED:
        made = max(map(abs, numbers), default=0)
    return max(made, *tensors, 0)
