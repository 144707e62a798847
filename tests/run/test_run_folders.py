"""A run's folder: who may write in it, what it is not written over, and what a run goes on from."""

import errno
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from fedem_lightning.run.run_folder import LOCK, only_run_in
from helpers.commands import TINY, call
from helpers.runs import snapshot

RUN = [*TINY, "algorithm=fedavg", "callbacks.checkpoint.every_n_rounds=1", "callbacks.checkpoint.keep=9"]
RUN += ["trainer.accelerator=cpu"]
SAME = [*RUN, "run_dir=run"]
OTHER = [*RUN, "run_dir=other"]
FROM_FILE = "ckpt_path=run/checkpoints/round-000004.ckpt"


@pytest.fixture(scope="module")
def four_rounds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The place of a finished run of 4 rounds, in its folder `run`."""
    place = tmp_path_factory.mktemp("four")
    with pytest.MonkeyPatch.context() as patch:
        assert call(place, patch, *SAME) == 0
    return place


@pytest.fixture
def place(four_rounds: Path, tmp_path: Path) -> Path:
    """A copy of `four_rounds`."""
    shutil.copytree(four_rounds / "run", tmp_path / "run")
    return tmp_path


def refusal(capsys: pytest.CaptureFixture[str]) -> str:
    err = capsys.readouterr().err
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    return err.removeprefix("error: ").strip()


HOLD = """
import sys
from pathlib import Path
from fedem_lightning.run.run_folder import only_run_in
with only_run_in(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_second_run_is_refused_while_another_is_alive(place: Path, monkeypatch: Any, capsys: Any) -> None:
    """When the other one is killed, the folder is free, though the file is still there."""
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    more = ["trainer.max_epochs=5", "ckpt_path=auto"]
    with subprocess.Popen([sys.executable, "-c", HOLD, str(place / "run")], **pipes) as owner:
        assert owner.stdout.readline() == "held\n"
        before = snapshot(place)
        assert call(place, monkeypatch, *SAME, *more) == 2
        assert refusal(capsys).startswith(f"run_dir: another process is running {place / 'run'}")
        assert snapshot(place) == before
        owner.kill()
    assert (place / "run" / LOCK).exists()
    assert call(place, monkeypatch, *SAME, *more) == 0
    assert not (place / "run" / LOCK).exists()


def test_what_killed_runs_have_left_is_removed(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / ".round-000004.ckpt.345.tmp").touch()
    with only_run_in(tmp_path):
        assert list((tmp_path / "checkpoints").iterdir()) == []


@pytest.mark.parametrize("name", ["clusters.npz", "metrics.csv"])
@pytest.mark.parametrize("more", [[], ["ckpt_path=auto"]])
def test_a_users_own_file_stays(name: str, more: list[str], tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / name).write_text("mine")
    assert call(tmp_path, monkeypatch, *SAME, *more) == 2
    assert name in refusal(capsys)
    assert snapshot(tmp_path) == {f"run/{name}": b"mine"}


def unchanged(run: Path) -> None:
    assert run.is_dir()


def without_results(run: Path) -> None:
    (run / "results.json").unlink()


REFUSED: dict[str, tuple[Callable[[Path], Any], list[str], str]] = {
    "another rate": (
        unchanged,
        [*SAME, "ckpt_path=auto", "algorithm.client_optimizer.lr=0.5"],
        "algorithm.client_optimizer.lr: the run in {run} had 1.0, now it is 0.5",
    ),
    "from a file": (unchanged, [*SAME, FROM_FILE, "trainer.max_epochs=5"], "run_dir: {run} already holds a run"),
    "no checkpoint": (
        lambda run: shutil.rmtree(run / "checkpoints"),
        [*SAME, "ckpt_path=auto", "trainer.max_epochs=5"],
        "run_dir: {run} holds results, but no checkpoint to go on from",
    ),
    "fewer rounds": (
        without_results,
        [*SAME, "ckpt_path=auto", "trainer.max_epochs=2"],
        "trainer.max_epochs: expected at least 4, the rounds of {run}/checkpoints/round-000004.ckpt",
    ),
    "another batch": (
        unchanged,
        [*OTHER, FROM_FILE, "trainer.max_epochs=5", "algorithm.batch_size=7"],
        "round-000004.ckpt is of another experiment: algorithm.batch_size was 128, now it is 7",
    ),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_cannot_go_on_is_refused_and_stays_as_it_is(kind: str, place: Path, monkeypatch: Any, capsys: Any) -> None:
    change, arguments, said = REFUSED[kind]
    change(place / "run")
    before = snapshot(place)
    assert call(place, monkeypatch, *arguments) == 2
    assert said.format(run=place / "run") in refusal(capsys)
    assert snapshot(place) == before
    assert not (place / "other").exists()


def test_what_training_does_not_see_may_differ(place: Path, monkeypatch: Any) -> None:
    free = ["engine=loop", "adaptation=finetune", "algorithm.scored_clients=3"]
    assert call(place, monkeypatch, *OTHER, *free, FROM_FILE) == 0


def test_an_extended_run(place: Path, monkeypatch: Any) -> None:
    more = ["ckpt_path=auto", "trainer.max_epochs=6", "trainer.precision=64-true"]
    assert call(place, monkeypatch, *SAME, *more) == 0
    run = place / "run"
    assert {path.name for path in (run / ".hydra").iterdir()} == {"config.yaml", "overrides.yaml"}
    assert yaml.safe_load((run / ".hydra" / "config.yaml").read_text())["trainer"]["max_epochs"] == 6
    assert json.loads((run / "results.json").read_text())["rounds"] == 6
    assert pd.read_csv(run / "metrics.csv")["round"].tolist() == [0, 1, 2, 3, 4, 5, 6]


def test_a_full_disk_in_the_middle_of_a_run(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    """The third checkpoint cannot be written. The line names it; the ones before stay, and nothing half is left."""
    replace = os.replace

    def refused(source: Any, target: Any) -> None:
        if Path(target).name == "round-000003.ckpt":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", refused)
        assert call(tmp_path, patch, *SAME) == 2
    path = tmp_path / "run" / "checkpoints" / "round-000003.ckpt"
    assert refusal(capsys) == f"cannot write {path} (No space left on device)"
    assert sorted(p.name for p in path.parent.iterdir()) == ["round-000001.ckpt", "round-000002.ckpt"]
    assert call(tmp_path, monkeypatch, *SAME, "ckpt_path=auto") == 0
    assert json.loads((tmp_path / "run" / "results.json").read_text())["rounds"] == 4


def test_a_run_that_fails_before_its_first_round_leaves_nothing(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    """The mean of the updates overflows in round 1; and a folder that was there before stays."""
    (tmp_path / "mine").mkdir()
    for folder in ("a/b", "mine"):
        assert call(tmp_path, monkeypatch, *RUN, "algorithm.client_optimizer.lr=1e38", f"run_dir={folder}") == 2
        assert "diverged" in refusal(capsys)
    assert [path.name for path in tmp_path.rglob("*")] == ["mine"]


def test_a_run_that_goes_on_and_fails_removes_nothing_that_was_there(
    tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    (tmp_path / "run" / ".hydra").mkdir(parents=True)  # of a run that was killed before its first checkpoint
    (tmp_path / "run" / "notes.png").touch()
    assert call(tmp_path, monkeypatch, *SAME, "algorithm.client_optimizer.lr=1e38", "ckpt_path=auto") == 2
    assert "diverged" in refusal(capsys)
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == [".hydra", "notes.png"]
