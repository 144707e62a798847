"""The commands of a deployment, and federations of processes."""

import json
import os
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import yaml

pytest.importorskip("grpc", reason="deploy needs the extra deploy")

from fedem_lightning.data.own_files import save_client
from fedem_lightning.deploy.__main__ import folder_and_words, main, parser
from fedem_lightning.deploy.status import Status
from fedem_lightning.run.not_composed import composed
from helpers.commands import call
from helpers.federations import make_data
from helpers.runs import leave_undrawn

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["demo", "--clients", "0", "+experiment=digits"], "--clients: expected a whole number of at least 1"),
        (["demo", "+experiment=digitz"], "experiment"),
        (["server", "--clients", "2"], "give --keys FOLDER, by which server and clients know each other"),
        (["server", "--clients", "2", "--host", "0.0.0.0", "--insecure"], "--insecure is for one machine (127.0.0.1)"),
        (["server", "--clients", "2", "--keys", "k", "--insecure"], "--insecure: leave it out, or leave out --keys"),
        (["server", "--clients", "2", "--keys", "nowhere"], "--keys: nowhere lacks ca.pem, certificate.pem, key.pem"),
        (["server", "--clients", "2", "--secure", "--insecure"], "secure: a sum needs 3 to 1023 clients in a round"),
        (["client", "--data", "none.npz", "--server", "127.0.0.1:1", "--insecure"], "none.npz"),
        (["client", "--data", "none.npz", "--server", "example.org:1", "--insecure"], "--insecure is for one machine"),
        (["client", "--data", "none.npz", "--server", "127.0.0.1:1"], "give --keys FOLDER"),
        (["keys", "k", "--client", "a"], "--server: name the hosts"),
        (["keys", "k", "--server", "h", "--days", "0"], "--days: expected a whole number of at least 1"),
        (["keys", ".", "--remove", "a"], "server lacks clients.json"),
        (["status", "."], "no server and no client runs there"),
        (["app", "."], ". is there already"),
        (["client"], "--data"),
        ([], "COMMAND"),
    ],
)
def test_a_mistake_is_one_line(
    words: list[str], line: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as end:
        main(words)
    assert end.value.code == 2
    message = capsys.readouterr().err
    assert message.startswith("error: ")
    assert message.count("\n") == 1
    assert line in message


def test_the_folder_is_taken_from_the_words() -> None:
    folder, words = folder_and_words(["+experiment=digits", "run_dir=runs/a"])
    assert folder.name == "a"
    assert words == ["+experiment=digits"]
    assert folder_and_words(['run_dir="/a b/c=d"']) == (Path("/a b/c=d"), [])


@pytest.mark.slow  # the next test starts the same processes, and in-memory tests compare every method
def test_processes_train_what_the_simulation_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["+experiment=digits", "dataset.n_clients=2", "trainer.max_epochs=2", "trainer.check_val_every_n_epoch=2"]
    with monkeypatch.context() as patched:
        leave_undrawn(patched)
        assert call(tmp_path, patched, *words, "run_dir=here") == 0
    command = [sys.executable, "-m", "fedem_lightning.deploy", "demo", *words, f"run_dir={tmp_path / 'there'}"]
    subprocess.run(command, check=True, capture_output=True, timeout=400)
    here, there = (
        torch.load(next((tmp_path / name / "checkpoints").glob("*.ckpt")), weights_only=True)["state_dict"]
        for name in ("here", "there")
    )
    for name, tensor in here.items():
        if name.startswith("components."):
            torch.testing.assert_close(there[name], tensor, rtol=0, atol=1e-6)
    assert np.allclose(there["pi"], 1 / 3)
    assert not np.allclose(here["pi"], 1 / 3)


def until(condition: Callable[[], Any], seconds: float = 60.0) -> Any:
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end
        time.sleep(0.1)
    return found


@pytest.fixture
def deploy() -> Iterator[Callable[..., "subprocess.Popen[bytes]"]]:
    """Starts commands of the deployment, each in a session of its own; they end with the test."""
    started = []

    def start(*words: object, log: Path) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-m", "fedem_lightning.deploy", *map(str, words)]
        with log.open("ab") as file:
            started.append(subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, start_new_session=True))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


def test_the_status_of_a_process_that_was_killed_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Status(tmp_path, lambda: {"state": "round 3 of 9"}):
        main(["status", str(tmp_path)])
        assert capsys.readouterr().out.startswith("round 3 of 9, pid ")
        text = (tmp_path / "status.json").read_text()
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    (tmp_path / "status.json").write_text(text.replace(str(os.getpid()), str(ended.pid)))
    with pytest.raises(SystemExit):
        main(["status", str(tmp_path)])
    assert "killed; it last said: round 3 of 9" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks for processes in /proc")
