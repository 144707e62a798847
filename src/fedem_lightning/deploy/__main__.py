"""`python -m fedem_lightning.deploy COMMAND`: clients that are processes of their own."""

import argparse
import importlib.util
import json
import os
import shlex
import signal
import sys
from datetime import datetime
from pathlib import Path

from fedem_lightning.errors import Interrupted, require, require_number, require_whole
from fedem_lightning.records.files import replacing
from fedem_lightning.run.commands import Parser, one_line_for_mistakes
from fedem_lightning.startup.process import loading

NEEDS = {"app": ("json", ""), "keys": ("cryptography", "deploy"), "status": ("json", "")}
"""What a command needs beyond the package: a module, and the extra that installs it."""
TASKS = ("classification", "binary", "regression", "multilabel", "segmentation", "language")
"""`fedem_lightning.tasks.TaskName`, which takes torch to import."""
LOOPBACK = ("127.0.0.1", "localhost")
"""Addresses that no other machine reaches."""
_LONGEST_WAIT = 1e9
"""Seconds."""
_PORTS = 65_536
"""Numbers of ports are below it."""
_LONGEST_VALID = 3650
"""Days."""
CONNECTION = "server"
"""Name of the connection in Flower's settings, the second word of `flwr run`."""


def main(arguments: list[str] | None = None) -> None:
    """Entry point of the command; a user's mistake ends it with one line and exit code 2."""
    with one_line_for_mistakes():
        chosen = parser().parse_args(arguments)
        needed = [NEEDS.get(chosen.command, ("grpc", "deploy"))]
        needed += [("flwr", "flower")] if getattr(chosen, "secure", getattr(chosen, "require_secure", False)) else []
        for module, extra in needed:
            found = importlib.util.find_spec(module) is not None
            require(found, f'deploy {chosen.command} needs {module}: pip install "fedem-lightning[{extra}]"')
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # its errors are said in our lines
        commands = {"demo": demo, "server": server, "client": client, "keys": keys, "status": status, "app": app}
        before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # which Docker and systemd send: as Ctrl-C
        try:
            commands[chosen.command](chosen)
        except Interrupted as stop:
            print(stop, file=sys.stderr)
            sys.exit(1)
        finally:
            signal.signal(signal.SIGTERM, before)


def parser() -> argparse.ArgumentParser:
    """The options of all commands."""
    parser = Parser(prog="python -m fedem_lightning.deploy", description="Clients that are processes of their own.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    demo = commands.add_parser(
        "demo", help="a federation on this machine, each client a process (5 at most, by default)"
    )
    server = commands.add_parser("server", help="the server: it waits for its clients, runs once, and ends")
    client = commands.add_parser(
        "client",
        help="a client with its own samples: it answers until it is stopped",
        epilog="its model: python -m fedem_lightning.predict, evaluate or export, on the folder of its --state",
    )
    keys = commands.add_parser("keys", help="certificates for a server and its clients")
    status = commands.add_parser("status", help="what a server or client is doing; exit code 2: it is not running")
    app = commands.add_parser("app", help="writes the Flower app, for `flwr run` on a federation that is there")
    for part in (demo, server):
        part.add_argument("words", nargs="*", metavar="OVERRIDE", help="as for a run, e.g. +experiment=digits")
        part.add_argument("--secure", action="store_true", help="the server learns sums of updates only (SecAgg+)")
        part.add_argument("--deadline", type=float, default=600.0, metavar="S", help="seconds for an answer (600)")
    demo.add_argument("--clients", type=int, default=5, metavar="N", help="at most so many, a process each (5)")
    server.add_argument("--clients", type=int, required=True, metavar="N", help="clients that must be there")
    server.add_argument("--patience", type=float, default=600.0, metavar="S", help="seconds to wait for them (600)")
    server.add_argument("--host", default="127.0.0.1", help="address at which it listens (127.0.0.1)")
    server.add_argument("--port", type=int, default=9092, help="its port (9092; 0: a free one)")
    client.add_argument("--data", type=Path, required=True, metavar="FILE", help=".npz with x, y, optional split")
    client.add_argument("--server", required=True, metavar="HOST:PORT", help="address of the server")
    client.add_argument("--name", default="", help="the client's name (that of its certificate, or the file's)")
    client.add_argument("--state", type=Path, metavar="DIR", help="its pi, models and momentum (fedem_state/NAME)")
    client.add_argument("--task", default="classification", choices=TASKS)
    client.add_argument("--n-classes", type=int, default=0, metavar="Y", help="of all clients (the largest label + 1)")
    client.add_argument("--trust", action="append", default=[], metavar="PACKAGE", help="a package that may be called")
    client.add_argument("--require-secure", action="store_true", help="never send an update that is not masked")
    for part in (server, client):
        part.add_argument("--keys", type=Path, metavar="DIR", help="the folder that `keys` has written for it")
        part.add_argument("--insecure", action="store_true", help="no encryption and no authentication: one machine")
    keys.add_argument("folder", type=Path, metavar="DIR", help="where they go; later calls add clients")
    keys.add_argument("--server", nargs="+", default=[], metavar="HOST", help="names by which clients reach the server")
    keys.add_argument("--client", nargs="+", default=[], metavar="NAME", help="clients that may join")
    keys.add_argument("--remove", nargs="+", default=[], metavar="NAME", help="clients that may no longer join")
    keys.add_argument("--days", type=int, default=365, help="for which the certificates are valid (365)")
    keys.add_argument("--renew", action="store_true", help="new certificates; a client's old one is refused then")
    status.add_argument("folder", type=Path, metavar="DIR", help="of the run, or of the client's state")
    app.add_argument("--superlink", default="127.0.0.1:8000", metavar="HOST:PORT", help="its address (127.0.0.1:8000)")
    app.add_argument("--ca", type=Path, metavar="FILE", help="TLS: the authority of its certificate, .pem")
    app.add_argument("folder", type=Path, metavar="DIR", help="a new folder")
    return parser


