"""What the commands of `python -m fedem_lightning.deploy` do."""

import argparse
import signal
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

from fedem_lightning.deploy.data import load_client
from fedem_lightning.deploy.demo import demonstrate, serve
from fedem_lightning.deploy.launch import LOOPBACK, Processes, write_app
from fedem_lightning.errors import require, require_number, require_whole

AGAIN = 5
"""Seconds after which a client whose SuperNode has ended starts it again."""

_LONGEST_NAME = 200
"""Bytes of a client's name that a folder may have."""
_LONGEST_WAIT = 1e9
"""Seconds."""
_PORTS = 65_536
"""Numbers of ports are below it."""


def of(name: str) -> Callable[[argparse.Namespace], None]:
    """The function of a command."""
    return {"demo": demo, "server": server, "client": client, "app": app}[name]


def demo(chosen: argparse.Namespace) -> None:
    """A federation on this machine."""
    _check_waiting(chosen)
    folder, words = folder_of(chosen.words)
    demonstrate(words, folder, {"deadline": chosen.deadline, "secure": chosen.secure})


def server(chosen: argparse.Namespace) -> None:
    """A SuperLink, and one run."""
    _check_waiting(chosen)
    require_number("--patience", chosen.patience, at_least=0.0, below=_LONGEST_WAIT)
    require_whole("--clients", chosen.clients, at_least=1)
    require_whole("--port", chosen.port, at_least=1, below=_PORTS)
    folder, words = folder_of(chosen.words)
    files = security(chosen)
    options = [f"--ssl-{long}" for long in ("certfile", "keyfile", "ca-certfile")]
    require(len(files) in (0, 3), "TLS needs --certificate, --key and --ca together")
    require(
        bool(files) or chosen.insecure or chosen.host == LOOPBACK,
        f"--host {chosen.host}: others could read what clients send; give --certificate, --key and --ca, or --insecure",
    )
    paths = [str(files[name]) for name in ("certificate", "key", "ca")] if files else []
    tls = [part for pair in zip(options, paths, strict=False) for part in pair] or ["--insecure"]
    settings = {"clients": chosen.clients, "deadline": chosen.deadline, "patience": chosen.patience}
    settings["secure"] = chosen.secure
    with Processes(folder / "flower") as flower:
        flower.superlink(chosen.port, chosen.host, tls)
        print(f"waiting for {chosen.clients} clients at port {chosen.port}", flush=True)
        serve(flower, f"{LOOPBACK}:{chosen.port}", words, folder, settings, paths[2] if paths else None)


def client(chosen: argparse.Namespace) -> None:
    """A SuperNode, until it is stopped."""
    host, _, port = chosen.server.rpartition(":")
    known = bool(host.strip()) and port.isdecimal() and len(port) <= 5 and 0 < int(port) < _PORTS
    require(known, f"--server: expected HOST:PORT with a port from 1 to {_PORTS - 1}, got {chosen.server!r}")
    require_whole("--n-classes", chosen.n_classes, at_least=0)
    files, local = security(chosen), host in (LOOPBACK, "localhost")
    require(
        bool(files) or chosen.insecure or local,
        f"--server {chosen.server}: others could read what the client sends; give --ca, or --insecure",
    )
    # read here too, so that a mistake in the file is found now and not in a round
    federation = load_client(chosen.data, chosen.name or None, chosen.task, chosen.n_classes or None)
    name = str(federation.names[0])
    plain = Path(name).name == name and name != ".." and len(name.encode()) <= _LONGEST_NAME
    require(plain or chosen.state is not None, f"--name: {name} is no name of a folder; give --state DIR as well")
    state = (chosen.state or chosen.data.resolve().parent / "fedem_state" / name).resolve()
    config = {"data": str(chosen.data.resolve()), "name": name, "state": str(state), "task": chosen.task}
    config |= {"n_classes": chosen.n_classes, "trust": ",".join(chosen.trust)}
    tls = ["--root-certificates", str(files["ca"])] if files else ["--insecure"]
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: the SuperNode is stopped, too
    print(f"{name}: {federation}; state in {state}", flush=True)
    with Processes(state / "flower") as flower:
        while True:  # a SuperNode ends when its server has started anew
            flower.supernode("supernode", chosen.server, config, tls)
            flower.running["supernode"].wait()
            print(
                f"{name}: the SuperNode has ended, see {state / 'flower' / 'supernode.log'}; it starts again",
                flush=True,
            )
            time.sleep(AGAIN)


def _check_waiting(chosen: argparse.Namespace) -> None:
    require_number("--deadline", chosen.deadline, above=0.0, below=_LONGEST_WAIT)


def app(chosen: argparse.Namespace) -> None:
    """The Flower app's folder."""
    require(not chosen.folder.exists(), f"{chosen.folder} is there already; choose another folder")
    write_app(chosen.folder)
    print(f'flwr run {chosen.folder} --run-config \'overrides="+experiment=digits" clients=2 run-dir="runs/deployed"\'')


def folder_of(words: list[str]) -> tuple[Path, list[str]]:
    """The run's folder, and the words without it."""
    given = [word.removeprefix("run_dir=") for word in words if word.startswith("run_dir=")]
    named = given[-1] if given else f"outputs/deploy/{datetime.now():%Y-%m-%d_%H-%M-%S}"
    return Path(named).expanduser().resolve(), [word for word in words if not word.startswith("run_dir=")]


def security(chosen: Any) -> dict[str, Path]:
    """The files of TLS that were given, after a check that they are there."""
    files = {name: path for name in ("certificate", "key", "ca") if (path := getattr(chosen, name, None)) is not None}
    for name, path in files.items():
        require(path.is_file(), f"--{name}: {path} is not there")
    return {name: path.resolve() for name, path in files.items()}
