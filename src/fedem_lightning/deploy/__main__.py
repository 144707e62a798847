"""`python -m fedem_lightning.deploy COMMAND`: clients that are processes of their own."""

import argparse
import importlib.util
import os
import sys
from pathlib import Path

from fedem_lightning.errors import Interrupted, require
from fedem_lightning.run.commands import Parser, one_line_for_mistakes
from fedem_lightning.startup.loading import loading

NEEDS = {"app": ("json", ""), "keys": ("cryptography", "deploy"), "status": ("json", "")}
"""What a command needs beyond the package: a module, and the extra that installs it."""


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
        with loading():
            from fedem_lightning.deploy import commands  # takes seconds, which --help should not
        commands.stop_at_term()
        try:
            commands.of(chosen.command)(chosen)
        except Interrupted as stop:
            print(stop, file=sys.stderr)
            sys.exit(1)


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
    client.add_argument("--task", default="classification", choices=("classification", "binary", "regression"))
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


if __name__ == "__main__":
    main()
