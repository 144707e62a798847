"""Resumed runs, sweeps that are repeated, and the command that continues them, called in this process."""

import json
import shlex
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from fedem_lightning.report import find_runs
from fedem_lightning.run.command_line import resume_command
from fedem_lightning.run.run_folder import find_checkpoint
from helpers.commands import TINY, call, composed
from helpers.runs import snapshot


def checkpoint(path: Path, rounds: int) -> None:
    path.parent.mkdir(exist_ok=True)
    torch.save({"state_dict": {}, "statistics": {"round_seconds": [0.1] * rounds}, "federation": None}, path)


def test_auto_picks_the_checkpoint_with_the_most_rounds(tmp_path: Path) -> None:
    """Whatever the files are called, and whichever was written last, as in a copy of a folder."""
    for name, rounds in (("round-000040.ckpt", 40), ("best-of-all.ckpt", 41), ("round-000030.ckpt", 30)):
        checkpoint(tmp_path / "checkpoints" / name, rounds)
    (tmp_path / "checkpoints" / "round-000050.ckpt").write_bytes(b"half")
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
    assert 0 < saved["statistics"]["training_seconds"] < saved["statistics"]["seconds_before"]
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


@pytest.mark.parametrize("folder", ["/a b/c=d,e", '/it\'s/a "run"', "/(x)/[y]{z}/a:b", "/a\\b/ends with \\"])
def test_the_command_comes_back_from_shell_and_hydra_as_it_was(folder: str) -> None:
    overrides = ["+experiment=digits", "algorithm.n_components=2", "run_dir=other", "ckpt_path=first.ckpt"]
    words = shlex.split(resume_command(Path(folder), overrides, ["--config-dir", "my configs"]))
    assert words[1:-1] == ["-m", "fedem_lightning", "--config-dir", "my configs", *overrides[:2], "ckpt_path=auto"]
    config = composed(*words[5:])
    assert (config.run_dir, config.ckpt_path, config.algorithm.n_components) == (folder, "auto", 2)


def test_a_sweep_that_is_repeated_skips_finished_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = ["-m", *TINY[:3], "trainer.max_epochs=1", "algorithm=fedavg,local", "seed=3", "run_dir=sweep"]
    assert call(tmp_path, monkeypatch, *sweep) == 0, capsys.readouterr()
    jobs = sorted(path for path in (tmp_path / "sweep").iterdir() if path.is_dir())
    assert [path.name.partition(",")[0] for path in jobs] == ["0_algorithm=fedavg", "1_algorithm=local"]
    (jobs[1] / "results.json").unlink()
    before = snapshot(jobs[0])
    capsys.readouterr()
    assert call(tmp_path, monkeypatch, *sweep, "ckpt_path=auto") == 0
    out = capsys.readouterr().out
    assert f"{jobs[0]}: finished after round 1, nothing is left to do\n" in out
    assert f"resumed from round 1: {jobs[1]}" in out
    assert snapshot(jobs[0]) == before
    runs, skipped = find_runs([tmp_path / "sweep"])
    assert (len(runs), skipped) == (2, [])


NAMES = np.array(["[red]north[/]", "[/south]", ":smile: east"])


def write(folder: Path, change: float = 0.0) -> None:
    rng, client = np.random.default_rng(0), np.repeat(np.arange(3), 20)
    x = rng.normal(size=(60, 3)).astype(np.float32)
    x[-1, -1] += change
    np.savez(folder / "mine.npz", x=x, y=np.resize(["[b]", "[/]"], 60), client=client, names=NAMES)


def test_a_run_whose_x_changed_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path)
    arguments = ["dataset=npz", "dataset.path=mine.npz", "algorithm=fedavg", "run_dir=run", "trainer.accelerator=cpu"]
    assert call(tmp_path, monkeypatch, *arguments, "trainer.max_epochs=1") == 0, capsys.readouterr().err
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert results["not_finite"] == {"train": 0, "val": 0, "test": 0, "clients": []}
    assert results["data"]["classes"] == ["[/]", "[b]"]
    assert pd.read_parquet(tmp_path / "run" / "clients.parquet").id.tolist() == NAMES.tolist()
    before = snapshot(tmp_path / "run")
    write(tmp_path, change=1e-6)
    capsys.readouterr()
    assert call(tmp_path, monkeypatch, *arguments, "trainer.max_epochs=2", "ckpt_path=auto") == 2
    error = capsys.readouterr().err
    assert "was trained on another federation (other x or labels, partition, split or seed)" in error
    assert error.count("\n") == 1
    assert snapshot(tmp_path / "run") == before
    write(tmp_path)
    assert call(tmp_path, monkeypatch, *arguments, "trainer.max_epochs=2", "ckpt_path=auto") == 0
