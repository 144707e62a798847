"""Flower's ServerApp: an ordinary run, whose clients are the federation's nodes.

The run's configuration (`flwr run --run-config`): `overrides`, words of the command line, such as "+experiment=digits
algorithm=fedem"; `clients`, the number of clients that must be there; `run-dir`, the run's folder; `deadline`, the
seconds in which all clients must appear, and in which each must answer.
"""

import functools
import shlex
import time
from collections import Counter
from pathlib import Path

import numpy as np
import torch
from flwr.app import Context, Message, MessageType, RecordDict
from flwr.serverapp import Grid, ServerApp
from omegaconf import DictConfig, OmegaConf, open_dict

from fedem_lightning.data.datamodule import FederatedDataModule
from fedem_lightning.flower.clients import FlowerClients
from fedem_lightning.flower.messages import Described, Refused, content_of, description_in, schema_of
from fedem_lightning.module.growth import federation_of
from fedem_lightning.run.cli import called_by
from fedem_lightning.run.command_line import composed
from fedem_lightning.run.execute import run
from fedem_lightning.settings.configs import data_and_network
from fedem_lightning.settings.errors import require

app = ServerApp()
_joined: "JoinedClients | None" = None  # those of the run that goes on: a configuration cannot hold them


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Waits for the clients, then trains and tests."""
    global _joined
    options = context.run_config
    words, folder = shlex.split(str(options["overrides"])), str(options["run-dir"])
    require(folder != "", "run-dir: expected the run's folder on the server, an absolute path")
    config = composed(words, return_hydra_config=True)
    require(config.ckpt_path is None, "ckpt_path: a run under Flower cannot go on, its clients' states end with it")
    _joined = JoinedClients(grid, int(options["clients"]), float(options["deadline"]))
    choices = called_by(config.hydra.runtime.choices)
    if _joined.own_files and not any(word.lstrip("+").startswith(("dataset=", "experiment=")) for word in words):
        # rates are those of the default data set, which these clients do not have
        config = composed([*words, "~rates"], return_hydra_config=True)
    with_clients(config)
    choices |= {"dataset": "flower"} if _joined.own_files else {}
    run(config, Path(folder).expanduser().resolve(), choices, words)


def joined_clients() -> "JoinedClients":
    """The clients of the run that goes on: the data of its configuration."""
    assert _joined is not None  # `main` has set it
    return _joined


def with_clients(config: DictConfig) -> None:
    """Makes a configuration that of a server; rates that were chosen for the named data hold for the clients' data."""
    select = functools.partial(OmegaConf.select, config)
    chosen = config.rates_chosen_for == data_and_network(select)
    with open_dict(config):
        del config["hydra"]
        config.dataset = {"_target_": f"{__name__}.joined_clients"}
        config.trainer.devices, config.trainer.accelerator = 1, "cpu"  # the server only averages
        if chosen:
            config.rates_chosen_for = data_and_network(select)


class JoinedClients(FederatedDataModule):
    """The clients that are there within `deadline` seconds, UserError if too few; their samples stay with them."""

    def __init__(self, grid: Grid, n_clients: int, deadline: float) -> None:
        end = time.monotonic() + deadline
        while len(nodes := sorted(grid.get_node_ids())) < n_clients and time.monotonic() < end:
            time.sleep(1.0)
        result, refused = _described(grid, nodes, deadline)
        lines = [f"{len(result)} of {n_clients} were there after {deadline:g} seconds", *refused]
        require(len(result) >= max(1, n_clients), f"clients: {'; '.join(lines)}")
        for line in (*refused, *(f"client {one.name}: {one.n_train} training samples" for one in result.values())):
            print(line, flush=True)
        schema = schema_of(list(result.values()))
        kind = np.uint8 if schema.pixels is not None else np.int64 if schema.takes_codes else np.float32
        none, samples = torch.zeros(0, dtype=torch.int64), schema.samples_of(np.zeros((0, *schema.raw_shape), kind))
        super().__init__(federation_of(schema, samples, none, none, ()))
        self.remote, self.own_files = FlowerClients(grid, result, deadline), min(result.values()).place < 0


def _described(grid: Grid, nodes: list[int], deadline: float) -> tuple[dict[int, Described], list[str]]:
    """What clients say of themselves by node, in the order of places and names; and why others are refused."""
    messages = [Message(RecordDict(), node, MessageType.QUERY, ttl=deadline) for node in nodes]
    replies = {reply.metadata.src_node_id: reply for reply in grid.send_and_receive(messages, timeout=deadline)}
    result, refused = dict[int, Described](), list[str]()
    for node in nodes:
        try:
            result[node] = description_in(content_of(replies.get(node)))
        except Refused as error:
            refused.append(f"node {node} is refused: {error.line}")
    forms, names = (Counter(getattr(one, key) for one in result.values()) for key in ("form", "name"))
    usual = max(forms, key=forms.__getitem__, default="")
    for node, one in list(result.items()):
        if one.form != usual or names[one.name] > 1:
            why = "its samples have another form than most clients'" if one.form != usual else "two have this name"
            refused.append(f"client {one.name} is refused: {why}")
            del result[node]
    return dict(sorted(result.items(), key=lambda item: item[1])), refused
