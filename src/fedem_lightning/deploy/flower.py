"""Parcels as Flower's messages, and Flower's grid as a link."""

import json
import time
from collections.abc import Iterator, Mapping

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from fedem_lightning.deploy.wire import Parcel

KINDS = {
    "describe": MessageType.QUERY,
    "train": MessageType.TRAIN,
    "answer": MessageType.QUERY,
    "score": MessageType.EVALUATE,
    "secure": MessageType.TRAIN,
}
PAUSE = 0.1
"""Seconds between two looks for replies."""


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


class FlowerLink:
    """The nodes of a Flower federation.

    Args:
        grid: that the ServerApp was given.
        deadline: seconds in which a node must answer.

    """

    def __init__(self, grid: Grid, deadline: float) -> None:
        self.grid, self.deadline = grid, deadline

    def connected(self) -> list[int]:
        """The ids of the nodes that are there now."""
        return sorted(self.grid.get_node_ids())

    def ask(self, requests: Mapping[int, Parcel]) -> Iterator[tuple[int, Parcel | None]]:
        """Sends each node its request; yields the replies as they come, and None for a node that does not answer."""
        there = set(self.connected())
        asked = [node for node in requests if node in there]
        messages = [
            Message(
                record_of(requests[node]),
                dst_node_id=node,
                message_type=KINDS[requests[node].facts["kind"]],
                ttl=self.deadline,
            )
            for node in asked
        ]
        waiting = dict(zip(self.grid.push_messages(messages), asked, strict=True)) if messages else {}
        end = time.monotonic() + self.deadline
        while waiting and time.monotonic() < end:
            for reply in self.grid.pull_messages(list(waiting)):
                node = waiting.pop(reply.metadata.reply_to_message_id)
                yield node, None if reply.has_error() else parcel_of(reply.content)
            time.sleep(PAUSE)
        for node in [*waiting.values(), *(node for node in requests if node not in there)]:
            yield node, None
