"""Flower's ServerApp: an ordinary run, whose clients are the federation's nodes.

The run's configuration (`flwr run --run-config`): overrides, words of the command line, such as "+experiment=digits
algorithm=fedem"; clients, the number of clients that must be there; run-dir, the run's folder; deadline, the seconds in
which a client must answer; patience, the seconds in which all clients must appear; secure, whether the
server learns sums of updates only.
"""

import shlex
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from flwr.app import Context, Message, MessageType
from flwr.serverapp import Grid, ServerApp

from fedem_lightning.deploy.flower_client import parcel_of, record_of
from fedem_lightning.deploy.server import run_on
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

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Waits for the clients, then trains and tests."""
    options = context.run_config
    folder, words = Path(str(options["run-dir"])).resolve(), shlex.split(str(options["overrides"]))
    link = FlowerLink(grid, float(options["deadline"]))
    run_on(link, words, folder, int(options["clients"]), float(options["patience"]), bool(options["secure"]))


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
