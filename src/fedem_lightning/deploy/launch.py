"""Starts Flower's processes: a SuperLink, SuperNodes, and the run."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from fedem_lightning.errors import require
from fedem_lightning.records.writing import replacing

APP = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "fedem-lightning-app"
version = "1.0.0"
license = "Apache-2.0"
dependencies = []

[tool.hatch.build.targets.wheel]
packages = ["."]

[tool.flwr.app]
publisher = "fedem-lightning"

[tool.flwr.app.components]
serverapp = "fedem_lightning.deploy.flower_server:app"
clientapp = "fedem_lightning.deploy.flower_client:app"

[tool.flwr.app.config]
overrides = "" # words of the command line: "+experiment=digits algorithm=fedem"
clients = 2 # number of clients that must be there
run-dir = "" # the run's folder, on the server
deadline = 600.0 # seconds in which a client must answer
patience = 120.0 # seconds in which all clients must appear
secure = false # whether the server learns sums of updates only (SecAgg+)
"""
"""pyproject.toml of the Flower app: `flwr run` sends it to the SuperLink."""

LOOPBACK = "127.0.0.1"
FLOWERS_OWN = re.compile(r"\x1b\[9\dm|^Flower App|^- Rec|^Using SuperLink|^Successfully (started|installed)|^\s*$")
"""Lines of `flwr run` that are not the run's."""

TRACE = "ServerApp raised an exception"
"""Begins a trace in the log of a run; whoever has started the run prints its error as one line."""

GRACE = 5
"""Seconds that processes have to end by themselves."""


def write_app(folder: Path) -> None:
    """Writes the Flower app: a folder for `flwr run`."""
    with replacing(folder / "pyproject.toml") as temporary:
        temporary.write_text(APP, encoding="utf-8")


class Processes:
    """Flower's processes; they end with the block.

    Args:
        folder: of their logs, and of Flower's settings.

    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.running = folder, dict[str, subprocess.Popen[bytes]]()
        folder.mkdir(parents=True, exist_ok=True)
        commands = str(Path(sys.executable).parent)
        path = os.pathsep.join([commands, os.environ.get("PATH", "")])
        own = {"FLWR_HOME": str(folder / "flwr"), "FLWR_TELEMETRY_ENABLED": "0", "OMP_NUM_THREADS": "1"}
        self.environment = os.environ | own | {"PATH": path}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self, name: str, command: Sequence[str]) -> None:
        """Starts a process in a group of its own; what it prints goes to NAME.log."""
        log = (self.folder / f"{name}.log").open("ab")
        options: dict[str, Any] = {"stdout": log, "stderr": subprocess.STDOUT, "start_new_session": True}
        self.running[name] = subprocess.Popen(command, env=self.environment, **options)

    def stop(self) -> None:
        """Ends all processes, and those that they have started."""
        for end in (signal.SIGTERM, signal.SIGKILL):
            for process in self.running.values():
                _signal(process, end)
            deadline = time.monotonic() + GRACE
            while time.monotonic() < deadline and any(process.poll() is None for process in self.running.values()):
                time.sleep(0.1)
        self.running.clear()

    def superlink(self, port: int, host: str = LOOPBACK, security: Sequence[str] = ("--insecure",)) -> None:
        """Starts the server's SuperLink, and waits until it listens."""
        command = ["flower-superlink", "--host", host, "--port", str(port), "--disable-runtime-dependency-installation"]
        self.start("superlink", [*command, *security])
        for _ in range(600):
            require(self.running["superlink"].poll() is None, f"the SuperLink has ended: {self.folder}/superlink.log")
            if _listens(port):
                return
            time.sleep(0.1)
        require(False, f"the SuperLink does not listen at port {port}: {self.folder}/superlink.log")

    def supernode(
        self, name: str, superlink: str, config: Mapping[str, Any], security: Sequence[str] = ("--insecure",)
    ) -> None:
        """Starts a client's SuperNode; `config` is what `flower_client.py` reads."""
        settings = " ".join(f"{key}={json.dumps(value)}" for key, value in config.items())
        command = ["flower-supernode", "--superlink", superlink, "--node-config", settings, "--port", str(free_port())]
        self.start(name, [*command, *security])

    def run(self, superlink: str, config: Mapping[str, Any], certificate: str | None = None) -> None:
        """Submits the run to the SuperLink, prints what it prints, and returns when it has ended.

        Args:
            superlink: its address.
            config: what `flower_server.py` reads.
            certificate: of the authority that the SuperLink's certificate is from; None: no TLS.

        """
        write_app(self.folder / "app")
        home, settings = self.folder / "flwr", self.folder / "run.toml"
        home.mkdir(exist_ok=True)
        trust = "insecure = true" if certificate is None else f"root-certificates = {json.dumps(certificate)}"
        where = f"[superlink.server]\naddress = {json.dumps(superlink)}\n{trust}\n"
        (home / "config.toml").write_text(f'[superlink]\ndefault = "server"\n\n{where}')
        settings.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in config.items()))
        command = ["flwr", "run", str(self.folder / "app"), "server", "--run-config", str(settings), "--stream"]
        (self.folder / "run.log").unlink(missing_ok=True)  # of an earlier run
        self.start("run", command)
        shown = 0
        while self.running["run"].poll() is None:
            shown = self._show(shown)
            time.sleep(0.2)
        self._show(shown)

    def _show(self, shown: int) -> int:
        """Prints what the run has printed since the first `shown` lines, without Flower's own lines and traces."""
        lines = (self.folder / "run.log").read_text(errors="replace").split(TRACE)[0].splitlines()
        for line in lines[shown:]:
            if not FLOWERS_OWN.search(line):
                print(line, flush=True)
        return len(lines)


def free_port() -> int:
    """A port of this machine that nobody listens at."""
    with socket.socket() as found:
        found.bind((LOOPBACK, 0))
        return int(found.getsockname()[1])


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((LOOPBACK, port)) == 0


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        return
