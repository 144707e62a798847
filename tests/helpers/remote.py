"""Clients as nodes of their own, in this process: what they send passes through bytes."""

import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytorch_lightning as pl

from fedem_lightning import FederatedDataModule, Federation
from fedem_lightning.deploy.node import Node
from fedem_lightning.deploy.wire import Parcel
from helpers.federations import make_trainer

SPLITS = ("train", "val", "test")


def alone(federation: Federation, client: int) -> Federation:
    """One client's samples as a federation of its own, in the order that they had."""
    rows = [federation.splits[split].positions(federation.clients()[client : client + 1])[0] for split in SPLITS]
    split = np.repeat(np.arange(3), [len(index) for index in rows])
    samples, index = federation.samples, np.concatenate([index.numpy() for index in rows])
    owner, name = np.zeros(len(index), dtype=np.int64), str(federation.names[client])
    return Federation.from_samples(samples, owner, split, position=index, task=federation.task, names=(name,))


def nodes_of(data: FederatedDataModule, folder: Path) -> list[Node]:
    """A node for each client, which keeps its state in a folder of its own."""
    federation = data.federation
    return [Node(alone(federation, t), folder / str(t)) for t in range(data.n_clients)]


class ByteLink:
    """A link whose nodes are in this process; it keeps what was asked and answered."""

    def __init__(self, nodes: list[Node]) -> None:
        self.nodes, self.silent = nodes, set[int]()
        self.log: list[tuple[int, Parcel, Parcel]] = []

    def connected(self) -> list[int]:
        return [n for n in range(len(self.nodes)) if n not in self.silent]

    def ask(self, requests: Mapping[int, Parcel]) -> Iterator[tuple[int, Parcel | None]]:
        for n, request in requests.items():
            if n in self.silent:
                yield n, None
                continue
            received = Parcel.from_bytes(request.to_bytes())
            reply = Parcel.from_bytes(self.nodes[n].answer(received).to_bytes())
            self.log.append((n, received, reply))
            yield n, reply


def train_and_test(model: Any, data: FederatedDataModule, rounds: int) -> pl.Trainer:
    """Trains and tests a model whose clients may be elsewhere; its Trainer."""
    model.remote = data.remote
    trainer = make_trainer(rounds)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*eta lambda")
        warnings.filterwarnings("ignore", message=".*cannot split")
        trainer.fit(model, data)
        trainer.test(model, data, verbose=False)
    return trainer
