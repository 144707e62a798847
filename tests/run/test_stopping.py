"""Ctrl-C and SIGTERM on the command line, and the command that goes on, as a user would run and copy them."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from fedem_lightning import FedAvg
from fedem_lightning.callbacks import FinishRoundOnInterrupt
from fedem_lightning.callbacks.between_rounds import GRACE_SECONDS
from fedem_lightning.errors import Interrupted
from fedem_lightning.run.stopping import StopSignals
from helpers.commands import call, environment
from helpers.federations import make_data, make_model, make_trainer
from helpers.processes import runs, second_process
from helpers.runs import figures

GATE = '''
import os
import signal
import time
from pathlib import Path
import pytorch_lightning as pl

class Gate(pl.Callback):
    """In round 5 or elsewhere: touches `waiting`, then waits for a file `go`; in the process of that rank.

    With a signal, the process sends that to itself and goes on, if nobody opened the gate before.
    """

    def __init__(self, where="round", rank=0, own_signal=None):
        self.where, self.rank, self.own_signal = where, rank, own_signal
        if where == "start":
            self.wait()

    def wait(self):
        Path("waiting").touch()
        if self.own_signal is not None and not Path("go").exists():
            Path("go").touch()
            signal.raise_signal(getattr(signal, self.own_signal))
        while not Path("go").exists():
            time.sleep(0.02)

    def on_train_batch_start(self, trainer, *_):
        if self.where == "round" and trainer.current_epoch == 4 and trainer.global_rank == self.rank:
            self.wait()

    def on_test_start(self, trainer, *_):
        if self.where == "test":
            self.wait()
'''
EXPERIMENT = """
# @package _global_
callbacks:
  gate: {_target_: gate.Gate, where: round, rank: 0, own_signal: null}
  checkpoint: {every_n_rounds: 3}
dataset: {n_clients: 8, dimension: 6, test_size: 30}
trainer: {max_epochs: 6, check_val_every_n_epoch: 100}
hydra: {sweeper: {params: {algorithm: "fedavg,fedem"}}}
"""
START = ["--config-dir", "my configs", "+experiment=gated"]
FOLDER = "a b/c=d,e"
RUN_DIR = f'run_dir="{FOLDER}"'
PATIENCE = 240  # seconds, on a busy machine


def furnish(place: Path) -> Path:
    (place / "gate.py").write_text(GATE)
    (place / "my configs" / "experiment").mkdir(parents=True)
    (place / "my configs" / "experiment" / "gated.yaml").write_text(EXPERIMENT)
    return place


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A user's folder with configurations of its own."""
    return furnish(tmp_path)


class Started:
    """`python -m fedem_lightning`, which has come to the gate."""

    def __init__(self, place: Path, *arguments: str) -> None:
        self.place = place
        command = [sys.executable, "-m", "fedem_lightning", *arguments]
        pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL}
        self.process = subprocess.Popen(command, cwd=place, env=environment(place), text=True, process_group=0, **pipes)
        try:
            deadline = time.monotonic() + PATIENCE
            while not (place / "waiting").exists():
                assert self.process.poll() is None, self.process.communicate()
                assert time.monotonic() < deadline
                time.sleep(0.02)
        except BaseException:
            self.kill()
            raise

    def stop(self, number: signal.Signals, group: bool = False, go: bool = False) -> str:
        """Sends a signal, to all processes as a terminal does or to the first; what it wrote to stderr."""
        try:
            os.killpg(self.process.pid, number) if group else self.process.send_signal(number)
            if go:
                (self.place / "go").touch()
            self.out, err = self.process.communicate(timeout=PATIENCE)
        finally:
            self.kill()
        assert self.process.returncode == 1, (self.process.returncode, self.out, err)
        return err

    def kill(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)


def continuation(line: str) -> str:
    """The command after "with: ", that of the job."""
    return line.partition(" with: ")[2].partition("; continue the whole sweep")[0]


