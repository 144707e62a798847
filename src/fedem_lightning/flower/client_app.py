"""Flower's ClientApp: a client that trains on its own samples, and scores its own model.

The node's configuration (`flower-supernode --node-config`) has `data`, an .npz file with x, y and, optionally, split;
and, optionally, `name`, `task`, `n_classes` (`load_client`), `model`, a .safetensors file for the newest
model, and `trust`, packages of the user's that the method may name, by commas. Or it has `partition-id`, as in Flower's
simulation: then the client is that one of the data set that the run's configuration names in `overrides`.
"""

import json
import shlex
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import torch
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from hydra.utils import instantiate

from fedem_lightning.aggregate import check_update
from fedem_lightning.data.datamodule import FederatedDataModule
from fedem_lightning.data.federation import Federation
from fedem_lightning.data.formats import read_npz
from fedem_lightning.data.schema import Schema
from fedem_lightning.data.splits import SPLITS
from fedem_lightning.data.tasks import TaskName
from fedem_lightning.evaluate.scores import models_scored, scored_columns, scores_of
from fedem_lightning.flower.messages import arrays
from fedem_lightning.models.personal_models import ClientModels, OwnModels
from fedem_lightning.module.algorithm import FederatedAlgorithm
from fedem_lightning.module.checkpoints import made_from, take_dtypes
from fedem_lightning.module.fitting import prepare
from fedem_lightning.run.command_line import composed
from fedem_lightning.serving.model_files import write_clients
from fedem_lightning.settings import configs as configs  # it registers the resolvers of the configurations
from fedem_lightning.settings.errors import require

app = ClientApp()
FIRST = torch.zeros(1, dtype=torch.int64)  # the client's index in its own federation


@app.query()
def describe(message: Message, context: Context) -> Message:
    """The client's name, the form of its samples, and the number of them that it trains on."""
    federation = federation_of(context)
    about: dict[str, Any] = {
        "place": -1 if "data" in context.node_config else int(context.node_config["partition-id"]),
        "name": str(federation.names[0]),
        "n_train": int(federation.splits["train"].counts().sum()),
        "form": json.dumps(sample_form(federation)),
    }
    return Message(RecordDict({"client": ConfigRecord(about)}), reply_to=message)


@app.train()
@torch.no_grad()
def train(message: Message, context: Context) -> Message:
    """The client update of a round, and the rows of client state that the method reports; Flower keeps the state."""
    federation = federation_of(context)
    algorithm = algorithm_of(message.content, context, federation)
    put_back = algorithm.states.remember(FIRST)
    update = algorithm.client_update(federation.block(FIRST, "train"), algorithm.statistics.rounds)
    put_back(algorithm.states.diverged(FIRST))
    check_update(algorithm, update)
    reply: dict[str, Any] = {"reported": arrays(algorithm.states.of("both"))}
    if update is not None:
        reply |= {"models": arrays(update.models), "extras": arrays(update.extras)}
        reply |= {"weights": arrays({"weights": update.weights})}
        reply |= {} if update.group is None else {"group": arrays({"group": update.group})}
    sums: dict[str, Any] = {name: [*map(float, pair)] for name, pair in algorithm.round_metrics.sums().items()}
    context.state["state"] = arrays(dict(algorithm.state_dict()))
    return Message(RecordDict(reply | {"sums": MetricRecord(sums)}), reply_to=message)


@app.evaluate()
@torch.no_grad()
def score(message: Message, context: Context) -> Message:
    """The mean scores of the client's model on each split; what scoring changes in the client's state is forgotten."""
    federation = federation_of(context)
    algorithm = algorithm_of(message.content, context, federation)
    if algorithm.personalizes_seen:
        algorithm.personalize_clients(federation, FIRST)
    _, personal = next(models_scored(algorithm, federation, FIRST, FIRST))
    measures = scores_of(personal, federation)
    result: dict[str, Any] = {f"{split}/{m}": value for split, part in measures.items() for m, value in part.items()}
    result |= {f"{split}/size": int(federation.splits[split].counts().sum()) for split in SPLITS}
    columns = personal.columns if isinstance(personal, OwnModels) else {}
    result |= {f"column/{name}": float(columns[name][0]) for name in scored_columns(algorithm)}
    if "model" in context.node_config and algorithm.schema is not None:  # `algorithm_of` has prepared it
        models = ClientModels((algorithm.schema.name(0),), personal, algorithm.schema)
        write_clients(Path(str(context.node_config["model"])), models)
    return Message(RecordDict({"scores": MetricRecord(result)}), reply_to=message)


