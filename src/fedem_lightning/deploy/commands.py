"""What the commands of `python -m fedem_lightning.deploy` do."""

import argparse
import shlex
import signal
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from hydra.core.override_parser.overrides_parser import OverridesParser

from fedem_lightning.deploy.status import show_status
from fedem_lightning.errors import require, require_number, require_whole
from fedem_lightning.startup.loading import loading

LOOPBACK = ("127.0.0.1", "localhost")
"""Addresses that no other machine reaches."""
_LONGEST_WAIT = 1e9
"""Seconds."""
_PORTS = 65_536
"""Numbers of ports are below it."""
_LONGEST_VALID = 3650
"""Days."""


def of(name: str) -> Callable[[argparse.Namespace], None]:
    """The function of a command."""
    return {"demo": demo, "server": server, "client": client, "keys": keys, "status": status, "app": app}[name]


def demo(chosen: argparse.Namespace) -> None:
    """A federation on this machine."""
    _check_waiting(chosen)
    require_whole("--clients", chosen.clients, at_least=1)
    with loading():
        from fedem_lightning.deploy.demo import demonstrate

    folder, words = folder_of(chosen.words)
    program = ["demo", "--clients", str(chosen.clients), *_waiting(chosen)]
    demonstrate(words, folder, chosen.clients, chosen.deadline, chosen.secure, program)


def server(chosen: argparse.Namespace) -> None:
    """Listens for clients, and runs once."""
    _check_waiting(chosen)
    require_number("--patience", chosen.patience, at_least=0.0, below=_LONGEST_WAIT)
    require_whole("--clients", chosen.clients, at_least=1)
    require_whole("--port", chosen.port, at_least=0, below=_PORTS)
    _check_trust(chosen, chosen.host, f"--host {chosen.host}")
    with loading():
        from fedem_lightning.deploy.grpc_server import GrpcLink
        from fedem_lightning.deploy.server import run_on

    folder, words = folder_of(chosen.words)
    program = ["server", "--clients", str(chosen.clients), "--host", chosen.host, "--port", str(chosen.port)]
    program += ["--insecure"] if chosen.keys is None else ["--keys", str(chosen.keys.resolve())]
    program += ["--patience", f"{chosen.patience:g}", *_waiting(chosen)]
    with GrpcLink(f"{chosen.host}:{chosen.port}", chosen.keys, chosen.deadline) as link:
        print(f"waiting for {chosen.clients} clients at {chosen.host}:{link.port}", flush=True)
        run_on(link, words, folder, chosen.clients, chosen.patience, chosen.secure, program)


def client(chosen: argparse.Namespace) -> None:
    """Answers a server, until it is stopped."""
    host = _host_of("--server", chosen.server)
    require_whole("--n-classes", chosen.n_classes, at_least=0)
    _check_trust(chosen, host, f"--server {chosen.server}")
    with loading():
        from fedem_lightning.deploy.client import Client, say

    given = {name: getattr(chosen, name) for name in Client._fields}
    try:
        Client(**given | {"trust": tuple(chosen.trust)}).run()
    except KeyboardInterrupt:
        say("stopped")  # as it was told


def keys(chosen: argparse.Namespace) -> None:
    """Certificates for the server and for clients."""
    from fedem_lightning.deploy.keys import CLIENTS, make_keys, remove_clients

    require_whole("--days", chosen.days, at_least=1, below=_LONGEST_VALID)
    if chosen.remove:
        require(not chosen.client and not chosen.server, "--remove: leave out --client and --server")
        remove_clients(chosen.folder, chosen.remove)
        print(f"{chosen.folder / 'server' / CLIENTS}: {', '.join(chosen.remove)} may no longer join")
        return
    for folder in make_keys(chosen.folder, chosen.server, chosen.client, chosen.days, chosen.renew):
        print(f"written: {folder}")
    print(f"{chosen.folder / 'authority'} makes new clients: keep it secret, and apart from the server")


def status(chosen: argparse.Namespace) -> None:
    """What a server or a client does."""
    show_status(chosen.folder)


def app(chosen: argparse.Namespace) -> None:
    """The Flower app's folder."""
    from fedem_lightning.deploy.flower_app import CONNECTION, write_app

    require(not chosen.folder.exists(), f"{chosen.folder} is there already; choose another folder")
    host, ca = _host_of("--superlink", chosen.superlink), chosen.ca
    require(ca is None or ca.is_file(), f"--ca: {ca} is not there")
    require(
        ca is not None or host in LOOPBACK,
        f"--superlink {chosen.superlink}: without TLS, others could change what is sent; give --ca FILE",
    )
    home, folder = write_app(chosen.folder, chosen.superlink, ca and ca.resolve()), shlex.quote(str(chosen.folder))
    example = f'overrides="+experiment=digits" clients=3 run-dir="{Path("runs/deployed").resolve()}"'
    print(f"FLWR_HOME={shlex.quote(str(home))} flwr run {folder} {CONNECTION} --run-config '{example}' --stream")


def stop_at_term() -> None:
    """SIGTERM, which Docker and systemd send, is as Ctrl-C from here on."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)


def folder_of(words: list[str]) -> tuple[Path, list[str]]:
    """The run's folder, and the words without it."""
    kept = [word for word in words if not word.startswith("run_dir=")]
    named = f"outputs/deploy/{datetime.now():%Y-%m-%d_%H-%M-%S}"
    if len(kept) < len(words):
        given = next(word for word in reversed(words) if word not in kept)
        named = str(OverridesParser.create().parse_override(given).value())  # it may be quoted
    return Path(named).expanduser().resolve(), kept


def _host_of(option: str, address: str) -> str:
    """The host of an address, after a check that this is HOST:PORT."""
    host, _, port = address.rpartition(":")
    known = bool(host.strip()) and port.isdecimal() and len(port) <= 5 and 0 < int(port) < _PORTS
    require(known, f"{option}: expected HOST:PORT with a port from 1 to {_PORTS - 1}, got {address!r}")
    return host


def _check_waiting(chosen: argparse.Namespace) -> None:
    require_number("--deadline", chosen.deadline, above=0.0, below=_LONGEST_WAIT)


def _check_trust(chosen: argparse.Namespace, host: str, option: str) -> None:
    """Raises UserError unless server and client know each other, or are on the same machine."""
    require(chosen.keys is None or not chosen.insecure, "--insecure: leave it out, or leave out --keys")
    require(
        chosen.keys is not None or chosen.insecure,
        f"{option}: give --keys FOLDER, by which server and clients know each other (python -m fedem_lightning.deploy "
        "keys --help), or --insecure on one machine",
    )
    require(
        chosen.keys is not None or host in LOOPBACK,
        f"{option}: --insecure is for one machine ({LOOPBACK[0]}); others could read what clients send, and join",
    )


def _waiting(chosen: argparse.Namespace) -> list[str]:
    return ["--deadline", f"{chosen.deadline:g}", *(["--secure"] if chosen.secure else [])]