def paste(place: Path, line: str) -> str:
    """Opens the gate, and runs in a shell the command that `line` says; what that printed."""
    (place / "go").touch()
    command = continuation(line)
    done = subprocess.run(["sh", "-c", command], cwd=place, env=environment(place), capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, ""), (command, done)
    return done.stdout


def paste_here(place: Path, line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """The same in this process, with the words that a shell reads, which spares the seconds of loading packages."""
    (place / "go").touch()
    split = f"printf '%s\\0' {continuation(line)}"
    done = subprocess.run(["sh", "-c", split], cwd=place, capture_output=True, text=True, check=True)
    python, *words = done.stdout.split("\0")[:-1]
    assert Path(str(shutil.which(python))).parent == Path(sys.executable).parent
    assert words[:2] == ["-m", "fedem_lightning"]
    monkeypatch.syspath_prepend(place)
    capsys.readouterr()
    assert call(place, monkeypatch, *words[2:]) == 0, words
    return capsys.readouterr().out


def stopped_here(
    place: Path, number: signal.Signals, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *more: str
) -> str:
    """What a command says in this process that sends itself a signal at the gate, as at a terminal."""
    monkeypatch.syspath_prepend(place)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # whatever this process inherited
    try:
        assert call(place, monkeypatch, *more, f"callbacks.gate.own_signal={number.name}") == 1
    finally:
        signal.signal(signal.SIGINT, before)
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    return capsys.readouterr().err


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return torch.load(folder / "checkpoints" / "round-000006.ckpt", weights_only=True)["state_dict"]


def checkpoints(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "checkpoints").iterdir())


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run without a stop."""
    place = tmp_path_factory.mktemp("straight")
    furnish(place)
    (place / "go").touch()
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(place)
        assert call(place, patched, *START, "run_dir=run") == 0
    return place / "run"


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_a_run_ends_its_round_and_goes_on_by_the_command_that_it_prints(
    number: signal.Signals,
    place: Path,
    straight: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The command is copied to a new process after SIGTERM, and to this one after Ctrl-C."""
    run = place / FOLDER
    line = Started(place, *START, RUN_DIR).stop(number, go=True)
    assert line.count("\n") == 1
    name = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM"}[number]
    assert re.match(
        f"stopped by {name} after round 5; continue with: \\S*python[0-9.]* -m fedem_lightning --config-dir ", line
    )
    assert checkpoints(run) == ["round-000003.ckpt", "round-000005.ckpt"]
    assert not (run / "results.json").exists()
    out = paste(place, line) if number == signal.SIGTERM else paste_here(place, line, monkeypatch, capsys)
    assert f"resumed from round 5: {run}/checkpoints/round-000005.ckpt\n" in out
    assert figures(run) == figures(straight)
    expected, found = weights(straight), weights(run)
    assert expected.keys() == found.keys()
    assert all(torch.equal(found[key], expected[key]) for key in expected)


