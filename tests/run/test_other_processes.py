"""Processes of one run: when one ends too early, the others end soon, and the first says which it was."""

import os
import queue
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedem_lightning.run.watchdogs import StartedProcesses
from fedem_lightning.startup.rank import PARENT
from helpers.commands import environment
from helpers.processes import runs


@pytest.mark.parametrize(("how", "said"), [("exit 3", "exit code 3"), ("kill -9 $$", "SIGKILL")])
def test_the_first_process_hears_of_the_end_of_another(how: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """If it does not end by itself, as it waits for the other."""
    monkeypatch.setenv(PARENT, "")
    monkeypatch.setattr("fedem_lightning.run.watchdogs._GRACE", 0.1)
    ended: queue.Queue[str] = queue.Queue()
    processes = [subprocess.Popen(["sh", "-c", command]) for command in ("sleep 60", how)]
    watch = StartedProcesses(lambda: processes, ended.put)
    expected = f"the end of process 3 of 3 (pid {processes[1].pid}, {said})"
    assert ended.get(timeout=30) == expected
    assert watch.failed() == expected
    assert os.environ[PARENT] == str(os.getpid())
    processes[0].kill()
    processes[0].wait()


def test_a_process_that_has_done_its_part_may_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PARENT, "")
    process = subprocess.Popen(["true"])
    process.wait()
    watch = StartedProcesses(lambda: [process], lambda name: pytest.fail(name))
    assert watch.failed(patience=0.3) is None
    watch.close()
    watch.join(10)
    assert not watch.is_alive()


ORPHAN = """
import os, subprocess, sys, time
from fedem_lightning.startup.rank import PARENT
child = "from fedem_lightning.startup.rank import end_with_the_first as e; e(); import time; time.sleep(600)"
os.environ |= {PARENT: str(os.getpid()), "LOCAL_RANK": "1"}
print(subprocess.Popen([sys.executable, "-c", child]).pid, flush=True)
time.sleep(600)
"""


def test_a_process_ends_when_the_first_one_is_gone(tmp_path: Path) -> None:
    """However early that is: the child may still load its packages."""
    with subprocess.Popen([sys.executable, "-c", ORPHAN], stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        child = int(first.stdout.readline())
        first.kill()
    deadline = time.monotonic() + 60
    while runs(child):
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.slow
def test_runs_of_all_methods_end_alike_after_kills(tmp_path: Path) -> None:
    """tests/helpers/kill_resume.py prints a row for each; 2 kills of each of 80 runs take a quarter of an hour."""
    script = Path(__file__).parents[1] / "helpers" / "kill_resume.py"
    command = [sys.executable, str(script), "--kills", "2", "--out", str(tmp_path / "table.md")]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(script.parents[1]), timeout=7200)
    assert done.returncode == 0, done.stdout + done.stderr
    kills = int((tmp_path / "table.md").read_text().splitlines()[-1].split(" kills")[0])
    assert kills >= 100
