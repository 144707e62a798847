"""`python -m fedem_lightning.deploy COMMAND`: clients that are processes of their own, through Flower."""

import argparse
import importlib.util
from pathlib import Path

from fedem_lightning.errors import require
from fedem_lightning.run.commands import Parser, one_line_for_mistakes
from fedem_lightning.startup.loading import loading


def main(arguments: list[str] | None = None) -> None:
    """Entry point of the command; a user's mistake ends it with one line and exit code 2."""
    with one_line_for_mistakes():
        chosen = parser().parse_args(arguments)
        found = importlib.util.find_spec("flwr") is not None
        require(found, 'deploy needs Flower: pip install "fedem-lightning[flower]"')
        with loading():
            from fedem_lightning.deploy import commands  # takes seconds, which --help should not
        commands.of(chosen.command)(chosen)


def parser() -> argparse.ArgumentParser:
    """The options of all commands."""
    parser = Parser(prog="python -m fedem_lightning.deploy", description="Clients of their own, through Flower.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    demo = commands.add_parser("demo", help="a federation on this machine, each client a process")
    server = commands.add_parser("server", help="the server: a SuperLink, and one run")
    client = commands.add_parser("client", help="a client: a SuperNode with its own samples")
    app = commands.add_parser("app", help="writes the Flower app, for `flwr run` on a federation that is there")
    for part in (demo, server):
        part.add_argument("words", nargs="*", metavar="OVERRIDE", help="as for a run, e.g. +experiment=digits")
        part.add_argument("--secure", action="store_true", help="the server learns sums of updates only (SecAgg+)")
        part.add_argument("--deadline", type=float, default=600.0, metavar="S", help="seconds for an answer (600)")
    server.add_argument("--clients", type=int, required=True, metavar="N", help="clients that must be there")
    server.add_argument("--patience", type=float, default=600.0, metavar="S", help="seconds to wait for them (600)")
    server.add_argument("--host", default="127.0.0.1", help="address at which it listens (127.0.0.1)")
    server.add_argument("--port", type=int, default=9092, help="its port (9092)")
    for name, what in (("certificate", "its certificate"), ("key", "its key"), ("ca", "the authority's certificate")):
        server.add_argument(f"--{name}", type=Path, metavar="FILE", help=f"TLS: {what}, .pem")
    client.add_argument("--data", type=Path, required=True, metavar="FILE", help=".npz with x, y, optional split")
    client.add_argument("--server", required=True, metavar="HOST:PORT", help="address of the SuperLink")
    client.add_argument("--name", default="", help="the client's name (the file's)")
    client.add_argument("--state", type=Path, metavar="DIR", help="its pi, models and momentum (fedem_state/NAME)")
    client.add_argument("--task", default="classification", choices=("classification", "binary", "regression"))
    client.add_argument("--n-classes", type=int, default=0, metavar="Y", help="of all clients (the largest label + 1)")
    client.add_argument("--trust", action="append", default=[], metavar="PACKAGE", help="a package that may be called")
    client.add_argument("--ca", type=Path, metavar="FILE", help="TLS: the authority's certificate, .pem")
    for part in (server, client):
        part.add_argument("--insecure", action="store_true", help="no TLS beyond this machine")
    app.add_argument("folder", type=Path, metavar="DIR", help="a new folder")
    return parser


if __name__ == "__main__":
    main()
