"""A client's process: it holds its samples and its state, and answers a server until it is stopped."""

import time
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from fedem_lightning.data.one_client import load_client
from fedem_lightning.deploy.grpc_client import serve
from fedem_lightning.deploy.keys import LONGEST_NAME, Keys
from fedem_lightning.deploy.node import Node
from fedem_lightning.deploy.status import Status
from fedem_lightning.deploy.wire import Parcel
from fedem_lightning.errors import require
from fedem_lightning.run.run_folder import only_run_in
from fedem_lightning.tasks import TaskName


class Client(NamedTuple):
    """What a client is started with.

    Args:
        data: its .npz file, see `load_client`.
        server: HOST:PORT.
        keys: folder of its certificate; None: neither encryption nor authentication.
        name: its name; empty: that in the certificate, or in the data file.
        state: the folder of its state; None: fedem_state/NAME beside the data.
        task, n_classes: see `load_client`.
        trust: packages of the user's whose classes the server may name.
        require_secure: whether it refuses to send an update that is not masked.

    """

    data: Path
    server: str
    keys: Path | None = None
    name: str = ""
    state: Path | None = None
    task: TaskName = "classification"
    n_classes: int = 0
    trust: tuple[str, ...] = ()
    require_secure: bool = False

    def run(self) -> None:
        """Answers the server's requests, until the process is stopped.

        Raises:
            UserError: a mistake in the file or the options, or the server refuses the client.

        """
        certified = Keys.read(self.keys).name if self.keys is not None else None
        given = self.name or certified
        require(
            given == (certified or given),
            f"--name: the certificate in {self.keys} is that of {certified!r}; leave it out",
        )
        federation = load_client(self.data, given or None, self.task, self.n_classes or None)
        name = str(federation.names[0])
        plain = Path(name).name == name and name != ".." and len(name) <= LONGEST_NAME
        require(plain or self.state is not None, f"--name: {name} is no name of a folder; give --state DIR as well")
        folder = (self.state or self.data.resolve().parent / "fedem_state" / name).resolve()
        node = Node(federation, folder, self.trust, self.require_secure)
        answers = Answers(node)
        with ExitStack() as stack:
            stack.enter_context(only_run_in(folder, "--state"))
            stack.enter_context(Status(folder, answers.facts))
            say(f"{name}: {federation}; state in {folder}")
            serve(answers, self.server, name, self.keys, say)


class Answers:
    """A node's replies, with a line for each round.

    Args:
        node: that replies.

    """

    def __init__(self, node: Node) -> None:
        self.node, self.doing, self.round = node, "waits for requests", 0

    def __call__(self, request: Parcel) -> Parcel:
        """The reply to a request."""
        kind, begun = str(request.facts.get("kind"))[:20], time.monotonic()
        if isinstance(number := request.facts.get("round"), int):
            self.round = number + (kind == "train")
        self.doing = f"answers: {kind}"
        reply = self.node.answer(request)
        self.doing = "waits for requests"
        done = "trained" if kind == "train" else kind
        error = reply.facts.get("error")
        say(f"round {self.round}: {done if error is None else error}, {time.monotonic() - begun:.1f} s")
        return reply

    def facts(self) -> dict[str, object]:
        """What the client does now."""
        return {"state": self.doing, "round": self.round}


def say(line: str) -> None:
    """Prints a line with the time, at once: it is read in a log."""
    print(f"{time.strftime('%H:%M:%S')} {line}", flush=True)
