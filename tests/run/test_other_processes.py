"""Processes of one run: when one ends too early, the others end soon, and the first says which it was."""

import os
import queue
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedem_lightning.run.other_processes import StartedProcesses
from fedem_lightning.startup.first_process import PARENT
from helpers.commands import environment
from run.test_stopping import FOLDER, RUN_DIR, START, TWO, Started, furnish, paste_quietly, stop_lines


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return furnish(tmp_path)


@pytest.mark.parametrize(("how", "said"), [("exit 3", "exit code 3"), ("kill -9 $$", "SIGKILL")])
def test_the_first_process_hears_of_the_end_of_another(how: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """If it does not end by itself, as it waits for the other."""
    monkeypatch.setenv(PARENT, "")
    monkeypatch.setattr("fedem_lightning.run.other_processes._GRACE", 0.1)
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
from fedem_lightning.startup.first_process import PARENT
child = "from fedem_lightning.startup.first_process import end_with_the_first as e; e(); import time; time.sleep(600)"
os.environ[PARENT] = str(os.getpid())
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
    while _runs(child):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def _second(first: int) -> int:
    """The process that a run has started."""
    found = Path(f"/proc/{first}/task/{first}/children").read_text().split()
    return next(int(p) for p in found if b"fedem_lightning" in Path(f"/proc/{p}/cmdline").read_bytes())


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_second_process_that_is_ended_ends_the_run(number: signal.Signals, place: Path) -> None:
    """SIGTERM waits for the round, which does not end, as long as grace_seconds says, and twice as long again."""
    started = Started(place, *START, RUN_DIR, *TWO, "callbacks.gate.rank=1", "callbacks.interrupt.grace_seconds=1")
    second = _second(started.process.pid)
    os.kill(second, number)
    begun = time.monotonic()
    out, err = started.process.communicate(timeout=60)
    assert (started.process.returncode, stop_lines(err)) == (1, 1), (out, err)
    assert f"stopped by the end of process 2 of 2 (pid {second}, " in err
    assert "in round 5; continue after round 3 with: " in err
    assert time.monotonic() - begun < 60
    assert not _runs(second)
    assert "resumed from round 3" in paste_quietly(place, err)
    assert (place / FOLDER / "results.json").exists()


@pytest.mark.slow
def test_the_second_process_ends_with_the_first(place: Path) -> None:
    started = Started(place, *START, RUN_DIR, *TWO, "callbacks.gate.rank=1")
    second = _second(started.process.pid)
    started.process.kill()
    out, err = started.process.communicate(timeout=60)  # both are gone: nobody holds the pipes
    assert "Traceback" not in err
    deadline = time.monotonic() + 60
    while _runs(second):
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.slow
def test_a_second_ctrl_c_ends_both_with_one_line(place: Path) -> None:
    started = Started(place, *START, RUN_DIR, *TWO)
    os.killpg(started.process.pid, signal.SIGINT)
    time.sleep(1)
    line = started.stop(signal.SIGINT, group=True)  # exit code 1
    assert stop_lines(line) == 1
    with pytest.raises(ProcessLookupError):
        os.killpg(started.process.pid, 0)


@pytest.mark.slow
def test_runs_of_all_methods_end_alike_after_kills(tmp_path: Path) -> None:
    """tests/helpers/kill_resume.py prints a row for each; 2 kills of each of 80 runs take a quarter of an hour."""
    script = Path(__file__).parents[1] / "helpers" / "kill_resume.py"
    command = [sys.executable, str(script), "--kills", "2", "--out", str(tmp_path / "table.md")]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(script.parents[1]), timeout=7200)
    assert done.returncode == 0, done.stdout + done.stderr
    kills = int((tmp_path / "table.md").read_text().splitlines()[-1].split(" kills")[0])
    assert kills >= 100
