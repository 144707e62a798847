"""A Flower federation in this process: the apps are called with messages as Flower would hand them over."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from unittest.mock import create_autospec

import numpy as np
import pandas as pd
import pytest
import torch

from fedem_lightning import FederatedDataModule, SyntheticMixture

pytest.importorskip("flwr", reason="the Flower app needs the extra flower")

from flwr.app import Context, Error, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from fedem_lightning.flower import client_app, server_app

WORDS = "dataset.n_clients=3 dataset.dimension=6 dataset.test_size=30 trainer.max_epochs=2 initialization=random"
"""The configuration of a small run."""

for _name in ("task_id", "run_id", "node_id"):
    setattr(TaskIdentity, f"_{_name}", 1)  # which Flower's own processes set, and messages ask for


class InProcess:
    """A grid whose nodes answer at once; node 100 + t is client t of a data set, which all nodes can read.

    Args:
        data: of all clients; or their number: the run's configuration names the data.
        monkeypatch: it hands the data over.
        run_config: of the run.

    """

    def __init__(self, data: FederatedDataModule | int, monkeypatch: pytest.MonkeyPatch, **run_config: Any) -> None:
        n_clients = data if isinstance(data, int) else data.n_clients
        if not isinstance(data, int):
            monkeypatch.setattr(client_app, "_configured", lambda overrides: data.federation)
        nodes: dict[int, Any] = {100 + t: {"partition-id": t} for t in range(n_clients)}
        self.run_config = {"overrides": "", "clients": n_clients, "deadline": 0.1, **run_config}
        self.contexts = {id_: Context(1, id_, node, RecordDict(), self.run_config) for id_, node in nodes.items()}
        self.silent = set[int]()  # clients that are not there
        self.late = set[int]()  # clients that are there, and never answer
        self.grid = create_autospec(Grid, instance=True)
        self.grid.get_node_ids = lambda: [node for node in self.contexts if node - 100 not in self.silent]
        self.grid.send_and_receive = self.send_and_receive
        self.spoil = dict[tuple[int, str], Callable[[RecordDict], object]]()  # changes a client's replies of a kind
        self.log: list[tuple[int, Message, Message]] = []

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        replies = []
        for message in messages:
            node = message.metadata.dst_node_id
            message.metadata.__dict__["_message_id"] = str(node)
            if node - 100 in self.late:
                continue
            try:
                with torch.inference_mode(False):  # the server's Trainer scores in this process
                    reply = client_app.app(message, self.contexts[node])
            except Exception as error:  # as Flower's processes do
                reply = Message(Error(code=2, reason=f"{type(error)}:<'{error}'>"), reply_to=message)
            change = self.spoil.get((node - 100, message.metadata.message_type))
            if change is not None:
                change(reply.content)
            self.log.append((node - 100, message, reply))
            replies.append(reply)
        return replies

    def run(self) -> None:
        server_app.main(self.grid, Context(1, 0, {}, RecordDict(), self.run_config))

    def joined(self, n_clients: int = 1) -> server_app.JoinedClients:
        return server_app.JoinedClients(self.grid, n_clients, 0.1)


def difference(run: Path, other: Path) -> float:
    """The largest difference of two runs in parameters of components and in scores."""
    states, tables = [], []
    for folder in (run, other):
        state = torch.load(folder / "checkpoints" / "round-000002.ckpt", weights_only=True)["state_dict"]
        states.append(torch.cat([t.flatten() for name, t in state.items() if name.startswith("components.")]))
        tables.append(pd.read_parquet(folder / "clients.parquet").filter(regex="_(accuracy|loss)$"))
    scores = float(np.abs(tables[0].to_numpy() - tables[1][tables[0].columns].to_numpy()).max())
    return max(scores, float((states[0] - states[1]).abs().max()))


def save_client(client: int, path: Path) -> None:
    """Writes a client's samples as its owner would."""
    federation: Any = SyntheticMixture(3, dimension=6, test_size=30).federation
    rows = [federation.splits[name].positions(torch.tensor([client]))[0] for name in ("train", "val", "test")]
    index, split = torch.cat(rows), np.repeat(np.arange(3), [len(part) for part in rows])
    np.savez(path, x=federation.samples.x[index].numpy(), y=federation.samples.labels(index).numpy(), split=split)
