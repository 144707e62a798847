"""Resumed runs, and the folders of runs and sweeps, on the command line called in this process."""

import json
import shlex
from pathlib import Path

import pytest
import torch
from hydra import compose, initialize_config_dir

from fedem_lightning.report import find_runs
from fedem_lightning.run.job_folders import remove_if_empty, resume_command
from fedem_lightning.run.resuming import find_checkpoint
from helpers.commands import CONFIG_DIR, TINY, call
from helpers.runs import leave_undrawn, snapshot


@pytest.fixture(autouse=True)
def _undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    leave_undrawn(monkeypatch)


def checkpoint(path: Path, rounds: int) -> None:
    path.parent.mkdir(exist_ok=True)
    torch.save({"state_dict": {}, "statistics": {"round_seconds": [0.1] * rounds}, "federation": None}, path)


def test_auto_picks_the_checkpoint_with_the_most_rounds(tmp_path: Path) -> None:
    """Whatever the files are called, and whichever was written last, as in a copy of a folder."""
    for name, rounds in (("round-000040.ckpt", 40), ("best-of-all.ckpt", 41), ("round-000030.ckpt", 30)):
        checkpoint(tmp_path / "checkpoints" / name, rounds)
    found = find_checkpoint("auto", tmp_path)
    assert found is not None
    assert found.name == "best-of-all.ckpt"


def test_a_resumed_run_counts_on_and_a_finished_one_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [*TINY, "callbacks.checkpoint.every_n_rounds=1", "run_dir=run"]
    assert call(tmp_path, monkeypatch, *arguments, "trainer.max_epochs=2") == 0
    path = tmp_path / "run" / "checkpoints" / "round-000002.ckpt"
    saved = torch.load(path, weights_only=True)
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert 0 < saved["statistics"]["training_seconds"] < saved["statistics"]["seconds_before"]
    assert saved["statistics"]["seconds_before"] < results["seconds"]["total"]
    saved["statistics"]["seconds_before"] = 1e6
    torch.save(saved, path)
    capsys.readouterr()
    assert call(tmp_path, monkeypatch, *arguments, "trainer.max_epochs=3", "ckpt_path=auto") == 0
    assert f"resumed from round 2: {path}\n" in capsys.readouterr().out
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert 1e6 < results["seconds"]["total"] < 1e6 + 1e4

    before = snapshot(tmp_path)
    for rounds in (2, 3):
        assert call(tmp_path, monkeypatch, *arguments, f"trainer.max_epochs={rounds}", "ckpt_path=auto") == 0
        printed = capsys.readouterr()
        assert printed.out == f"{tmp_path / 'run'}: finished after round 3, nothing is left to do\n"
        assert printed.err == ""
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("folder", ["/a/b", "/a b/c=d,e", '/it\'s/a "run"', "/(x)/[y]{z}/a:b", "/a\\b/ends with \\"])
def test_the_command_comes_back_from_shell_and_hydra_as_it_was(folder: str) -> None:
    overrides = ["+experiment=digits", "algorithm.n_components=2", "run_dir=other", "ckpt_path=first.ckpt"]
    words = shlex.split(resume_command(Path(folder), overrides, ["--config-dir", "my configs"]))
    assert words[1:-1] == ["-m", "fedem_lightning", "--config-dir", "my configs", *overrides[:2], "ckpt_path=auto"]
    with initialize_config_dir(str(CONFIG_DIR), version_base="1.3"):
        config = compose("config", words[5:])
    assert (config.run_dir, config.ckpt_path, config.algorithm.n_components) == (folder, "auto", 2)


def test_a_run_without_checkpoints_goes_on_from_where_it_began() -> None:
    command = resume_command(Path("/run"), ["seed=1", "ckpt_path=first.ckpt", "run_dir=/run"], own=False)
    assert shlex.split(command)[3:] == ["seed=1", "ckpt_path=first.ckpt", 'run_dir="/run"']


SWEEPS = {
    "on the command line": (
        ["algorithm=fedavg,local", "seed=3,4"],
        [
            "0_algorithm=fedavg,seed=3",
            "1_algorithm=fedavg,seed=4",
            "2_algorithm=local,seed=3",
            "3_algorithm=local,seed=4",
        ],
    ),
    "in an experiment": (["+experiment=small", "seed=3"], ["0_algorithm=fedavg", "1_algorithm=local"]),
    "nothing": (["algorithm=fedavg", "seed=3"], ["0"]),
}


@pytest.mark.parametrize("name", SWEEPS)
def test_a_sweeps_folders_are_named_by_what_differs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "conf" / "experiment").mkdir(parents=True)
    experiment = "# @package _global_\nhydra: {sweeper: {params: {algorithm: 'fedavg,local', seed: '1,2'}}}\n"
    (tmp_path / "conf" / "experiment" / "small.yaml").write_text(experiment)
    varied, expected = SWEEPS[name]
    arguments = ["--config-dir", "conf", "-m", *TINY, "trainer.max_epochs=1", *varied, "run_dir=sweep"]
    assert call(tmp_path, monkeypatch, *arguments) == 0, capsys.readouterr()
    found = sorted(path.name for path in (tmp_path / "sweep").iterdir() if path.is_dir())
    assert found == expected
    runs, skipped = find_runs([tmp_path / "sweep"])
    assert (len(runs), skipped) == (len(found), [])


@pytest.mark.parametrize("sweep", [False, True])
def test_a_failed_run_leaves_no_empty_folder(sweep: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedem_lightning.run.job_folders._before", set())  # other tests leave theirs
    wrong = [*TINY, "algorithm.n_components=0"]
    (tmp_path / "mine").mkdir()
    if sweep:  # an empty folder of the user's, called like a job's
        (tmp_path / "mine" / "0_seed=0").mkdir()
    for arguments in ([], ["run_dir=mine/a/b"], ["run_dir=mine"]):
        code = call(tmp_path, monkeypatch, *(["-m", "seed=0,1"] if sweep else []), *wrong, *arguments)
        assert code == 2
    left = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*"))
    assert left == (["mine", "mine/0_seed=0"] if sweep else ["mine"])


def test_a_folder_with_content_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedem_lightning.run.job_folders._before", {tmp_path})
    (tmp_path / "a" / "b" / "c").mkdir(parents=True)
    (tmp_path / "a" / "file").touch()
    remove_if_empty(tmp_path / "a" / "b" / "c")
    assert [path.name for path in tmp_path.rglob("*")] == ["a", "file"]
