"""A federation whose samples are with its clients."""

import uuid
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from fedem_lightning.algorithms.growth import federation_of
from fedem_lightning.data.datamodule import FederatedDataModule
from fedem_lightning.data.federation import Federation
from fedem_lightning.data.schema import Schema
from fedem_lightning.deploy.remote import RemoteClients, descriptions
from fedem_lightning.deploy.wire import Link
from fedem_lightning.errors import UserError, require


class RemoteDataModule(FederatedDataModule):
    """A federation whose samples are with its clients.

    Args:
        link: to the clients' nodes.
        nodes: their addresses, one for each client.
        run: the name under which the clients keep their state; None: a new one.

    """

    def __init__(self, link: Link, nodes: list[int], run: str | None = None) -> None:
        run = run or uuid.uuid4().hex
        found = dict(descriptions(link, nodes, run))
        require(len(found) == len(nodes), f"{len(nodes) - len(found)} of {len(nodes)} clients do not answer")
        order = sorted(nodes, key=lambda node: found[node]["name"])
        names = tuple(found[node]["name"] for node in order)
        require(len(set(names)) == len(names), "two clients have the same name")
        started = {t for t, node in enumerate(order) if found[node]["round"] is not None}
        schema = _schema([found[node] for node in order], names)
        super().__init__(_without_samples(schema))
        self.remote = RemoteClients(link, order, names, run, started)


def _schema(found: list[dict[str, Any]], names: tuple[str, ...]) -> Schema:
    """The form of all clients' samples.

    Raises:
        UserError: two clients' samples have different forms.

    """
    first = found[0]["form"]
    for one, name in zip(found, names, strict=True):
        differing = [key for key, value in one["form"].items() if value != first[key]]
        if differing:
            raise UserError(f"clients {names[0]} and {name} have samples of different forms ({', '.join(differing)})")
    n_train = torch.tensor([one["n_train"] for one in found])
    state: Mapping[str, Any] = {**first, "seen": n_train > 0, "n_train": n_train, "names": list(names)}
    return Schema.from_state(state)


def _without_samples(schema: Schema) -> Federation:
    """The federation of the clients, of which only the numbers of training samples are known."""
    kind = np.uint8 if schema.pixels is not None else np.int64 if schema.vocabulary is not None else np.float32
    none = torch.zeros(0, dtype=torch.int64)
    samples = schema.samples_of(np.zeros((0, *schema.raw_shape), dtype=kind))
    return federation_of(schema, samples, none, none, ())
