"""A client's process: it holds its samples and its state, and answers a server until it is stopped.

It fetches requests from the server, and sends replies, over gRPC (`grpc_server.py` has the protocol).
"""

import threading
import time
import uuid
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NamedTuple

import grpc

from fedem_lightning.data.own_files import load_client
from fedem_lightning.deploy.certificates import LONGEST_NAME, Keys
from fedem_lightning.deploy.grpc_server import AWAY, HOLD, NUMBER, OPTIONS, SERVICE
from fedem_lightning.deploy.node import Node
from fedem_lightning.deploy.status import Status
from fedem_lightning.deploy.wire import Parcel
from fedem_lightning.errors import UserError, require
from fedem_lightning.run.run_folder import only_run_in
from fedem_lightning.tasks import TaskName

AGAIN = 3.0
"""Seconds between two attempts to reach the server."""
REFUSED = (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.ALREADY_EXISTS, grpc.StatusCode.UNIMPLEMENTED)
"""What does not change by itself."""


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


def serve(
    answer: Callable[[Parcel], Parcel], server: str, name: str, keys: Path | None, say: Callable[[str], None] = print
) -> None:
    """Answers the server's requests, until the process is stopped; it waits for a server that is gone.

    Args:
        answer: makes the reply to a request; it raises nothing.
        server: its HOST:PORT.
        name: the client's, for a server without certificates.
        keys: folder of the client's certificate; None: no encryption.
        say: takes a line for whoever watches the client.

    Raises:
        UserError: the server refuses the client.

    """
    metadata = (("name", name.encode().hex()), ("session", uuid.uuid4().hex))
    with _channel(server, keys) as channel:
        next_, beat = (channel.unary_unary(f"/{SERVICE}/{method}") for method in ("Next", "Beat"))
        ended = threading.Event()
        thread = threading.Thread(target=_beat, args=(beat, metadata, ended), daemon=True, name="beat")
        reply, trouble = b"", ""
        thread.start()
        try:
            while True:
                try:
                    content = next_(reply, timeout=HOLD + AWAY, metadata=metadata)
                except grpc.RpcError as error:
                    line = _line(error, server)  # the reply is kept for the next attempt
                    if line != trouble:
                        say(f"{line}; trying again every {AGAIN:g} seconds")
                    trouble = line
                    time.sleep(AGAIN)
                    continue
                if trouble:
                    say(f"the server {server} is there again")
                reply, trouble = b"", ""
                if content:
                    reply = content[:NUMBER] + answer(Parcel.from_bytes(content[NUMBER:])).to_bytes()
        finally:
            ended.set()
            thread.join()


def _channel(server: str, keys: Path | None) -> grpc.Channel:
    options = [*OPTIONS, ("grpc.max_reconnect_backoff_ms", int(1000 * AGAIN))]
    if keys is None:
        return grpc.insecure_channel(server, options)
    authority, certificate, key = Keys.read(keys)
    return grpc.secure_channel(server, grpc.ssl_channel_credentials(authority, key, certificate), options)


def _beat(call: Any, metadata: Any, ended: threading.Event) -> None:
    """Tells the server that the client is there, also while it works; and at the end that it goes."""
    while not ended.wait(AWAY / 4):
        _quietly(call, b"", metadata)
    _quietly(call, b"leave", metadata)


def _quietly(call: Any, content: bytes, metadata: Any) -> None:
    with suppress(grpc.RpcError):  # the next call says it
        call(content, timeout=2.0, metadata=metadata)


def _line(error: Any, server: str) -> str:
    """What is wrong, as a line.

    Raises:
        UserError: another attempt would end in the same way.

    """
    code, details = error.code(), " ".join(str(error.details()).split())[:300]
    if "handshake failed" in details.lower() and "certificate" in details.lower():
        why = "its certificate is not of the authority in ca.pem, or for another name than the one in --server"
        raise UserError(f"the server {server} is not the one that --keys are for: {why}") from None
    if code in REFUSED:
        raise UserError(f"the server {server} refuses this client: {details}") from None
    if "Socket closed" in details:
        return f"the server {server} closes the connection: it expects certificates, or those of another authority"
    return f"the server {server} does not answer ({details})"
