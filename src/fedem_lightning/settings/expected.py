"""What a message says of a setting: what its annotation allows, what was given, and which name may be meant."""

import collections.abc
import difflib
import math
import numbers
import types
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt

_WRITTEN = (type(None), numbers.Number, str, bytes, Path, collections.abc.Sequence, collections.abc.Mapping)
_LONGEST = 80
"""Characters of a given value that a message shows."""


def expected(hint: Any) -> str:
    """What an annotation allows, in words: "metropolis or fmmc", "a whole number of at least 1 or null"."""
    return _listed(_alternatives(hint))


def given(value: Any) -> str:
    """A value as a configuration writes it, on one line, cut if it is long; what no text can make by its class."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if not isinstance(value, _WRITTEN):
        return f"an object of class {type(value).__name__}"
    text = {"None": "null", "True": "true", "False": "false"}.get(repr(value), repr(value))
    text = " ".join(text.split())
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def did_you_mean(value: Any, hint: Any) -> str:
    """What may be meant, as the end of a message: a choice of a similar name, an object of the class that was given."""
    bare = [get_args(part)[0] if get_origin(part) is Annotated else part for part in _parts(hint)]
    bare = [part for one in bare for part in _parts(one)]
    if isinstance(value, type) and any(isinstance(part, type) and issubclass(value, part) for part in bare):
        return f"; give an object, {value.__name__}(...)"
    choices = [name for part in bare if get_origin(part) is Literal for name in get_args(part)]
    names = [name for name in choices if isinstance(name, str)]
    near = difflib.get_close_matches(value, names, n=1) if isinstance(value, str) else []
    return f"; did you mean {near[0]}?" if near else ""


def finite(text: str, value: Any) -> str:
    """The words for a value that is no finite number: the range alone would not say why it is refused."""
    endless = isinstance(value, float) and not math.isfinite(value)
    return text.replace("a number", "a finite number") if endless else text


def takes_objects(hint: Any) -> bool:
    """Whether an annotation allows something that only a program can make, or anything at all."""
    if get_origin(hint) is Annotated:
        return takes_objects(get_args(hint)[0])
    if get_origin(hint) in (Literal, None):
        anything = isinstance(hint, type) and issubclass(hint, collections.abc.Collection) and hint is not str
        return anything or _is_object(hint)
    return any(map(takes_objects, get_args(hint))) or get_origin(hint) is collections.abc.Callable


def _listed(words: list[str]) -> str:
    words = list(dict.fromkeys(words))
    return " or ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def _alternatives(hint: Any) -> list[str]:
    """Everything that may be given; null comes last, objects only if nothing else can be typed."""
    parts = [(part, _words(part)) for part in _parts(hint)]
    typed = [word for part, words in parts if part is not type(None) and not _is_object(part) for word in words]
    objects = [word for part, words in parts if _is_object(part) for word in words]
    return (typed or objects) + ["null"] * any(part is type(None) for part, _ in parts)


def _parts(hint: Any) -> list[Any]:
    if get_origin(hint) in (Union, types.UnionType):
        return [part for alternative in get_args(hint) for part in _parts(alternative)]
    return [hint]


def _words(hint: Any) -> list[str]:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        base, *limits = arguments
        said = [limit for limit in limits if isinstance(limit, str)]
        return said or [_ranged(word, limits) for word in _alternatives(base)]
    if origin is Literal:
        return [given(value).strip("'") for value in arguments]
    known = {bool: ["true", "false"], int: ["a whole number"], float: ["a number"], str: ["text"], Path: ["text"]}
    if hint in known:
        return known[hint]
    container = origin or hint
    if isinstance(container, type) and issubclass(container, collections.abc.Mapping):
        held = _listed(_alternatives(arguments[1])) if arguments and arguments[1] is not Any else ""
        return [f"keys, each with {held}" if held else "keys with values"]
    if isinstance(container, type) and issubclass(container, collections.abc.Iterable) and not _is_object(hint):
        items = _listed(_alternatives(arguments[0])) if arguments else "values"
        return [f"a list of {items.removeprefix('a ').replace('number', 'numbers', 1)}"]
    name = "function" if container is collections.abc.Callable else getattr(container, "__name__", container)
    return [f"a {name}"]


def _ranged(word: str, limits: list[Any]) -> str:
    bounds = {type(limit): limit for limit in limits}
    low, high = bounds.get(Ge), bounds.get(Le)
    if low and high:
        return f"{word} from {low.ge:g} to {high.le:g}"
    words = [f"{'of ' * (word == 'a whole number')}at least {low.ge:g}"] if low else []
    words += [f"above {bounds[Gt].gt:g}"] if Gt in bounds else []
    words += [f"below {bounds[Lt].lt}"] if Lt in bounds else []
    words += [f"up to {high.le:g}"] if high else []
    return " ".join([word, " and ".join(words)]) if words else word


def _is_object(hint: Any) -> bool:
    """Whether only a program can make such a value, no text."""
    container = get_origin(hint) or hint
    plain = (bool, int, float, str, Path, type(None), Annotated, Literal)
    if container in plain:
        return False
    made_of_values = (collections.abc.Mapping, collections.abc.Sequence, collections.abc.Collection)
    return not (
        isinstance(container, type)
        and container.__module__ in ("builtins", "collections.abc")
        and issubclass(container, made_of_values)
    )
