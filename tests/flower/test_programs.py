"""Flower's own programs: its simulation engine; a SuperLink behind nginx, and SuperNodes that prove who they are."""

import json
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from helpers.flower import WORDS, difference, save_client
from helpers.processes import free_port

pytestmark = pytest.mark.slow
BIN, ROOT = Path(sys.executable).parent, Path(__file__).parents[2]
EXAMPLE, PAGE = ROOT / "examples" / "flower", ROOT / "docs" / "flower.md"
PATH = os.pathsep.join([str(BIN), os.environ.get("PATH", ""), "/usr/sbin"])
RUN = f"{WORDS} trainer.check_val_every_n_epoch=2 algorithm.client_optimizer.lr=0.1"


def lines(*rows: str) -> str:
    return "\n".join(rows) + "\n"


def documented(begin: str) -> list[str]:
    """The commands of the page that begin so."""
    return re.findall(rf"^    ({begin}.+)$", re.sub(r"\\\n\s+", "", PAGE.read_text()), re.M)


class Programs:
    """Programs in a folder, each in a session of its own; their output goes to NAME.log.

    Args:
        folder: where they run.

    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.port, self.outside = folder, free_port(), free_port()
        self.running = list[subprocess.Popen[bytes]]()
        own = {"FLWR_HOME": str(folder), "FLWR_TELEMETRY_ENABLED": "0", "OMP_NUM_THREADS": "1", "PATH": PATH}
        self.environment = os.environ | own | {"HYDRA_FULL_ERROR": "0"}

    def start(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("wb") as log:
            options: dict[str, Any] = {"stdout": log, "stderr": subprocess.STDOUT, "start_new_session": True}
            self.running.append(subprocess.Popen(command, cwd=self.folder, env=self.environment, **options))
        return self.running[-1]

    def call(self, command: str, *more: str) -> str:
        """What a command prints, whether it succeeds or not."""
        options: dict[str, Any] = {"cwd": self.folder, "env": self.environment, "timeout": 900, "text": True}
        words, pipe = [*command.split(), *more], subprocess.PIPE
        return str(subprocess.run(words, stdout=pipe, stderr=subprocess.STDOUT, **options).stdout)

    def wait_for(self, port: int) -> None:
        for _ in range(600):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    return
            time.sleep(0.1)
        raise TimeoutError(f"nobody listens at port {port}")

    def run(self, connection: str, name: str, *options: str) -> Path:
        """The folder of a finished run of the app."""
        folder = self.folder / name
        config = f"overrides={json.dumps(RUN)} run-dir={json.dumps(str(folder))}"
        said = self.call(f"flwr run {EXAMPLE} {connection} --stream --run-config", config, *options)
        assert (folder / "results.json").is_file(), said
        return folder

    def simulated(self) -> Path:
        """The folder of the simulation with the same configuration."""
        said = self.call(f"{sys.executable} -m fedem_lightning {RUN} run_dir=simulated")
        assert (self.folder / "simulated" / "results.json").is_file(), said
        return self.folder / "simulated"

    def stop(self) -> None:
        for number in (signal.SIGTERM, signal.SIGKILL):
            for process in self.running:
                try:
                    os.killpg(process.pid, number)
                except ProcessLookupError:
                    continue
            time.sleep(3)
        for process in self.running:
            process.wait(10)


@pytest.fixture
def programs(tmp_path: Path) -> Iterator[Programs]:
    found = Programs(tmp_path)
    try:
        yield found
    finally:
        found.stop()


def test_flowers_simulation_engine_runs_the_app_by_partitions(programs: Programs) -> None:
    pytest.importorskip("ray", reason='the simulation engine is in "flwr[simulation]"')
    where = f'address = "127.0.0.1:{programs.port}"'
    (programs.folder / "config.toml").write_text(lines("[superlink.here]", where, "insecure = true"))
    link = f"flower-superlink --insecure --simulation --disable-runtime-dependency-installation --port {programs.port}"
    programs.start("superlink", *link.split())
    programs.wait_for(programs.port)
    run = programs.run("here", "run", "--federation-config", "num-supernodes=3")
    assert difference(run, programs.simulated()) < 1e-6


@pytest.fixture
def federation(programs: Programs) -> Programs:
    """A SuperLink that listens on loopback, nginx with the example's file before it, and the keys of three nodes."""
    for program, package in {"nginx": "nginx", "openssl": "openssl", "ssh-keygen": "openssh-client"}.items():
        if shutil.which(program, path=PATH) is None:
            pytest.skip(f"{program} is not installed (apt-get install {package})")
    folder, link = programs.folder, programs.port
    for command in documented("openssl"):
        programs.call(command)
    text = (EXAMPLE / "nginx.conf").read_text().replace("127.0.0.1:8000", f"127.0.0.1:{link}")
    (folder / "nginx.conf").write_text(text.replace("listen 9092", f"listen {programs.outside}"))
    root = f'root-certificates = "{folder}/ca.pem"'
    inside, outside = (f'address = "127.0.0.1:{port}"' for port in (link, programs.outside))
    (folder / "config.toml").write_text(lines("[superlink.inside]", inside, root, "[superlink.outside]", outside, root))
    programs.start("superlink", *documented("flower-superlink --ssl")[0].split(), "--port", str(link))
    (folder / "temporary").mkdir()
    programs.start("nginx", "nginx", "-p", str(folder), "-c", "nginx.conf")
    programs.wait_for(link)
    programs.wait_for(programs.outside)
    return programs