def demo(chosen: argparse.Namespace) -> None:
    """A federation on this machine."""
    require_number("--deadline", chosen.deadline, above=0.0, below=_LONGEST_WAIT)
    require_whole("--clients", chosen.clients, at_least=1)
    with loading():
        from fedem_lightning.deploy.demo import demonstrate

    folder, words = folder_and_words(chosen.words)
    program = ["demo", "--clients", str(chosen.clients), *_waiting(chosen)]
    demonstrate(words, folder, chosen.clients, chosen.deadline, chosen.secure, program)


def server(chosen: argparse.Namespace) -> None:
    """Listens for clients, and runs once."""
    require_number("--deadline", chosen.deadline, above=0.0, below=_LONGEST_WAIT)
    require_number("--patience", chosen.patience, at_least=0.0, below=_LONGEST_WAIT)
    require_whole("--clients", chosen.clients, at_least=1)
    require_whole("--port", chosen.port, at_least=0, below=_PORTS)
    _check_trust(chosen, chosen.host, f"--host {chosen.host}")
    with loading():
        from fedem_lightning.deploy.grpc_server import GrpcLink
        from fedem_lightning.deploy.server import run_on

    folder, words = folder_and_words(chosen.words)
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
    from fedem_lightning.deploy.certificates import CLIENTS, make_keys, remove_clients

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
    from fedem_lightning.deploy.status import show_status

    show_status(chosen.folder)


def app(chosen: argparse.Namespace) -> None:
    """Writes the folder for `flwr run`: the app, and in .flwr, which Flower does not send, its connection."""
    require(not chosen.folder.exists(), f"{chosen.folder} is there already; choose another folder")
    host, ca = _host_of("--superlink", chosen.superlink), chosen.ca
    require(ca is None or ca.is_file(), f"--ca: {ca} is not there")
    require(
        ca is not None or host in LOOPBACK,
        f"--superlink {chosen.superlink}: without TLS, others could change what is sent; give --ca FILE",
    )
    home, trust = chosen.folder / ".flwr", "insecure = true"
    if ca is not None:
        trust = f"root-certificates = {json.dumps(str(ca.resolve()))}"
    connection = f"[superlink.{CONNECTION}]\naddress = {json.dumps(chosen.superlink)}\n{trust}\n"
    texts = {
        chosen.folder / "pyproject.toml": Path(__file__).with_name("flower_app.toml").read_text(encoding="utf-8"),
        home / "config.toml": f"[superlink]\ndefault = {json.dumps(CONNECTION)}\n\n{connection}",
    }
    for path, text in texts.items():
        with replacing(path) as temporary:
            temporary.write_text(text, encoding="utf-8")
    example = f'overrides="+experiment=digits" clients=3 run-dir="{Path("runs/deployed").resolve()}"'
    words = f"flwr run {shlex.quote(str(chosen.folder))} {CONNECTION} --run-config '{example}' --stream"
    print(f"FLWR_HOME={shlex.quote(str(home))} {words}")


def folder_and_words(words: list[str]) -> tuple[Path, list[str]]:
    """The run's folder, and the words without it."""
    kept = [word for word in words if not word.startswith("run_dir=")]
    named = f"outputs/deploy/{datetime.now():%Y-%m-%d_%H-%M-%S}"
    if len(kept) < len(words):
        given = next(word for word in reversed(words) if word not in kept)
        from hydra.core.override_parser.overrides_parser import OverridesParser

        named = str(OverridesParser.create().parse_override(given).value())  # it may be quoted
    return Path(named).expanduser().resolve(), kept


def _host_of(option: str, address: str) -> str:
    """The host of an address, after a check that this is HOST:PORT."""
    host, _, port = address.rpartition(":")
    known = bool(host.strip()) and port.isdecimal() and len(port) <= 5 and 0 < int(port) < _PORTS
    require(known, f"{option}: expected HOST:PORT with a port from 1 to {_PORTS - 1}, got {address!r}")
    return host


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


if __name__ == "__main__":
    main()
