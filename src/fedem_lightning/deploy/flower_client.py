"""Flower's ClientApp: each message is a parcel, which the client's node answers.

The node's configuration (`flower-supernode --node-config`): data, an .npz file (`data.load_client`); and, optionally,
name, task, n_classes, state (the folder of the client's state; default: fedem_state/NAME), trust (packages, by commas),
require_secure (true: the client sends updates masked, or not at all).
"""

import json
from functools import lru_cache
from pathlib import Path

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedem_lightning.data.own_files import load_client
from fedem_lightning.deploy.node import Node
from fedem_lightning.deploy.wire import Parcel, failed
from fedem_lightning.errors import UserError, require

app = ClientApp()


def record_of(parcel: Parcel) -> RecordDict:
    """The content of a Flower message: the tensors as an ArrayRecord, the facts as JSON in a ConfigRecord."""
    facts = ConfigRecord({"json": json.dumps(parcel.facts)})
    return RecordDict({"tensors": ArrayRecord(torch_state_dict=parcel.tensors), "facts": facts})


def parcel_of(record: RecordDict) -> Parcel:
    """The parcel that `record_of` made a record of."""
    facts, tensors = record["facts"], record["tensors"]
    assert isinstance(facts, ConfigRecord)
    assert isinstance(tensors, ArrayRecord)
    return Parcel(json.loads(str(facts["json"])), dict(tensors.to_torch_state_dict()))


def folder_of_client(name: str) -> Path:
    """Where a client of this name keeps its state, unless it is told another folder.

    Raises:
        UserError: the name, which the data file may say, leads elsewhere.

    """
    above = Path("fedem_state")
    inside = above.resolve() in (above / name).resolve().parents
    require(inside, f"name: {name[:40]!r} is no name of a folder below {above}; name another folder with state=")
    return above / name


@lru_cache(maxsize=1)
def node_of(data: str, name: str, task: str, n_classes: int, state: str, trust: str, require_secure: bool) -> Node:
    """The node of this process's client."""
    federation = load_client(Path(data), name or None, task, n_classes or None)  # type: ignore[arg-type]
    folder = Path(state) if state else folder_of_client(str(federation.names[0]))
    return Node(federation, folder, [package for package in trust.split(",") if package], require_secure)


def answer(message: Message, context: Context) -> Message:
    """The node's reply."""
    config = context.node_config
    texts = (str(config.get(key, default)) for key, default in (("name", ""), ("task", "classification")))
    n_classes, rest = int(config.get("n_classes", 0)), (str(config.get(key, "")) for key in ("state", "trust"))
    require_secure = config.get("require_secure", False)
    try:
        require("data" in config, "the node's configuration lacks data, the client's .npz file")
        meant = isinstance(require_secure, bool)
        require(meant, f"the node's configuration: require_secure: expected true or false, got {require_secure!r}")
        node = node_of(str(config["data"]), *texts, n_classes, *rest, bool(require_secure))
        node.context = context  # which Flower keeps for the run; this process ends with the message
        reply = node.answer(parcel_of(message.content))
    except UserError as error:
        reply = failed(error)
    return Message(record_of(reply), reply_to=message)


for register in (app.query, app.train, app.evaluate):
    register()(answer)
