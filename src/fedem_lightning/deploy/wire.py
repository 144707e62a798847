"""What server and clients send each other: plain facts, and tensors by name."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import safetensors.torch
import torch

from fedem_lightning.aggregation import Models, Sent

FEWEST, MOST = 3, 1023
"""Numbers of clients whose updates are summed: of two, each learns the other's; 2^32 / 2^22 of them could overflow."""


class Parcel(NamedTuple):
    """A request of the server, or the reply of a client."""

    facts: dict[str, Any]  # numbers, strings, None, lists and dictionaries
    tensors: Models

    def to_bytes(self) -> bytes:
        """The parcel as a safetensors file, with the facts as JSON in its header."""
        tensors = {
            name: tensor.cpu().clone(memory_format=torch.contiguous_format) for name, tensor in self.tensors.items()
        }
        return safetensors.torch.save(tensors, {"facts": json.dumps(self.facts)})

    @classmethod
    def from_bytes(cls, content: bytes) -> "Parcel":
        """The parcel that `to_bytes` made."""
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        return cls(json.loads(header["__metadata__"]["facts"]), safetensors.torch.load(content))


class Summed(NamedTuple):
    """The mean of updates that the server cannot read one by one."""

    mean: list[np.ndarray]  # float64 [1, M, ...], by names in their order; empty if too few nodes took part
    weight: int  # the sum of the weights
    facts: dict[int, dict[str, Any]]  # by node, of those whose updates are in it
    errors: dict[int, dict[str, Any]]  # by node, of those that have failed


class Link(Protocol):
    """The server's way to its clients."""

    def connected(self) -> list[int]:
        """The addresses of the nodes that are there now."""

    def ask(self, requests: Mapping[int, Parcel]) -> Iterator[tuple[int, Parcel | None]]:
        """Sends each node its request; yields the replies as they come, and None for a node that does not answer."""


@runtime_checkable
class Counted(Protocol):
    """A link that counts all that it sends and receives, headers of parcels included."""

    sent_bytes: int
    received_bytes: int


@runtime_checkable
class SummingLink(Link, Protocol):
    """A link over which the server can learn sums of updates, and nothing else of them."""

    def mean(self, requests: Mapping[int, Parcel], most: int) -> Summed:
        """The mean of the nodes' updates, whose weights are at most `most`."""


def packed(sent: Sent | None) -> Models:
    """One client's update as tensors by name."""
    if sent is None:
        return {}
    models = sent.models
    if sent.included is not None:
        models = {name: rows[sent.included] for name, rows in models.items()}  # [K, ...]
    parts = {"models": models, "extras": sent.extras}
    found = {f"{part}.{name}": rows for part, models in parts.items() for name, rows in models.items()}
    more = {"group": sent.group, "included": sent.included}
    return found | {"weights": sent.weights} | {name: t for name, t in more.items() if t is not None}


def unpacked(tensors: Models, n_groups: int, received: Models) -> Sent | None:
    """The update that `packed` has made tensors of; models that were not sent are those `received`."""
    if "weights" not in tensors:
        return None
    models, extras = (with_prefix(tensors, f"{part}.") for part in ("models", "extras"))
    included = tensors.get("included")
    if included is not None:
        kept = {name: rows.clone() for name, rows in received.items()}
        for name, rows in kept.items():
            rows[included] = models[name]
        models = kept
    return Sent(models, tensors["weights"], tensors.get("group"), n_groups, extras)


def with_prefix(tensors: Models, prefix: str) -> Models:
    """The tensors whose names begin with `prefix`, by the rest of their names."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def same_form(tensors: Models, like: Models) -> bool:
    """Whether tensors have the names, shapes and dtypes of others."""

    def form(models: Models) -> dict[str, tuple[torch.Size, torch.dtype]]:
        return {name: (tensor.shape, tensor.dtype) for name, tensor in models.items()}

    return form(tensors) == form(like)
