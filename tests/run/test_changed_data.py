"""Data that change between a stop and a resume, and scores that are not finite, from the command line."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fedem_lightning.data.__main__ import main as data_main
from helpers.commands import call
from helpers.runs import snapshot

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


def test_names_are_no_markup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "[red]x").mkdir()
    write(tmp_path / "[red]x")
    data_main(["describe", "npz", "dataset.path='[red]x/mine.npz'"])
    shown = capsys.readouterr().out
    assert "[red]x/mine.npz" in shown
    assert "['[/]', '[b]']" in shown


@pytest.mark.parametrize("folder", ["null", "[a]"])
def test_a_data_dir_that_is_no_folder(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        data_main(["download", "mnist", f"data_dir={folder}"])
    assert stopped.value.code == 2
    assert capsys.readouterr().err.startswith("error: data_dir: expected ")
