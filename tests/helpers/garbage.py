"""Replies that no honest client gives: a generator over every field of a reply."""

import copy
import math
from collections.abc import Iterator
from typing import Any

import torch

from fedem_lightning.deploy.wire import Parcel

JUNK: list[Any] = [None, True, "x", [], {"a": [1]}, 2.5]
HUGE = 10**30


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Every value in plain values, with the way to it."""
    yield path, value
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in parts:
        yield from places(part, (*path, key))


def with_value(whole: Any, path: tuple[Any, ...], value: Any) -> Any:
    """A copy in which another value is at a place."""
    if not path:
        return value
    made = copy.deepcopy(whole)
    inner = made
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return made


def wrong_values(value: Any) -> list[Any]:
    """Values of other types, and numbers out of every range."""
    found = [junk for junk in JUNK if type(junk) is not type(value)]
    if type(value) is int:
        found += [-1, HUGE]
    if type(value) is float:
        found += [math.nan, math.inf, 1e300] if not math.isnan(value) else [math.inf]
    return found


def garbled_facts(facts: dict[str, Any], named: tuple[str, ...] = ("metrics",)) -> Iterator[tuple[str, Any]]:
    """The facts with one wrong value, a key too many or a key too few; keys below `named` are free."""
    for path, value in places(facts):
        where = ".".join(map(str, path)) or "facts"
        for junk in wrong_values(value):
            yield f"{where} = {str(junk)[:9]}", with_value(facts, path, junk)
        if isinstance(value, dict) and path[-1:] != tuple(named[:1]):
            yield f"{where} has also junk", with_value(facts, path, value | {"junk": 1})
            for key in value:
                yield f"{where} lacks {key}", with_value(facts, path, {k: v for k, v in value.items() if k != key})


def garbled_tensors(tensors: dict[str, torch.Tensor]) -> Iterator[tuple[str, dict[str, torch.Tensor]]]:
    """The tensors with one that is wrong, missing or too many."""
    yield "one tensor more", tensors | {"models.junk": torch.ones(1, 1)}
    yield "no tensors", {}
    for name, tensor in tensors.items():
        made = {
            "complex": tensor.to(torch.complex64),
            "wider": torch.cat([tensor, tensor]),
            "a number": torch.zeros((), dtype=tensor.dtype),
            "empty": tensor[:0],
            "another rank": tensor.unsqueeze(0),
        }
        if tensor.is_floating_point():
            made |= {text: torch.full_like(tensor, float(text)) for text in ("nan", "inf", "1e30")}
        if name == "answer..noise":  # NaN is a variance that a client with few samples cannot tell
            made |= {"nan": -tensor - 1}
        if name == "weights":
            made |= {"negative": -tensor - 1, "ten times": 10 * tensor + 10}
        for text, value in made.items():
            if value.shape != tensor.shape or value.dtype != tensor.dtype or tensor.numel():  # else it is the same
                yield f"{name} {text}", tensors | {name: value}
        if name != "included":  # without it, all components are
            yield f"{name} missing", {key: value for key, value in tensors.items() if key != name}


def garbled(kind: str, reply: Parcel) -> Iterator[tuple[str, Parcel]]:
    """Each garbage reply to a kind of request, with what is wrong with it."""
    for text, facts in garbled_facts(reply.facts):
        yield f"{kind}: {text}", Parcel(facts, reply.tensors)
    if kind in ("train", "answer"):
        for text, tensors in garbled_tensors(reply.tensors):
            yield f"{kind}: {text}", Parcel(reply.facts, tensors)
        yield f"{kind}: needs a start again and again", Parcel({"needs_start": True}, {})
        yield f"{kind}: rejects nothing that is a list", Parcel(reply.facts | {"rejected": [["a"], 3]}, reply.tensors)
        yield f"{kind}: a mean of nothing", Parcel(reply.facts | {"metrics": {"x": [1.0, -3]}}, reply.tensors)
        yield f"{kind}: many means", Parcel(reply.facts | {"metrics": {f"m{i}": [1.0, 1] for i in range(99)}}, {})
    if kind == "score":
        for measure, value in (("accuracy", 1.5), ("accuracy", -0.5), ("loss", -1.0), ("mse", 0.1)):
            facts = with_value(reply.facts, ("measures", "val", measure), value)
            yield f"score: {measure} is {value}", Parcel(facts, {})
    for users in (True, False, None, "x"):
        yield f"{kind}: error, is_users = {users}", Parcel({"error": "lost\n\x1b[31m" * 99, "is_users": users}, {})
    for error in (None, 3, ["x"], {"x": 1}):
        yield f"{kind}: error = {error}", Parcel({"error": error, "is_users": True}, {})
