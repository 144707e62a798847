"""A federation whose samples are with its clients."""

import json
import time
import uuid
from collections import Counter
from typing import Any

import numpy as np
import torch

from fedem_lightning.algorithms.growth import federation_of
from fedem_lightning.data.datamodule import FederatedDataModule
from fedem_lightning.data.federation import Federation
from fedem_lightning.data.schema import Schema
from fedem_lightning.deploy.forms import as_line
from fedem_lightning.deploy.remote import RemoteClients, descriptions
from fedem_lightning.deploy.replies import schema_of
from fedem_lightning.deploy.wire import Link
from fedem_lightning.errors import require
from fedem_lightning.rejections import NO_ANSWER, first_line

PAUSE = 1.0
"""Seconds between two looks for clients."""


class RemoteDataModule(FederatedDataModule):
    """A federation whose samples are with its clients: all that are there once there are enough of them.

    Args:
        link: to the clients' nodes.
        n_clients: number of clients that must be there.
        patience: seconds in which they must come.
        run: the name under which the clients keep their state; None: a new one.

    Raises:
        UserError: too few have come in time.

    """

    def __init__(self, link: Link, n_clients: int, patience: float = 0.0, run: str | None = None) -> None:
        run = run or uuid.uuid4().hex
        known = joined(link, n_clients, patience, run)
        super().__init__(_without_samples(schema_of(list(known.values()))))
        self.remote = RemoteClients(link, known, run)


def joined(link: Link, n_clients: int, patience: float, run: str) -> dict[int, dict[str, Any]]:
    """The descriptions of the clients that are there once there are enough of them; see `RemoteDataModule`."""
    arrivals, end = Arrivals(link, run), time.monotonic() + patience
    while len(found := arrivals.look()) < n_clients:
        lines = [f"{len(found)} of {n_clients} were there after {patience:g} seconds", *arrivals.refused.values()]
        require(time.monotonic() < end, f"clients: {'; '.join(lines)}")
        time.sleep(min(PAUSE, max(0.0, end - time.monotonic())))
    return found


class Arrivals:
    """The clients that have come so far. A line says of each that it has joined, or why it is refused.

    Args:
        link, run: see `RemoteDataModule`.

    """

    def __init__(self, link: Link, run: str) -> None:
        self.link, self.run = link, run
        self.refused: dict[int, str] = {}  # by node, the line about it
        self._described: dict[int, dict[str, Any]] = {}  # by node, in the order in which they came
        self._wrong: dict[int, str] = {}  # by node, what is wrong with its description
        self._said: dict[int, str] = {}  # by node, the last line about it

    def look(self) -> dict[int, dict[str, Any]]:
        """The descriptions of the clients that may take part, by node, in the order of their names.

        A name is taken by the first client that has it. Samples must have the form that most clients' have.
        """
        self._describe(self.link.connected())
        counts = Counter(map(_form, self._described.values()))
        main = max(counts, key=counts.__getitem__, default="")
        found, names = dict[int, dict[str, Any]](), set[str]()
        self.refused = {node: f"a client is refused: {line}" for node, line in self._wrong.items()}
        for node, one in self._described.items():
            if one["name"] in names:
                self.refused[node] = f"a second client {one['name']} is refused: the name is taken"
            elif _form(one) != main:
                what = ", ".join(_differing(one["form"], json.loads(main)))
                form = f"its samples have another form than most clients' ({what})"
                self.refused[node] = f"client {one['name']} is refused: {form}"
            else:
                names.add(one["name"])
                found[node] = one
        self._say(
            {n: f"client {one['name']} has joined: {one['n_train']} training samples" for n, one in found.items()}
        )
        return dict(sorted(found.items(), key=lambda item: str(item[1]["name"])))

    def _describe(self, there: list[int]) -> None:
        """Asks new nodes who they are, and those again that did not answer; forgets those that have gone."""
        for known in (self._described, self._wrong):
            for node in known.keys() - set(there):
                del known[node]
        new = [node for node in there if node not in self._described and node not in self._wrong]
        for node, found in descriptions(self.link, new, self.run):
            if isinstance(found, dict):
                try:
                    _without_samples(schema_of([found]))
                    self._described[node] = found
                except Exception as error:  # whatever the values of a wrong form may cause
                    self._wrong[node] = as_line(f"form: {first_line(error)}")
            elif found.reason != NO_ANSWER:
                self._wrong[node] = str(found)

    def _say(self, joined: dict[int, str]) -> None:
        for node, line in (joined | self.refused).items():
            if self._said.get(node) != line:
                self._said[node] = line
                print(line, flush=True)


def _form(description: dict[str, Any]) -> str:
    return json.dumps(description["form"], sort_keys=True)


def _differing(form: dict[str, Any], other: dict[str, Any]) -> list[str]:
    return [key for key, value in form.items() if value != other[key]]


def _without_samples(schema: Schema) -> Federation:
    """The federation of the clients, of which only the numbers of training samples are known."""
    kind = np.uint8 if schema.pixels is not None else np.int64 if schema.vocabulary is not None else np.float32
    none = torch.zeros(0, dtype=torch.int64)
    samples = schema.samples_of(np.zeros((0, *schema.raw_shape), dtype=kind))
    return federation_of(schema, samples, none, none, ())
