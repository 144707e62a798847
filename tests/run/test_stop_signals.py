"""What signals do before, between and after runs, and between the processes of one, in this process where possible."""

import os
import queue
import shlex
import signal
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedem_lightning.callbacks import FinishRoundOnInterrupt
from fedem_lightning.callbacks.between_rounds import SIGNALS
from fedem_lightning.errors import Interrupted
from fedem_lightning.run import job_folders
from fedem_lightning.run.job_folders import JobFolders, begin_sweep, sweep_command
from fedem_lightning.run.stopping import StopSignals
from fedem_lightning.startup import process
from helpers.commands import environment
from helpers.federations import make_trainer

BOTH = [signal.SIGINT, signal.SIGTERM]
REST = "stopped after a job; continue the sweep with: CONTINUE"


@pytest.fixture(params=[None, "CONTINUE"], ids=["single", "sweep"])
def sweep(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str | None:
    """The command that continues the sweep, if there is one; what a stop says is put back afterwards."""
    monkeypatch.setattr(process, "_line", "before")
    monkeypatch.setattr(job_folders, "_sweep_command", request.param)
    return request.param


class Exchange:
    """Stands for a Trainer's strategy: a signal comes during an exchange between processes."""

    def __init__(self, callback: FinishRoundOnInterrupt) -> None:
        self.callback, self.signals = callback, [signal.SIGTERM]

    def reduce_boolean_decision(self, decision: bool, all: bool) -> bool:
        assert not all
        if self.signals:
            self.callback._handle(self.signals.pop(), None)
        return decision


def test_a_signal_that_comes_during_an_exchange_counts_in_the_next_one() -> None:
    """All processes stop after the same round: not this one, for which the others have already decided."""
    callback = FinishRoundOnInterrupt()
    trainer = SimpleNamespace(strategy=Exchange(callback), should_stop=False)
    stops = []
    for _ in range(2):
        callback.on_train_epoch_end(trainer, None)  # type: ignore[arg-type]
        stops.append((trainer.should_stop, callback.interrupted))
    assert stops == [(False, False), (True, True)]


def test_a_signal_after_the_last_round_is_heard_at_the_end_of_training() -> None:
    callback = FinishRoundOnInterrupt()
    trainer = SimpleNamespace(strategy=Exchange(callback), should_stop=False)
    callback.on_train_epoch_end(trainer, None)  # type: ignore[arg-type]
    callback.on_train_end(trainer, None)  # type: ignore[arg-type]
    assert callback.interrupted


def test_what_is_said_where_another_process_was_told_to_stop(tmp_path: Path) -> None:
    (tmp_path / ".hydra").mkdir()
    stop = StopSignals(tmp_path, lambda own: "COMMAND")
    stop.resumed_rounds = 3
    expected = "stopped by a signal sent to one of its processes after round 3; continue with: COMMAND"
    assert stop.message(FinishRoundOnInterrupt().signal_name) == expected


@pytest.mark.parametrize("number", BOTH)
def test_a_process_that_waits_for_another_ends_soon(number: signal.Signals, tmp_path: Path) -> None:
    """Ctrl-C waits for a round as long as it takes, but before the rounds no longer than SIGTERM."""
    callback, stop = FinishRoundOnInterrupt(grace_seconds=7.5), StopSignals(tmp_path, lambda own: "")
    stop.listen_for(trainer := make_trainer(1, callbacks=[callback]))
    waiting: Any = SimpleNamespace(procs=[SimpleNamespace()])
    trainer.strategy._launcher = waiting
    assert stop._patience(number) < 1
    callback._previous = {number: None}  # as while rounds are trained
    assert stop._patience(number) == {signal.SIGINT: float("inf"), signal.SIGTERM: 7.5}[number]


@pytest.mark.parametrize("number", BOTH)
def test_what_does_not_hear_a_signal_is_ended_when_patience_is(
    number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: queue.Queue[str] = queue.Queue()
    stop = StopSignals(tmp_path, lambda own: "")
    monkeypatch.setattr(stop, "_patience", lambda signum: 0.05)
    monkeypatch.setattr(stop, "_end_by_force", ended.put)
    stop.at_once = True  # as if a handler had run, and the run had gone on
    with stop:
        signal.raise_signal(number)
        assert ended.get(timeout=30) == SIGNALS[number]


@pytest.mark.parametrize("number", BOTH)
def test_signals_after_the_results_are_written(number: signal.Signals, sweep: str | None, tmp_path: Path) -> None:
    """A single run ends as if nothing had come; a sweep stops before its next job."""
    (tmp_path / "results.json").write_text("{}")  # of an earlier run, which this one continues

    def finish() -> None:
        with StopSignals(tmp_path, lambda own: "") as stop:
            assert stop._patience(number) < float("inf")
            (tmp_path / "new").write_text('{"rounds": 6}')
            (tmp_path / "new").replace(tmp_path / "results.json")
            signal.raise_signal(number)
            assert stop._patience(number) == float("inf")

    if sweep is None:
        finish()
    else:
        name = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM"}[number]
        with pytest.raises(Interrupted, match=f"stopped by {name} after a job; continue the sweep with: CONTINUE"):
            finish()


@pytest.mark.parametrize("finished", [True, False])
def test_what_a_second_signal_ends_by_force(
    finished: bool,
    sweep: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    codes: list[int] = []
    monkeypatch.setattr(os, "_exit", codes.append)
    stop = StopSignals(tmp_path, lambda own: "")
    if finished:
        (tmp_path / "results.json").write_text("{}")
    stop._end_by_force("SIGTERM")
    said = capsys.readouterr().err
    if finished:
        assert said == ("" if sweep is None else "stopped by SIGTERM after a job; continue the sweep with: CONTINUE\n")
    else:
        assert said.startswith("stopped by SIGTERM before the run began; nothing was written")
    assert codes == [0 if finished and sweep is None else 1]


@pytest.mark.parametrize("error", [None, ValueError, Interrupted])
def test_what_a_stop_says_after_a_run(error: type[BaseException] | None, sweep: str | None, tmp_path: Path) -> None:
    """Nothing, if no job follows; nor after a line that says how to go on."""
    with nullcontext() if error is None else pytest.raises(error), StopSignals(tmp_path, lambda own: ""):
        if error is not None:
            raise error("wrong")
    assert process._line == (None if sweep is None or error is Interrupted else REST)


def test_a_stopped_job_says_how_the_sweep_goes_on_too(sweep: str | None, tmp_path: Path) -> None:
    (tmp_path / ".hydra").mkdir()
    stop = StopSignals(tmp_path, lambda own: "COMMAND")
    more = "" if sweep is None else "; continue the whole sweep with: CONTINUE"
    assert stop.message("SIGTERM") == f"stopped by SIGTERM before the first checkpoint; start again with: COMMAND{more}"


def test_the_command_that_continues_a_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_folders, "_sweep_command", None)
    for given, overrides in ((["run_dir=x"], ["ckpt_path=auto"]), (["ckpt_path=my.ckpt"], ["ckpt_path=my.ckpt"])):
        begin_sweep(Path("/a b"), ["seed=1,2", *given, "-m", "--config-dir", "my configs"])
        words = shlex.split(str(sweep_command()))[3:]
        assert words == ["-m", "--config-dir", "my configs", "seed=1,2", *overrides, 'run_dir="/a b"']


def test_a_launcher_that_has_workers_ends_them_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = {number: signal.getsignal(number) for number in BOTH}
    kinds = (("hydra._internal.core_plugins.basic_launcher.BasicLauncher", process.stop), ("joblib", None))
    monkeypatch.setattr("fedem_lightning.run.job_folders._name_by_swept_keys", lambda config: None)
    try:
        for target, handler in kinds:
            with process.listening("line"):
                launcher, sweep = SimpleNamespace(_target_=target), SimpleNamespace(dir=str(tmp_path))
                hydra = SimpleNamespace(launcher=launcher, sweep=sweep)
                JobFolders().on_multirun_start(SimpleNamespace(hydra=hydra))  # type: ignore[arg-type]
                assert {signal.getsignal(n) for n in BOTH} == {handler or signal.default_int_handler}
    finally:
        job_folders.leave_sweep()
        for number in BOTH:
            signal.signal(number, before[number])


BETWEEN = """
import gc, os, runpy, signal, sys, weakref
number, *sys.argv[1:] = sys.argv[1:]
signal.signal(signal.SIGINT, signal.default_int_handler)
collect = gc.collect

class Node:
    pass

def collect_with_a_signal(*arguments):
    \"\"\"The signal comes in a callback from which Python lets no exception out.\"\"\"
    node = Node()
    node.itself, gone = node, weakref.ref(node, lambda _: os.kill(os.getpid(), int(number)))
    del node
    return collect(*arguments)

gc.collect = collect_with_a_signal
runpy.run_module("fedem_lightning", run_name="__main__", alter_sys=True)
"""


@pytest.mark.slow  # tests/run/test_stopping.py stops a sweep in this process
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_between_two_jobs_stops_the_sweep(number: signal.Signals, tmp_path: Path) -> None:
    """Each job would fail at once."""
    arguments = ["-m", "algorithm.n_components=0", "dataset.n_clients=4", "seed=0,1", "run_dir=a sweep"]
    command = [sys.executable, "-c", BETWEEN, str(int(number)), *arguments]
    variables = environment(tmp_path)
    done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=200)
    assert done.returncode == 1, done
    refused, line = done.stderr.splitlines()
    assert refused.startswith("job 0_seed=0 failed: algorithm.n_components: expected a whole number")
    said, _, how = line.partition(" with: ")
    assert said == "stopped after a job; continue the sweep"
    expected = [*arguments[:-1], "ckpt_path=auto", f'run_dir="{tmp_path / "a sweep"}"']
    assert shlex.split(how)[1:] == ["-m", "fedem_lightning", *expected]
    assert [path.name for path in (tmp_path / "a sweep").iterdir()] == ["multirun.yaml"]
