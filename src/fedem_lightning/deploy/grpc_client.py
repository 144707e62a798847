"""The client's end of the connection: it fetches requests from the server, and sends replies, over gRPC."""

import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc

from fedem_lightning.deploy.grpc_server import AWAY, HOLD, NUMBER, OPTIONS, SERVICE
from fedem_lightning.deploy.keys import Keys
from fedem_lightning.deploy.wire import Parcel
from fedem_lightning.errors import UserError

AGAIN = 3.0
"""Seconds between two attempts to reach the server."""
REFUSED = (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.ALREADY_EXISTS, grpc.StatusCode.UNIMPLEMENTED)
"""What does not change by itself."""


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
