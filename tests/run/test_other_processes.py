"""Processes of one run: when one ends too early, the others end soon, and the first says which it was."""

import queue
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from fedem_lightning.run.stopping import StopSignals
from helpers.commands import environment
from helpers.processes import runs


def watching(folder: Path, processes: list["subprocess.Popen[bytes]"], end: Any) -> StopSignals:
    """Listens in the first process, which has started these."""
    stop = StopSignals(folder, lambda own: "")
    stop._others, stop._watches_others = processes, True
    stop._end_by_force = end  # type: ignore[method-assign]
    return stop


@pytest.mark.parametrize(("how", "said"), [("exit 3", "exit code 3"), ("kill -9 $$", "SIGKILL")])
def test_the_first_process_hears_of_the_end_of_another(
    how: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it does not end by itself, as it waits for the other."""
    monkeypatch.setattr("fedem_lightning.run.stopping._WITHOUT_ANOTHER", 0.1)
    ended: queue.Queue[str] = queue.Queue()
    processes = [subprocess.Popen(["sh", "-c", command]) for command in ("sleep 60", how)]
    with watching(tmp_path, processes, ended.put) as stop:
        expected = f"the end of process 3 of 3 (pid {processes[1].pid}, {said})"
        assert ended.get(timeout=30) == expected
        stop.end_other_processes()
    assert stop._gone == expected  # and not what this one has ended
    assert processes[0].poll() == -9


def test_an_error_of_this_process_is_not_the_end_of_another(tmp_path: Path) -> None:
    """The other one still works, and is killed."""
    process = subprocess.Popen(["sleep", "60"])
    stop = watching(tmp_path, [process], pytest.fail)
    try:
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")
    except RuntimeError:
        stop.end_other_processes()
    assert (stop._gone, process.poll()) == (None, -9)


def test_a_process_that_has_done_its_part_may_end(tmp_path: Path) -> None:
    process = subprocess.Popen(["true"])
    process.wait()
    with watching(tmp_path, [process], pytest.fail) as stop:
        assert stop._failed(patience=0.3) is None
        stop.others_may_end()


ORPHAN = """
import os, subprocess, sys, time
from fedem_lightning.startup.process import PARENT
child = "from fedem_lightning.startup.process import end_with_the_first as e; e(); import time; time.sleep(600)"
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
