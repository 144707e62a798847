"""Ctrl-C, SIGTERM and SIGKILL on the command line, and the command that goes on, as a user would run and copy it."""

import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from fedem_lightning import FedAvg
from fedem_lightning.run.callbacks import FinishRoundOnInterrupt
from fedem_lightning.settings.keys import choices
from helpers.commands import call, environment, finish, start
from helpers.federations import make_data, make_model, make_trainer
from helpers.kill_resume import KINDS, differences, run_of, write_data
from helpers.processes import runs, second_process

GATE = '''
import os
import signal
import time
from pathlib import Path
import pytorch_lightning as pl

class Gate(pl.Callback):
    """In round 5, or where it is made: touches `waiting`, then waits for a file `go`; in the process of that rank.

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
TWO = ("trainer.devices=2", "trainer.accelerator=cpu")
PATIENCE = 240  # seconds, on a busy machine
BOTH = [signal.SIGINT, signal.SIGTERM]


def furnish(place: Path) -> Path:
    (place / "gate.py").write_text(GATE)
    (place / "my configs" / "experiment").mkdir(parents=True)
    (place / "my configs" / "experiment" / "gated.yaml").write_text(EXPERIMENT)
    return place


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A user's folder with configurations of its own."""
    return furnish(tmp_path)


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run without a stop."""
    place = furnish(tmp_path_factory.mktemp("straight"))
    (place / "go").touch()
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(place)
        assert call(place, patched, *START, RUN_DIR) == 0
    return place / FOLDER


class Started:
    """`python -m fedem_lightning`, which has come to the gate; with all its processes in a group of their own."""

    def __init__(self, place: Path, *arguments: str) -> None:
        self.place = place
        command = [sys.executable, "-m", "fedem_lightning", *arguments]
        pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL}
        self.process = subprocess.Popen(command, cwd=place, env=environment(place), text=True, process_group=0, **pipes)
        try:
            self.wait_for(place / "waiting")
        except BaseException:
            os.killpg(self.process.pid, signal.SIGKILL)
            raise

    def wait_for(self, path: Path) -> None:
        deadline = time.monotonic() + PATIENCE
        while not path.exists():
            assert self.process.poll() is None, self.process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def ask(self, number: signal.Signals) -> None:
        """Sends all processes a signal, as a terminal does, and waits until the first one has heard it."""
        os.killpg(self.process.pid, number)
        assert self.process.stdout is not None
        assert any("this round ends first" in line for line in self.process.stdout)

    def end(self, *codes: int) -> str:
        """Waits for the end of all processes; what they wrote to stderr."""
        try:
            out, err = self.process.communicate(timeout=PATIENCE)
            assert self.process.returncode in (codes or (1,)), (self.process.returncode, out, err)
            deadline = time.monotonic() + 60
            while any(runs(pid) for pid in group(self.process.pid)):
                assert time.monotonic() < deadline, "a process is left"
                time.sleep(0.05)
        finally:
            for pid in group(self.process.pid):
                os.kill(pid, signal.SIGKILL)
        assert "Traceback" not in err
        return err


def group(leader: int) -> list[int]:
    """The processes of a group that have not ended."""
    found = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
    return [pid for pid in found if runs(pid) and _group_of(pid) == leader]


def _group_of(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return -1


def paste(place: Path, line: str) -> str:
    """Opens the gate, and runs in a shell the command that `line` says; what that printed."""
    (place / "go").touch()
    command = line.partition(" with: ")[2].partition("; continue the whole sweep")[0]
    done = subprocess.run(["sh", "-c", command], cwd=place, env=environment(place), capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, ""), (command, done)
    return done.stdout


def stopped_here(place: Path, number: signal.Signals, monkeypatch: Any, capsys: Any, *more: str) -> str:
    """What a command says in this process that sends itself a signal at the gate."""
    monkeypatch.syspath_prepend(place)
    before = {n: signal.signal(n, signal.default_int_handler) for n in BOTH}  # as `python -m` sets them
    try:
        assert call(place, monkeypatch, *more, f"callbacks.gate.own_signal={number.name}") == 1
    finally:
        for n, handler in before.items():
            signal.signal(n, handler)
    err = str(capsys.readouterr().err)
    assert err.count("\n") == 1
    return err


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
@pytest.mark.parametrize("devices", [(), pytest.param(TWO, marks=pytest.mark.slow)], ids=["one", "two"])
def test_the_first_signal_ends_after_the_round(
    number: signal.Signals, devices: tuple[str, ...], place: Path, straight: Path
) -> None:
    """The run goes on by the command that it prints, and ends as if nothing had been."""
    started = Started(place, *START, RUN_DIR, *devices)
    started.ask(number)
    (place / "go").touch()
    line = started.end()
    assert line.count("\n") == 1
    assert re.match(r"stopped; continue after round 5 with: \S*python[0-9.]* -m fedem_lightning --config-dir ", line)
    run = place / FOLDER
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == ["round-000003.ckpt", "round-000005.ckpt"]
    assert f"resumed from round 5: {run}/checkpoints/round-000005.ckpt\n" in paste(place, line)
    if not devices:  # two add in another order
        found = [said for said in differences(straight, run) if not said.startswith(".hydra")]
        kept = ["round-000003.ckpt is missing", "round-000005.ckpt is left over"]  # the last two of each
        assert found == [f"checkpoints/{said}" for said in kept]


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("devices", "rank"),
    [
        ((), 0),
        pytest.param(TWO, 0, marks=pytest.mark.slow),
        pytest.param(TWO, 1, marks=pytest.mark.slow),
    ],
)
def test_the_second_signal_ends_at_once(
    number: signal.Signals, devices: tuple[str, ...], rank: int, place: Path
) -> None:
    """The round would last for ever; with rank 1 the first process waits for the other, where Python hears nothing."""
    started = Started(place, *START, RUN_DIR, *devices, f"callbacks.gate.rank={rank}")
    if rank:
        os.killpg(started.process.pid, number)
        time.sleep(1)
    else:
        started.ask(number)
    os.killpg(started.process.pid, number)
    line = started.end()
    assert line.count("\n") == 1
    assert line.startswith("stopped; continue after round 3 with: ")
    assert "resumed from round 3" in paste(place, line)


@pytest.mark.parametrize("number", BOTH)
def test_a_signal_before_the_run_begins(number: signal.Signals, place: Path, monkeypatch: Any, capsys: Any) -> None:
    line = stopped_here(place, number, monkeypatch, capsys, *START, RUN_DIR, "callbacks.gate.where=start")
    assert line.startswith("stopped before the first checkpoint; start again with: ")
    assert not (place / "a b").exists()


@pytest.mark.parametrize("number", BOTH)
def test_a_sweep_stops_with_its_job(number: signal.Signals, place: Path, monkeypatch: Any, capsys: Any) -> None:
    line = stopped_here(place, number, monkeypatch, capsys, "-m", *START, "seed=3", RUN_DIR)
    assert "continue after round 5 with: " in line
    jobs = sorted(path for path in (place / FOLDER).iterdir() if path.is_dir())
    assert [path.name.split(",")[:2] for path in jobs] == [["0_+experiment=gated", "algorithm=fedavg"]]
    if number == signal.SIGTERM:
        out = paste(place, line.partition("; continue the whole sweep")[2])
        assert "resumed from round 5" in out
        assert len(list((place / FOLDER).glob("*/results.json"))) == 2


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["first", "second"])
def test_no_process_is_left_after_a_kill(victim: str, place: Path) -> None:
    """Once another has died, the first fails in an exchange, or Lightning kills it; the others end with the first."""
    started = Started(place, *START, RUN_DIR, *TWO, "callbacks.gate.rank=1")
    os.kill(second_process(started.process.pid) if victim == "second" else started.process.pid, signal.SIGKILL)
    started.end(-signal.SIGKILL, *([1] if victim == "second" else []))
    (place / "go").touch()
    done = subprocess.run(
        [sys.executable, "-m", "fedem_lightning", *START, RUN_DIR, *TWO, "ckpt_path=auto"],
        cwd=place,
        env=environment(place),
        capture_output=True,
        text=True,
    )
    assert "resumed from round 3" in done.stdout, done


def test_a_signal_during_the_exchange_counts_in_the_next_round() -> None:
    """All processes stop after the same round: not this one, for which the others have already decided."""
    callback, signals = FinishRoundOnInterrupt(), [signal.SIGTERM]
    data = make_data()
    trainer = make_trainer(3, callbacks=[callback])

    def decide(decision: bool, all: bool = True) -> bool:
        assert not all
        if signals:
            signal.raise_signal(signals.pop())
        return decision

    trainer.strategy.reduce_boolean_decision = decide  # type: ignore[method-assign]
    before = {n: signal.signal(n, signal.default_int_handler) for n in BOTH}  # as `python -m` sets them
    trainer.fit(make_model(FedAvg, data), data)
    assert callback.interrupted
    assert trainer.current_epoch == 2
    assert all(signal.signal(n, before[n]) is signal.default_int_handler for n in BOTH)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["loop", "vmap"])
@pytest.mark.parametrize("name", [*KINDS, *choices()["algorithm"]])
def test_a_run_ends_alike_after_kills(name: str, engine: str, tmp_path: Path) -> None:
    """Two kills at random moments: then every file is that of a run that nobody killed."""
    write_data(tmp_path / "data.npz")
    straight, killed = tmp_path / "straight", tmp_path / "killed"
    straight.mkdir()
    killed.mkdir()
    words, search = run_of(name, engine), {"PYTHONPATH": str(Path(__file__).parents[1])}
    begun = time.monotonic()
    code, _, err = finish(start(straight, *words, **search))
    assert code == 0, err
    seconds, draws = time.monotonic() - begun, random.Random(f"{name} {engine}")
    for more in ([], ["ckpt_path=auto"]):
        process = start(killed, *words, *more, **search)
        time.sleep(draws.uniform(0.5, 1) * seconds)
        process.kill()
        process.communicate()
    code, _, err = finish(start(killed, *words, "ckpt_path=auto", **search))
    assert code == 0, err
    assert differences(straight / "run", killed / "run") == []