def node(programs: Programs, name: str, *options: str) -> subprocess.Popen[bytes]:
    """A SuperNode outside, which has the authority's certificate."""
    where = f"--superlink localhost:{programs.outside} --root-certificates ca.pem --port {free_port()}"
    return programs.start(name, "flower-supernode", *where.split(), *options)


def test_three_supernodes_behind_the_proxy_train_the_models_of_the_simulation(federation: Programs) -> None:
    for t in range(3):
        save_client(t, federation.folder / f"{t}.npz")
        federation.call(f"ssh-keygen -q -t ecdsa -b 384 -C {t} -f key-{t}", "-N", "")
        assert "registered" in federation.call(f"flwr supernode register key-{t}.pub inside")
        config = f'data="{federation.folder}/{t}.npz" task="binary"'
        node(federation, f"node-{t}", "--auth-supernode-private-key", f"key-{t}", "--node-config", config)
    run = federation.run("inside", "run")
    assert "faults" not in json.loads((run / "results.json").read_text())  # nobody was left out
    assert difference(run, federation.simulated()) < 1e-6


def answer(programs: Programs, path: str) -> int:
    """The status of a request from outside, by somebody who has the authority's certificate."""
    url, headers = f"https://localhost:{programs.outside}{path}", {"Content-Type": "application/protobuf"}
    asked = urllib.request.Request(url, data=b"", headers=headers, method="POST")
    context = ssl.create_default_context(cafile=str(programs.folder / "ca.pem"))
    try:
        return int(urllib.request.urlopen(asked, context=context, timeout=30).status)
    except urllib.error.HTTPError as error:
        return error.code


def test_the_authoritys_certificate_alone_opens_nothing(federation: Programs) -> None:
    federation.call("ssh-keygen -q -t ecdsa -b 384 -C stranger -f stranger", "-N", "")
    for name, key in {"no-key": [], "unknown-key": ["--auth-supernode-private-key", "stranger"]}.items():
        assert node(federation, name, *key).wait(120) != 0
        log = (federation.folder / f"{name}.log").read_text()
        assert "Failed to initialize the connection to the SuperLink" in log, log
    assert answer(federation, "/v1/fleet/pull-messages") == 401
    control = ("/v1/control/list-runs", "/v1/control/start-run", "/v1/control/register-node", "/v1/runtime/get-nodes")
    for path in (*control, "/v1/fleet/../control/list-runs", "/v1/fleet/%2e%2e/control/list-runs", "/health", "/"):
        assert answer(federation, path) == 404, path
    assert "404" in federation.call("flwr list outside")
    assert "Traceback" not in federation.call("flwr list inside")
