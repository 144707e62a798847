"""Flower's ClientApp: each message is answered by the client's node.

The node's configuration (`flower-supernode --node-config`): data, an .npz file (`data.load_client`); and, optionally,
name, task, n_classes, state (the folder of the client's state; default: fedem_state/NAME), trust (packages, by commas).
"""

from functools import lru_cache
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedem_lightning.deploy.data import load_client
from fedem_lightning.deploy.flower import parcel_of, record_of
from fedem_lightning.deploy.flower_secure import is_secure, mask, reply_record, request_of
from fedem_lightning.deploy.node import Node, failed, folder_of
from fedem_lightning.deploy.wire import Parcel
from fedem_lightning.errors import UserError, require

app = ClientApp(mods=[mask])


@lru_cache(maxsize=1)
def node_of(data: str, name: str, task: str, n_classes: int, state: str, trust: str) -> Node:
    """The node of this process's client."""
    federation = load_client(Path(data), name or None, task, n_classes or None)  # type: ignore[arg-type]
    folder = Path(state) if state else folder_of(str(federation.names[0]))
    return Node(federation, folder, [package for package in trust.split(",") if package])


def answer(message: Message, context: Context) -> Message:
    """The node's reply."""
    if is_secure(message):
        return Message(reply_record(_reply(request_of(message), context)), reply_to=message)
    return Message(record_of(_reply(parcel_of(message.content), context)), reply_to=message)


def _reply(request: Parcel, context: Context) -> Parcel:
    config = context.node_config
    texts = (str(config.get(key, default)) for key, default in (("name", ""), ("task", "classification")))
    n_classes, rest = int(config.get("n_classes", 0)), (str(config.get(key, "")) for key in ("state", "trust"))
    try:
        require("data" in config, "the node's configuration lacks data, the client's .npz file")
        node = node_of(str(config["data"]), *texts, n_classes, *rest)
    except UserError as error:
        return failed(error)
    return node.answer(request)


for register in (app.query, app.train, app.evaluate):
    register()(answer)