@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.slow), signal.SIGTERM])
def test_a_stop_at_once_goes_on_from_the_last_checkpoint(
    number: signal.Signals,
    place: Path,
    straight: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The round would last for ever: SIGTERM waits a second, Ctrl-C for another one."""
    started = Started(place, *START, RUN_DIR, "callbacks.interrupt.grace_seconds=1")
    if number == signal.SIGINT:
        started.process.send_signal(number)
        assert started.process.stdout is not None
        assert any("this round ends first" in line for line in started.process.stdout)
    line = started.stop(number)
    assert line.count("\n") == 1
    assert re.match(r"stopped by (SIGTERM|Ctrl-C) in round 5; continue after round 3 with: ", line)
    if number == signal.SIGTERM:
        assert "resumed from round 3" in paste_here(place, line, monkeypatch, capsys)
        assert figures(place / FOLDER) == figures(straight)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_before_the_run_begins(
    number: signal.Signals, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    line = stopped_here(place, number, monkeypatch, capsys, *START, RUN_DIR, "callbacks.gate.where=start")
    name = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM"}[number]
    assert line.count("\n") == 1
    assert line.startswith(f"stopped by {name} before the run began; nothing was written")
    assert not (place / "a b").exists()


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("start", "stopped by SIGTERM before the run began; nothing was written"),
        ("test", "stopped by SIGTERM after round 6; continue with: "),
    ],
)
@pytest.mark.slow  # test_a_signal_before_the_run_begins needs no process of its own
def test_before_and_after_training(where: str, expected: str, place: Path) -> None:
    line = Started(place, *START, RUN_DIR, f"callbacks.gate.where={where}").stop(signal.SIGTERM)
    assert line.count("\n") == 1
    assert line.startswith(expected)
    assert (place / "a b").exists() == (where == "test")


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_a_sweep_stops_with_its_job(
    number: signal.Signals, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = place / FOLDER
    line = stopped_here(place, number, monkeypatch, capsys, "-m", *START, "seed=3", RUN_DIR)
    assert line.count("\n") == 1
    assert "after round 5; continue with: " in line
    assert sorted(path.name for path in sweep.iterdir()) == ["0_algorithm=fedavg", "multirun.yaml"]
    if number == signal.SIGTERM:  # the whole sweep goes on
        whole = line.partition("; continue the whole sweep")[2]
        assert "resumed from round 5" in paste_here(place, whole, monkeypatch, capsys)
        assert (sweep / "1_algorithm=fedem" / "results.json").exists()
    else:
        assert "resumed from round 5" in paste_here(place, line, monkeypatch, capsys)
    results = json.loads((sweep / "0_algorithm=fedavg" / "results.json").read_text())
    assert (results["algorithm"], results["seed"], results["rounds"]) == ("fedavg", 3, 6)


@pytest.mark.slow  # test_a_sweep_stops_with_its_job needs no processes of its own
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_sweep_in_a_process_of_its_own_stops_with_its_job(number: signal.Signals, place: Path) -> None:
    line = Started(place, "-m", *START, "seed=3", RUN_DIR).stop(number, go=True)
    assert line.count("\n") == 1
    assert "after round 5; continue with: " in line
    assert "resumed from round 5" in paste(place, line.partition("; continue the whole sweep")[2])
    assert (place / FOLDER / "1_algorithm=fedem" / "results.json").exists()


TWO = ("trainer.devices=2", "trainer.accelerator=cpu")


@pytest.mark.parametrize(("number", "group"), [(signal.SIGINT, True), (signal.SIGTERM, False)])
@pytest.mark.slow  # test_two_processes_one_of_which_waits_for_the_other starts two as well
def test_two_processes_end_after_the_same_round(number: signal.Signals, group: bool, place: Path) -> None:
    line = Started(place, *START, RUN_DIR, *TWO).stop(number, group, go=True)
    assert stop_lines(line) == 1
    assert "after round 5; continue with: " in line
    assert "resumed from round 5" in paste_quietly(place, line)
    assert json.loads((place / FOLDER / "results.json").read_text())["rounds"] == 6


@pytest.mark.slow
@pytest.mark.parametrize("group", [True, False])
def test_two_processes_one_of_which_waits_for_the_other(group: bool, place: Path) -> None:
    """The first one is inside an exchange, where Python hears no signal."""
    started = Started(place, *START, RUN_DIR, *TWO, "callbacks.gate.rank=1", "callbacks.interrupt.grace_seconds=1")
    line = started.stop(signal.SIGTERM, group)
    assert stop_lines(line) == 1
    assert "in round 5; continue after round 3 with: " in line
    with pytest.raises(ProcessLookupError):  # nobody is left
        os.killpg(started.process.pid, 0)


def stop_lines(err: str) -> int:
    assert "Traceback" not in err
    return err.count("stopped by")


def paste_quietly(place: Path, err: str) -> str:
    (line,) = (line for line in err.splitlines() if line.startswith("stopped by"))
    return paste(place, line)


@pytest.mark.slow
def test_two_processes_stopped_after_training(place: Path) -> None:
    """Both wait for the file `go`; Lightning's handler would begin an exchange between them."""
    line = Started(place, *START, RUN_DIR, *TWO, "callbacks.gate.where=test").stop(signal.SIGTERM)
    assert stop_lines(line) == 1
    assert "after round 6; continue with: " in line


def test_lightnings_own_handler_of_sigterm_does_nothing(tmp_path: Path) -> None:
    """It would send SIGTERM on, and exchange something between processes from inside the handler."""
    trainer, stop = make_trainer(1), StopSignals(tmp_path, lambda own: "")

    def stopped() -> None:
        with stop:
            stop.listen_for(trainer)
            trainer._signal_connector.register_signal_handlers()
            try:
                signal.raise_signal(signal.SIGTERM)
            finally:
                trainer._signal_connector.teardown()

    with pytest.raises(Interrupted, match="stopped by SIGTERM before the run began"):
        stopped()
    assert not trainer.received_sigterm


def test_sigterm_waits_for_the_round_as_long_as_grace_seconds_says(tmp_path: Path) -> None:
    """While rounds are trained; before and after them, as long as by default."""
    callback, stop = FinishRoundOnInterrupt(grace_seconds=7.5), StopSignals(tmp_path, lambda own: "")
    stop.listen_for(trainer := make_trainer(1, callbacks=[callback]))
    assert stop._patience(signal.SIGTERM) == GRACE_SECONDS != 7.5
    callback.on_train_start(trainer, make_model(FedAvg, make_data()))
    try:
        assert stop._patience(signal.SIGTERM) == 7.5
    finally:
        callback.on_train_end(trainer, make_model(FedAvg, make_data()))
    assert stop._patience(signal.SIGTERM) == GRACE_SECONDS


LATE = """
import os, sys, time
from pathlib import Path

class Wait:
    def find_spec(name, path=None, target=None):
        if name == "torch" and os.environ.get("LOCAL_RANK") == "1":
            Path("waiting").touch()
            while not Path("go").exists():
                time.sleep(0.02)

sys.meta_path.insert(0, Wait)
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_two_processes_one_of_which_still_loads_its_packages(number: signal.Signals, place: Path) -> None:
    """The first one waits for it, where Python hears no signal; Lightning looks for failed processes all the time."""
    (place / "sitecustomize.py").write_text(LATE)
    started = Started(place, *START, RUN_DIR, *TWO)
    begun = time.monotonic()
    line = started.stop(number, group=True)
    assert time.monotonic() - begun < 20
    assert line.count("\n") == stop_lines(line) == 1
    assert "before the first checkpoint; start again with: " in line
    with pytest.raises(ProcessLookupError):  # nobody is left
        os.killpg(started.process.pid, 0)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_second_process_that_is_ended_ends_the_run(number: signal.Signals, place: Path) -> None:
    """SIGTERM waits for the round, which does not end, as long as grace_seconds says, and twice as long again."""
    started = Started(place, *START, RUN_DIR, *TWO, "callbacks.gate.rank=1", "callbacks.interrupt.grace_seconds=1")
    second = second_process(started.process.pid)
    os.kill(second, number)
    begun = time.monotonic()
    out, err = started.process.communicate(timeout=60)
    assert (started.process.returncode, stop_lines(err)) == (1, 1), (out, err)
    assert f"stopped by the end of process 2 of 2 (pid {second}, " in err
    assert "in round 5; continue after round 3 with: " in err
    assert time.monotonic() - begun < 60
    assert not runs(second)
    assert "resumed from round 3" in paste_quietly(place, err)
    assert (place / FOLDER / "results.json").exists()


@pytest.mark.slow
def test_the_second_process_ends_with_the_first(place: Path) -> None:
    started = Started(place, *START, RUN_DIR, *TWO, "callbacks.gate.rank=1")
    second = second_process(started.process.pid)
    started.process.kill()
    _, err = started.process.communicate(timeout=60)  # both are gone: nobody holds the pipes
    assert "Traceback" not in err
    deadline = time.monotonic() + 60
    while runs(second):
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
