"""`flwr run` on a federation that Flower's own commands have started, from an empty folder."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="the app is for Flower")

from fedem_lightning.data.own_files import save_client
from helpers.federations import make_data

BIN = Path(sys.executable).parent
WORDS = "algorithm=fedavg backbone=linear trainer.max_epochs=1 trainer.check_val_every_n_epoch=5"


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class Processes:
    """Flower's processes in a folder, each in a session of its own.

    Args:
        folder: where they run; their output goes to NAME.log in it.

    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.running = folder, dict[str, subprocess.Popen[bytes]]()
        own = {"FLWR_HOME": str(folder), "FLWR_TELEMETRY_ENABLED": "0", "OMP_NUM_THREADS": "1"}
        self.environment = os.environ | own | {"PATH": os.pathsep.join([str(BIN), os.environ.get("PATH", "")])}

    def start(self, name: str, command: Sequence[str]) -> None:
        with (self.folder / f"{name}.log").open("wb") as log:
            options: dict[str, Any] = {"stdout": log, "stderr": subprocess.STDOUT, "start_new_session": True}
            self.running[name] = subprocess.Popen(command, cwd=self.folder, env=self.environment, **options)

    def left(self) -> list[int]:
        """The processes of all sessions that are there."""
        sessions, found = {process.pid for process in self.running.values()}, []
        for path in Path("/proc").glob("[0-9]*"):
            try:
                state, _, _, session = (path / "stat").read_text().rpartition(")")[2].split()[:4]
            except OSError:
                continue  # it has ended just now
            found += [int(path.name)] * (int(session) in sessions and state != "Z")
        return found

    def stop(self) -> None:
        for number in (signal.SIGTERM, signal.SIGKILL):
            end = time.monotonic() + 10
            for pid in self.left():
                try:
                    os.kill(pid, number)
                except ProcessLookupError:
                    continue
            while self.left() and time.monotonic() < end:
                time.sleep(0.1)
        for process in self.running.values():
            process.wait(5)


@pytest.fixture
def flower(tmp_path: Path) -> Iterator[Processes]:
    """A SuperLink, three SuperNodes, of which the first insists on secure aggregation, and the app's folder."""
    folder, data, port = tmp_path / "empty", make_data(), free_port()
    folder.mkdir()
    processes = Processes(folder)
    app = [sys.executable, "-m", "fedem_lightning.deploy", "app", "fedem-app", "--superlink", f"127.0.0.1:{port}"]
    subprocess.run(app, cwd=folder, env=processes.environment, check=True, capture_output=True, timeout=60)
    try:
        link = ["flower-superlink", "--insecure", "--port", str(port), "--disable-runtime-dependency-installation"]
        processes.start("superlink", link)
        for _ in range(600):
            time.sleep(0.1)
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
        for t in range(3):
            save_client(data.federation, t, folder / f"{t}.npz")
            config = f'data="{folder}/{t}.npz" state="{folder}/state{t}" require_secure={"true" if t == 0 else "false"}'
            where = ["--superlink", f"127.0.0.1:{port}", "--port", str(free_port()), "--node-config", config]
            processes.start(f"supernode{t}", ["flower-supernode", "--insecure", *where])
        yield processes
    finally:
        processes.stop()
        assert processes.left() == []


def flwr_run(flower: Processes, name: str, **config: Any) -> tuple[Path, str]:
    """The folder of a run that `flwr run` has started and followed to its end, and what that has printed."""
    folder = flower.folder / name
    settings = {"overrides": WORDS, "clients": 3, "run-dir": str(folder), "deadline": 120.0, **config}
    words = " ".join(f"{key}={json.dumps(value)}" for key, value in settings.items())
    command = ["flwr", "run", "fedem-app", "server", "--run-config", words, "--stream"]
    environment = flower.environment | {"FLWR_HOME": str(flower.folder / "fedem-app" / ".flwr")}
    done = subprocess.run(command, cwd=flower.folder, env=environment, capture_output=True, text=True, timeout=500)
    return folder, done.stdout + done.stderr


@pytest.mark.slow
def test_flwr_run_trains_on_a_federation_of_flowers_own_commands(flower: Processes) -> None:
    folder, said = flwr_run(flower, "secure", secure=True)
    assert (folder / "results.json").is_file(), said
    assert json.loads((folder / "results.json").read_text())["rounds"] == 1
    folder, said = flwr_run(flower, "clear", secure=False)
    assert (folder / "results.json").is_file(), said
    faults = json.loads((folder / "results.json").read_text())["faults"]  # the others go on without it
    assert faults["counts"] == {"exception": 1}
    assert faults["clients"][0]["name"] == "0"
    assert "require_secure: this client sends updates only in a sum that hides them" in faults["clients"][0]["detail"]
