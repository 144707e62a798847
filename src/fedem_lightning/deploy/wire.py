"""What server and clients send each other: facts and tensors by name; and what a client receives of an algorithm."""

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import safetensors.torch
import torch

from fedem_lightning.aggregation import Models, Sent
from fedem_lightning.algorithms.base import FederatedAlgorithm
from fedem_lightning.errors import UserError
from fedem_lightning.models.client_store import Owner
from fedem_lightning.rejections import first_line
from fedem_lightning.serving.model_files import with_prefix as with_prefix
from fedem_lightning.uploads import received_models

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


def failed(error: Exception) -> Parcel:
    """The reply of a client that has failed."""
    is_users = isinstance(error, UserError)
    return Parcel({"error": str(error) if is_users else first_line(error), "is_users": is_users}, {})


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


def state_of_client(algorithm: FederatedAlgorithm, client: int) -> Models:
    """The `state_dict` of the algorithm for a federation of this client alone: where a client starts.

    Of what the server keeps to itself it has the form only.
    """
    states, found = algorithm.states.all(), {}
    for name, tensor in algorithm.state_dict().items():
        state = states.get(name)
        if state is not None and state.client_axis is not None:
            tensor = tensor.narrow(state.client_axis, client, 1)
        if state is not None and state.owner is Owner.SERVER_ONLY:
            tensor = torch.zeros_like(tensor[:0] if name in algorithm.states.sized_by_data else tensor)
        found[name] = tensor
    return found


def with_equal_ties(algorithm: FederatedAlgorithm, state: Models) -> Models:
    """The state in which a tensor of several names has one value: that of its first name, which the server sends."""
    tensors = [*algorithm.named_parameters(remove_duplicate=False), *algorithm.named_buffers(remove_duplicate=False)]
    first_names = dict[int, str]()
    names = {name: first_names.setdefault(id(tensor), name) for name, tensor in tensors}
    return {name: state[names.get(name, name)] for name in state}


def sent_for_training(algorithm: FederatedAlgorithm, client: int) -> Models:
    """What a client receives in each round: the models that the method sends, and the server's declared states."""
    one = torch.tensor([client], device=algorithm.device)
    n_models = min(len(algorithm.components), math.ceil(algorithm.transmission(one).down))
    servers = {name for name, state in algorithm.states.all().items() if state.owner is Owner.SERVER}
    declared = servers & algorithm.states.declared.keys()
    models = (servers - declared) or {
        f"components.{m}.{name}" for m in range(n_models) for name in received_models(algorithm, one)
    }
    return {name: t for name, t in _servers_tensors(algorithm, client).items() if name in models | declared}


def sent_with_question(algorithm: FederatedAlgorithm, client: int) -> Models:
    """What a client receives to answer a question: the components."""
    state = _servers_tensors(algorithm, client)
    return {name: tensor for name, tensor in state.items() if name.startswith("components.")}


def sent_for_scoring(algorithm: FederatedAlgorithm, client: int) -> Models:
    """What a client receives to score its models: all that the server has and may send."""
    kept = {
        f"components.{m}.{name}"
        for m, component in enumerate(algorithm.components)
        for name in component.state_dict()
        if name not in received_models(algorithm, torch.tensor([client], device=algorithm.device))
    }
    return {name: t for name, t in _servers_tensors(algorithm, client).items() if name not in kept}


def _servers_tensors(algorithm: FederatedAlgorithm, client: int) -> Models:
    """What the server has and may send; clients keep the initial rows of stores from their start on."""
    states = algorithm.states.all()
    return {
        name: tensor
        for name, tensor in state_of_client(algorithm, client).items()
        if ".initial_" not in name and (name not in states or states[name].owner is Owner.SERVER)
    }