@pytest.mark.skipif(not (ROOT / "benchmarks").is_dir(), reason="benchmarks/ is only in a checkout")
def test_a_demonstration_that_is_killed_leaves_no_process(deploy: Any, tmp_path: Path) -> None:
    in_session = runpy.run_path(str(ROOT / "benchmarks" / "deployment.py"))["session_of"]
    log, run = tmp_path / "log", tmp_path / "run"
    demo = deploy("demo", "--clients", 2, "+experiment=digits", "trainer.max_epochs=5000", f"run_dir={run}", log=log)
    until(lambda: log.exists() and "round 2 of" in log.read_text())
    # the server, its two clients, the process that they are forks of, and Python's tracker of resources
    assert len(in_session(demo.pid)) <= 5
    demo.kill()
    demo.wait()
    until(lambda: in_session(demo.pid) == [], 10.0)


def test_a_deployment_by_the_commands_is_stopped_and_goes_on(deploy: Any, tmp_path: Path) -> None:
    """From keys to results: the health check, SIGTERM for the server, the command that it prints, and for a client."""
    names, keys, run, logs = ("clinic 1", "b"), tmp_path / "keys", tmp_path / "run", tmp_path
    main(["keys", str(keys), "--server", "127.0.0.1", "--client", *names])
    data = make_data().federation
    for t, name in enumerate(names):
        save_client(data, t, tmp_path / f"{name}.npz")
    words = ["algorithm=fedem", "backbone=linear", f"run_dir={run}", "trainer.check_val_every_n_epoch=50"]
    options = ["--clients", 2, "--port", 0, "--keys", keys / "server"]
    server = deploy("server", *options, *words, "trainer.max_epochs=12", log=logs / "server.log")
    line = until(lambda: (logs / "server.log").exists() and (logs / "server.log").read_text())
    assert line.startswith("waiting for 2 clients at 127.0.0.1:")
    port = line.split()[5].rpartition(":")[2]
    clients = []
    for name in names:
        own = [
            "--data",
            tmp_path / f"{name}.npz",
            "--keys",
            keys / "clients" / name,
            "--state",
            tmp_path / "state" / name,
        ]
        clients.append(deploy("client", "--server", f"127.0.0.1:{port}", *own, log=logs / f"{name}.log"))
    until(lambda: "round 3 of 12" in (logs / "server.log").read_text())
    main(["status", str(run)])
    main(["status", str(tmp_path / "state" / names[0])])
    server.terminate()
    assert server.wait(30) == 1
    said = (logs / "server.log").read_text().splitlines()[-1]
    command = said.partition("continue with: ")[2] or said.partition(" with: ")[2]
    assert " -m fedem_lightning.deploy server --clients 2 --host 127.0.0.1 --port 0 --keys " in command
    with pytest.raises(SystemExit):
        main(["status", str(run)])
    command = command.replace("--port 0", f"--port {port}")
    again = subprocess.run(command, shell=True, check=True, capture_output=True, timeout=120)
    assert b"resumed from round" in again.stdout
    results = json.loads((run / "results.json").read_text())
    assert results["rounds"] == 12
    assert " -m fedem_lightning.deploy server --clients 2" in results["command"]
    table = pd.read_parquet(run / "clients.parquet")
    assert len(table) == 2
    for client in clients:
        os.kill(client.pid, signal.SIGTERM)
        assert client.wait(30) == 0


@pytest.mark.skipif(not (ROOT / "examples").is_dir(), reason="examples/ is only in a checkout")
def test_the_compose_file_has_commands_that_are_right() -> None:
    services = yaml.safe_load((ROOT / "examples" / "deploy" / "compose.yaml").read_text())["services"]
    found = {name: vars(parser().parse_args(service["command"].split())) for name, service in services.items()}
    for name, service in services.items():
        mounted = {volume.split(":")[1] for volume in service["volumes"]}
        assert found[name]["keys"] == Path("/keys")
        assert "/keys" in mounted
        check = service["healthcheck"]["test"]
        assert check[:5] == ["CMD", "python", "-m", "fedem_lightning.deploy", "status"]
        folder = folder_and_words(found[name]["words"])[0] if name == "server" else found[name]["state"]
        assert Path(check[5]) == folder
        assert any(folder.is_relative_to(place) for place in mounted)
    composed([word for word in found["server"]["words"] if not word.startswith("run_dir=")])