def algorithm_of(content: RecordDict, context: Context, federation: Federation) -> FederatedAlgorithm:
    """The server's algorithm for this client alone, with its state."""
    about: Any = content["about"]
    state = context.state.get("state") or content.get("start")
    require(state is not None, "this client has lost its state, and begins anew in the next round")
    tensors, sent = (dict(record.to_torch_state_dict()) for record in (state, content["sent"]))  # type: ignore[union-attr]
    trust = [package for package in str(context.node_config.get("trust", "")).split(",") if package]
    given = {"n_clients": 1, "participation": 1.0, "scored_clients": 1.0, "faults": None}
    algorithm: FederatedAlgorithm = made_from(json.loads(about["recipe"]), None, trust, given)
    take_dtypes(algorithm, tensors)
    algorithm.load_state_dict(tensors)
    algorithm.load_state_dict(sent, strict=False)
    federation.keys = torch.tensor([int(about["client"])])
    algorithm.statistics.planned_rounds = int(about["planned_rounds"])
    algorithm.statistics.round_seconds = [0.0] * int(about["round"])
    one_process = SimpleNamespace(world_size=1, global_rank=0, strategy=None)
    algorithm.trainer = one_process  # type: ignore[assignment]
    prepare(algorithm, federation)
    return algorithm


def sample_form(federation: Federation) -> dict[str, Any]:
    """The form of a federation's samples as plain values, without facts about its clients."""
    several = ", ".join(federation.in_shape) if isinstance(federation.in_shape, Mapping) else ""
    require(not several, f"dataset: samples of several arrays ({several}) cannot be sent to distributed clients")
    state = Schema.of(federation).state()
    state["whole"] = dict.fromkeys(state["whole"], 1)  # how large they are differs between clients
    return {name: value for name, value in state.items() if name not in ("seen", "n_train", "names")}


def load_client(
    path: Path, name: str | None = None, task: TaskName = "classification", n_classes: int | None = None
) -> Federation:
    """A federation of one client from an .npz file, whose name it has without `name`; splits as there."""
    arrays = read_npz(path, ("x", "y", "split"))
    require({"x", "y"} <= arrays.keys(), f"data: expected x, y and optional split in {path}, got {', '.join(arrays)}")
    single, names = np.zeros(len(arrays["x"]), dtype=np.int64), np.array([name or path.stem])
    options: dict[str, Any] = {"task": task, "n_classes": n_classes, "split": arrays.get("split"), "names": names}
    options["standardize_targets"] = False  # clients do not know each other's targets
    return FederatedDataModule.from_arrays(arrays["x"], arrays["y"], single, **options).federation


def federation_of(context: Context) -> Federation:
    """The samples of this node's client: a federation of one."""
    node = context.node_config
    if "data" in node:
        name, task = str(node.get("name", "")) or None, cast(TaskName, node.get("task", "classification"))
        return load_client(Path(str(node["data"])), name, task, int(node.get("n_classes", 0)) or None)
    require("partition-id" in node, "--node-config: expected data, an .npz file, or partition-id")
    whole, t = _configured(str(context.run_config["overrides"])), int(node["partition-id"])
    n, nodes = whole.n_clients, int(node.get("num-partitions", whole.n_clients))
    require(bool(whole.seen.all()), "dataset: unseen clients are not there under Flower; leave dataset.unseen_* out")
    require(nodes == n and t < n, f"partition-id: the data set has {n} clients, the federation {nodes} nodes")
    rows = [whole.splits[split].positions(torch.tensor([t]))[0] for split in SPLITS]
    split = np.repeat(np.arange(len(SPLITS)), [len(part) for part in rows])
    return Federation.from_samples(
        whole.samples,
        np.zeros(len(split), dtype=np.int64),
        split,
        position=torch.cat(rows).numpy(),
        task=whole.task,
        names=(str(whole.names[t]),),
        notes=whole.notes,
        features=whole.features,
    )


@lru_cache(maxsize=1)
def _configured(overrides: str) -> Federation:
    """The federation that the run's configuration names; a process of Flower's simulation serves several clients."""
    federation: Federation = instantiate(composed(shlex.split(overrides)).dataset).federation
    return federation
