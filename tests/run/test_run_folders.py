"""A run's folder: who may write in it, what it is not written over, and what it says of a run that was extended."""

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
from omegaconf import OmegaConf

from fedem_lightning import UserError
from fedem_lightning.report import find_runs
from fedem_lightning.run.resuming import continued, save_config
from fedem_lightning.run.run_folder import LOCK, check_run_folder, only_run_in
from helpers.commands import TINY, call
from helpers.runs import leave_undrawn, snapshot

RUN = [*TINY, "algorithm=fedavg", "callbacks.checkpoint.every_n_rounds=1", "callbacks.checkpoint.keep=9"]
RUN += ["run_dir=run", "trainer.accelerator=cpu"]


@pytest.fixture(autouse=True)
def _undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    leave_undrawn(monkeypatch)


@pytest.fixture(scope="module")
def four_rounds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The place of a finished run of 4 rounds, in its folder `run`."""
    place = tmp_path_factory.mktemp("four")
    with pytest.MonkeyPatch.context() as patch:
        leave_undrawn(patch)
        assert call(place, patch, *RUN) == 0
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


# --- one process at a time --------------------------------------------------------------------------------------------


HOLD = """
import sys
from pathlib import Path
from fedem_lightning.run.run_folder import only_run_in
with only_run_in(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_second_process_is_told_who_runs(place: Path, monkeypatch: Any, capsys: Any) -> None:
    """The owner is another process; when that is killed, the folder is free, though the file is still there."""
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", HOLD, str(place / "run")], **pipes) as owner:
        assert owner.stdout.readline() == "held\n"
        before = snapshot(place)
        assert call(place, monkeypatch, *RUN, "trainer.max_epochs=5", "ckpt_path=auto") == 2
        said = refusal(capsys)
        who = f"another process (pid {owner.pid} on {os.uname().nodename}, since "
        assert said.startswith(f"run_dir: {place / 'run'}: {who}")
        assert said.endswith(") is running it")
        assert snapshot(place) == before
        owner.kill()
    assert (place / "run" / LOCK).exists()
    assert call(place, monkeypatch, *RUN, "trainer.max_epochs=5", "ckpt_path=auto") == 0
    assert not (place / "run" / LOCK).exists()


def test_a_folder_that_was_made_for_the_lock_goes_with_it(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), only_run_in(tmp_path / "a"):
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []


def test_what_killed_runs_have_left_is_removed(tmp_path: Path) -> None:
    ours = [".metrics.csv.12.tmp", "checkpoints/.best.ckpt.345.tmp", ".hydra/.config.yaml.6.tmp"]
    others = [".notes.tmp", "a.12.tmp", "checkpoints/round-000004.ckpt"]
    for name in (*ours, *others):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    with only_run_in(tmp_path):
        found = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert found == {*others, LOCK}


# --- nothing is written over ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["accuracy_by_round.png", "clusters.npz", "metrics.csv", "trackers.json"])
@pytest.mark.parametrize("more", [[], ["ckpt_path=auto"]])
def test_a_users_own_file_stays(name: str, more: list[str], tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / name).write_text("mine")
    assert call(tmp_path, monkeypatch, *RUN, *more) == 2
    assert name in refusal(capsys)
    assert snapshot(tmp_path) == {f"run/{name}": b"mine"}


def results_as_a_folder(run: Path) -> None:
    (run / "results.json").unlink()
    (run / "results.json").mkdir()


CHANGED: dict[str, tuple[Callable[[Path], Any], list[str], str]] = {
    "back": (
        lambda run: (run / "results.json").unlink(),
        ["ckpt_path=run/checkpoints/round-000002.ckpt", "trainer.max_epochs=8"],
        "round-000002.ckpt is of round 2, and the run in {run} has gone on to round 4",
    ),
    "fewer rounds": (
        lambda run: (run / "results.json").unlink(),
        ["ckpt_path=auto", "trainer.max_epochs=2"],
        "trainer.max_epochs: the run in {run} has gone on to round 4, got 2; expected at least 4",
    ),
    "from an earlier round to that round": (
        lambda run: (run / "results.json").unlink(),
        ["ckpt_path=run/checkpoints/round-000002.ckpt", "trainer.max_epochs=2"],
        "the run in {run} has gone on to round 4",
    ),
    "broken configuration": (
        lambda run: (run / ".hydra" / "config.yaml").write_text("a: [1\nb"),
        ["ckpt_path=auto", "trainer.max_epochs=5"],
        "{run}/.hydra/config.yaml is broken: .hydra/config.yaml is unreadable (",
    ),
    "configuration with aliases": (
        lambda run: (run / ".hydra" / "config.yaml").write_text("a: &a [1]\nb: *a\n"),
        ["ckpt_path=auto", "trainer.max_epochs=5"],
        "{run}/.hydra/config.yaml is broken: .hydra/config.yaml has aliases, which no run writes",
    ),
    "metrics of Excel": (
        lambda run: (run / "metrics.csv").write_text((run / "metrics.csv").read_text().replace(",", ";")),
        ["ckpt_path=auto", "trainer.max_epochs=5"],
        "{run}/metrics.csv: another program has changed it",
    ),
    "a folder for a file": (
        results_as_a_folder,
        ["ckpt_path=auto", "trainer.max_epochs=5"],
        "run_dir: {run}/results.json is a folder, but a run writes a file of that name",
    ),
    "a folder for a checkpoint": (
        lambda run: (run / "checkpoints" / "round-000005.ckpt").mkdir(),
        ["ckpt_path=auto", "trainer.max_epochs=5"],
        "run_dir: {run}/checkpoints/round-000005.ckpt is a folder, but a run writes a file of that name",
    ),
    "a file for a folder": (
        lambda run: (run / "checkpoints").rename(run / "kept") and (run / "checkpoints").write_text(""),
        ["ckpt_path=auto", "trainer.max_epochs=5"],
        "run_dir: {run}/checkpoints is a file, but a run keeps a folder of that name",
    ),
    "no checkpoint": (
        lambda run: (run / "x").symlink_to("nowhere"),
        ["ckpt_path=run/x", "trainer.max_epochs=5"],
        "ckpt_path: no file run/x",
    ),
}


@pytest.mark.parametrize("kind", CHANGED)
def test_a_run_that_cannot_go_on_stays_as_it_is(kind: str, place: Path, monkeypatch: Any, capsys: Any) -> None:
    change, more, said = CHANGED[kind]
    change(place / "run")
    before = snapshot(place)
    assert call(place, monkeypatch, *RUN, *more) == 2
    assert said.format(run=place / "run") in refusal(capsys)
    assert snapshot(place) == before


@pytest.mark.parametrize(
    ("optimizer", "said"),
    [
        (["algorithm.server_optimizer._target_=torch.optim.Adam"], "amsgrad was"),
        (["algorithm.server_optimizer.lr=0.5"], "lr was 1.0, now it is 0.5"),
    ],
)
def test_another_server_optimizer_is_refused(
    optimizer: list[str], said: str, place: Path, monkeypatch: Any, capsys: Any
) -> None:
    arguments = [*RUN[:-2], "trainer.accelerator=cpu", "run_dir=other", *optimizer]
    assert call(place, monkeypatch, *arguments, "ckpt_path=run/checkpoints/round-000004.ckpt") == 2
    said_all = refusal(capsys)
    assert "was written with another server optimizer: " in said_all
    assert said in said_all
    assert not (place / "other").exists()


OTHERS = {
    "algorithm.client_optimizer.lr=0.5": "algorithm.client_optimizer.lr was 1.0, now it is 0.5",
    "algorithm.batch_size=7": "algorithm.batch_size was 128, now it is 7",
}


@pytest.mark.parametrize("other", OTHERS)
def test_a_checkpoint_of_another_experiment_is_refused(other: str, place: Path, monkeypatch: Any, capsys: Any) -> None:
    """Once the run went on with it, exit code 0."""
    arguments = [*RUN[:-2], "trainer.accelerator=cpu", "run_dir=other", "trainer.max_epochs=5", other]
    assert call(place, monkeypatch, *arguments, "ckpt_path=run/checkpoints/round-000004.ckpt") == 2
    of = "ckpt_path: run/checkpoints/round-000004.ckpt is of another experiment: "
    assert refusal(capsys) == f"{of}{OTHERS[other]}; go on with its settings"
    assert not (place / "other").exists()


def test_what_training_does_not_see_may_differ(place: Path, monkeypatch: Any) -> None:
    free = ["engine=loop", "adaptation=finetune", "algorithm.scored_clients=3"]
    arguments = [*TINY, "algorithm=fedavg", "trainer.accelerator=cpu", "run_dir=other", *free]
    assert call(place, monkeypatch, *arguments, "ckpt_path=run/checkpoints/round-000004.ckpt") == 0


# --- the configuration of a run that goes on --------------------------------------------------------------------------


def test_an_extended_run_says_so(place: Path, monkeypatch: Any) -> None:
    run = place / "run"
    first = (run / ".hydra" / "config.yaml").read_bytes()
    results = (run / "results.json").read_bytes()
    assert call(place, monkeypatch, *RUN, "ckpt_path=auto", "trainer.max_epochs=6", "trainer.precision=64-true") == 0
    kept = {path.name for path in (run / ".hydra").iterdir()}
    until = {f"{name}.until-round-000004.{end}" for name, end in (("config", "yaml"), ("overrides", "yaml"))}
    assert kept == {"config.yaml", "overrides.yaml", *until, "results.until-round-000004.json"}
    assert (run / ".hydra" / "config.until-round-000004.yaml").read_bytes() == first
    assert (run / ".hydra" / "results.until-round-000004.json").read_bytes() == results
    assert yaml.safe_load((run / ".hydra" / "config.yaml").read_text())["trainer"]["max_epochs"] == 6
    after = json.loads((run / "results.json").read_text())
    assert after["rounds"] == 6
    assert after["continued"] == [{"round": 4, "changed": ["trainer.max_epochs", "trainer.precision"]}]
    assert pd.read_csv(run / "metrics.csv")["round"].tolist() == [0, 1, 2, 3, 4, 5, 6]


def test_a_run_that_goes_on_unchanged_keeps_its_configuration(place: Path, monkeypatch: Any) -> None:
    run = place / "run"
    (run / "checkpoints" / "round-000004.ckpt").unlink()
    (run / "results.json").unlink()
    before = {path.name: path.read_bytes() for path in (run / ".hydra").iterdir()}
    assert call(place, monkeypatch, *RUN, "ckpt_path=auto") == 0
    assert {path.name: path.read_bytes() for path in (run / ".hydra").iterdir()} == before
    assert json.loads((run / "results.json").read_text())["continued"] == []


def test_a_configuration_that_led_to_no_checkpoint_is_forgotten(tmp_path: Path) -> None:
    def save(rounds: int, epochs: int, **more: Any) -> None:
        config = {"ckpt_path": "auto", "trainer": {"max_epochs": epochs, **more}}
        save_config(tmp_path, OmegaConf.create(config), [], rounds)

    save(0, 4)
    save(4, 8)  # was killed before round 5 had a checkpoint
    save(4, 9)
    save(6, 9)
    save(7, 9, precision="64-true")
    changes = [(4, ["trainer.max_epochs"]), (7, ["trainer.precision"])]
    assert continued(tmp_path) == [{"round": rounds, "changed": keys} for rounds, keys in changes]


def test_a_run_without_its_configuration_writes_it(place: Path, monkeypatch: Any) -> None:
    shutil.rmtree(place / "run" / ".hydra")
    (place / "run" / ".hydra").mkdir()
    assert call(place, monkeypatch, *RUN, "ckpt_path=auto") == 0
    runs, skipped = find_runs([place])
    assert ([run.folder.name for run in runs], skipped) == (["run"], [])


# --- what the system refuses ------------------------------------------------------------------------------------------


def test_a_full_disk_in_the_middle_of_a_run(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    """The third checkpoint cannot be written. The line names it; the ones before stay, and nothing half is left."""
    replace = os.replace

    def refused(source: Any, target: Any) -> None:
        if Path(target).name == "round-000003.ckpt":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", refused)
        assert call(tmp_path, patch, *RUN) == 2
    path = tmp_path / "run" / "checkpoints" / "round-000003.ckpt"
    assert refusal(capsys) == f"cannot write {path} (No space left on device)"
    assert sorted(p.name for p in path.parent.iterdir()) == ["round-000001.ckpt", "round-000002.ckpt"]
    assert not list((tmp_path / "run").glob(".*.tmp"))
    assert call(tmp_path, monkeypatch, *RUN, "ckpt_path=auto") == 0
    assert json.loads((tmp_path / "run" / "results.json").read_text())["rounds"] == 4


@pytest.mark.parametrize("number", [errno.EROFS, errno.ENOSPC, errno.EDQUOT])
def test_a_folder_that_cannot_be_written_to(number: int, tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    opened = os.open

    def refused(path: Any, *arguments: Any, **options: Any) -> int:
        if str(path).endswith(LOCK):
            raise OSError(number, os.strerror(number))
        return opened(path, *arguments, **options)

    monkeypatch.setattr(os, "open", refused)
    assert call(tmp_path, monkeypatch, *RUN) == 2
    assert refusal(capsys) == f"cannot write {tmp_path / 'run' / LOCK} ({os.strerror(number)})"
    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_checkpoints_alone_can_go_on(tmp_path: Path) -> None:
    """As a copy without hidden files is."""
    (tmp_path / "checkpoints").mkdir()
    check_run_folder(tmp_path, OmegaConf.create({"ckpt_path": "auto"}))
    with pytest.raises(UserError, match="already holds a run"):
        check_run_folder(tmp_path, OmegaConf.create({"ckpt_path": None}))
