"""The server's end of the connection: a link to clients, over gRPC.

A client calls `Next` with its reply to the last request, and gets the next one; the server holds the call until there
is one. While the client works, it calls `Beat`. So only clients open connections, and nothing but parcels is sent.
"""

import queue
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import grpc

from fedem_lightning.deploy.certificates import Keys, allowed, digest_of, name_of
from fedem_lightning.deploy.wire import Parcel
from fedem_lightning.errors import UserError

SERVICE = "fedem_lightning.Federation"
OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
"""No limit but that of gRPC, 2 GB a message."""

HOLD = 20.0
"""Seconds for which a call waits for a request; then the client calls again."""
AWAY = 20.0
"""Seconds without a sign of life after which a client counts as gone."""
MOST_CALLS = 1024
"""Clients that may be there at the same time."""
NUMBER = 8
"""Bytes of a request's number, which precedes a parcel."""


@dataclass
class Caller:
    """A client, as the server knows it."""

    name: str
    session: str  # a new one for each process of the client
    seen: float  # when it last called, by `time.monotonic`
    asked: tuple[int, bytes] | None = None  # number and content of the request that it has not answered
    replaced: set[str] = field(default_factory=set)  # sessions of its earlier processes


class GrpcLink:
    """Listens for clients, and asks them; a context.

    Args:
        address: HOST:PORT at which it listens.
        keys: folder of the server's certificate and of the list of clients; None: neither encryption nor
            authentication, for this machine alone.
        deadline: seconds in which a client must answer.

    Raises:
        UserError: somebody else listens there, or a file of `keys` is missing or broken.

    """

    def __init__(self, address: str, keys: Path | None, deadline: float) -> None:
        self.address, self.keys, self.deadline = address, keys, deadline
        self.sent_bytes = self.received_bytes = 0
        self._changed = threading.Condition()
        self._nodes = dict[int, Caller]()  # by their numbers, which stay with a name
        self._replies = queue.Queue[tuple[int, int, Parcel]]()
        self._number, self._closed = 0, False
        self._allowed = dict[str, str]()  # the newest list of clients that could be read
        self._broken = ""  # what is wrong with a newer one
        self._server = grpc.server(ThreadPoolExecutor(MOST_CALLS), options=[*OPTIONS, ("grpc.so_reuseport", 0)])
        calls = {"Next": grpc.unary_unary_rpc_method_handler(self._next)}
        calls["Beat"] = grpc.unary_unary_rpc_method_handler(self._beat)
        self._server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(SERVICE, calls)])
        self.port = self._listen()

    def _listen(self) -> int:
        try:
            if self.keys is None:
                return self._server.add_insecure_port(self.address)
            authority, certificate, key = Keys.read(self.keys)
            self._allowed = allowed(self.keys)  # what is wrong with it is said now
            tls = grpc.ssl_server_credentials([(key, certificate)], authority, require_client_auth=True)
            return self._server.add_secure_port(self.address, tls)
        except RuntimeError:
            reason = "another process does, it is no address of this machine, or the certificate is broken"
            raise UserError(f"cannot listen at {self.address}: {reason}") from None

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._server.stop(grace=1.0).wait()

    # --- what a run asks for ----------------------------------------------------------------------------------------

    def connected(self) -> list[int]:
        """The numbers of the nodes that are there now."""
        with self._changed:
            return [number for number, node in self._nodes.items() if self._there(node)]

    def name(self, node: int) -> str:
        """The name in a node's certificate; without certificates that which it gives itself."""
        return self._nodes[node].name

    def ask(self, requests: Mapping[int, Parcel]) -> Iterator[tuple[int, Parcel | None]]:
        """Sends each node its request; yields the replies as they come, and None for a node that does not answer."""
        end, waiting = time.monotonic() + self.deadline, dict[int, int]()
        for node, parcel in requests.items():
            content = parcel.to_bytes()
            with self._changed:
                self._number += 1
                self._nodes[node].asked = self._number, content
                waiting[self._number] = node
                self._changed.notify_all()
        while waiting:
            try:
                number, node, parcel = self._replies.get(timeout=0.2)
            except queue.Empty:
                gone = [
                    n for n, node in waiting.items() if time.monotonic() > end or not self._there(self._nodes[node])
                ]
                for number in gone:
                    node = waiting.pop(number)
                    self._forget(node, number)
                    yield node, None
                continue
            if waiting.pop(number, None) is not None:
                yield node, parcel

    def _there(self, node: Caller) -> bool:
        return time.monotonic() - node.seen < AWAY

    def _forget(self, node: int, number: int) -> bool:
        """Withdraws a request; whether it was the one that the node has not answered."""
        with self._changed:
            asked = self._nodes[node].asked
            if asked is None or asked[0] != number:
                return False
            self._nodes[node].asked = None
            return True

    # --- what clients call ------------------------------------------------------------------------------------------

    def _next(self, content: bytes, context: grpc.ServicerContext) -> bytes:
        """Takes a reply, or nothing; returns the next request, or nothing after `HOLD` seconds."""
        number, session = self._called(context)
        if content:
            answered = int.from_bytes(content[:NUMBER])
            self.received_bytes += len(content)
            if self._forget(number, answered):  # else it comes too late
                self._replies.put((answered, number, self._read(number, content[NUMBER:])))
        end = time.monotonic() + HOLD
        with self._changed:
            node = self._nodes[number]
            while node.asked is None and not self._closed and (left := end - time.monotonic()) > 0:
                node.seen = time.monotonic()
                self._changed.wait(min(left, 1.0))
                if node.session != session or not context.is_active():
                    return b""  # a process that was replaced is told so at its next call
            if node.asked is None:
                return b""
            asked, parcel = node.asked
        self.sent_bytes += len(parcel)
        return asked.to_bytes(NUMBER) + parcel

    def _list(self, keys: Path) -> dict[str, str]:
        """The clients that may join; if somebody has broken the list, the earlier one stays in force."""
        try:
            self._allowed = allowed(keys)
            self._broken = ""
        except UserError as error:
            if self._broken != str(error):
                self._broken = str(error)
                print(f"warning: {error}; the clients of the list before may still join", flush=True)
        return self._allowed

    def _read(self, node: int, content: bytes) -> Parcel:
        """The parcel that a client has sent; one with an error if it is none, or names another client."""
        try:
            parcel = Parcel.from_bytes(content)
            name = parcel.facts.get("name", self.name(node))
        except Exception as error:  # a client may send anything
            return Parcel({"error": f"an unreadable reply ({type(error).__name__})"}, {})
        if self.keys is not None and name != self.name(node):
            return Parcel({"error": f"a client with the certificate of {self.name(node)!r} gave another name"}, {})
        return parcel

    def _beat(self, content: bytes, context: grpc.ServicerContext) -> bytes:
        """Notes that a client is there, or, with b"leave", that it goes."""
        node = self._nodes[self._called(context)[0]]
        if content == b"leave":
            with self._changed:
                node.seen = -AWAY
        return b""

    def _called(self, context: grpc.ServicerContext) -> tuple[int, str]:
        """The number of the node that calls, and its session; the call ends with an error if it may not."""
        given = {key: str(value) for key, value in context.invocation_metadata()}
        name, session = bytes.fromhex(given.get("name", "")).decode(errors="replace"), given.get("session", "")
        if self.keys is not None:
            certificate = context.auth_context()["x509_pem_cert"][0]
            name = name_of(certificate)
            if self._list(self.keys).get(name) != digest_of(certificate):
                line = f"its list of clients has no {name!r} with this certificate"
                context.abort(grpc.StatusCode.PERMISSION_DENIED, line)
        now = time.monotonic()
        with self._changed:
            for number, node in self._nodes.items():
                if node.name != name:
                    continue
                if session in node.replaced:
                    context.abort(
                        grpc.StatusCode.ALREADY_EXISTS, f"a newer process of client {name!r} has replaced this one"
                    )
                if session != node.session:  # the client was started again; what it was asked is asked again
                    node.replaced.add(node.session)
                node.session, node.seen = session, now
                return number, session
            self._nodes[len(self._nodes)] = Caller(name, session, now)
            return len(self._nodes) - 1, session
