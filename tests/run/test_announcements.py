"""What a run says of its training: how clients train, that it stopped early, that it is not finished, another rate."""

import json
import re
from pathlib import Path

import pytest
import torch

from fedem_lightning import load
from fedem_lightning.module.checkpoints import read_checkpoint
from helpers.commands import call
from helpers.runs import figures

SMALL = ("algorithm=fedavg", "dataset.n_clients=8", "dataset.dimension=6", "dataset.test_size=30", "run_dir=run")
OWN = ("dataset=digits", "backbone=mlp", "backbone.hidden=[8]", "dataset.n_clients=4", "run_dir=run")
"""Data for which nobody has chosen a rate."""


def _says(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    assert call(folder, monkeypatch, *words) == 0
    return capsys.readouterr().out.splitlines()


def test_a_run_on_other_data_stops_and_keeps_the_best_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = _says(
        tmp_path,
        monkeypatch,
        capsys,
        *OWN,
        "algorithm=fedavg",
        "trainer.max_epochs=60",
        "trainer.check_val_every_n_epoch=5",
    )
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert any(
        re.match(r"ClientSGD\(lr=0.1, momentum 0\), batches of \d+, 20 steps of a client", line) for line in said
    )
    best = results["best_round"]["round"]
    if results["rounds"] < 60:
        assert any(f"the model of round {best} is kept" in line for line in said)
    assert results["val"]["accuracy"]["weighted"] == pytest.approx(results["best_round"]["val"], abs=1e-6)
    assert results["test"]["accuracy"]["weighted"] == pytest.approx(results["best_round"]["test"], abs=1e-6)
    saved = read_checkpoint(tmp_path / "run" / "checkpoints" / "best.ckpt")["state_dict"]
    for name, tensor in load(tmp_path / "run").state_dict().items():
        assert torch.equal(tensor, saved[name])


def test_an_unfinished_run_says_so_in_its_last_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = _says(tmp_path, monkeypatch, capsys, *SMALL, "algorithm.client_optimizer.lr=0.03", "trainer.max_epochs=4")
    assert any(line.startswith("not finished: the validation loss fell by ") for line in said[-4:])
    found = json.loads((tmp_path / "run" / "results.json").read_text())["convergence"]
    assert found["finished"] is False
    assert found["rounds"] == [3, 4]


def test_passes_that_somebody_sets_take_the_place_of_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("trainer.max_epochs=1", "algorithm.local_epochs=2", "algorithm.batch_size=50")
    said = _says(tmp_path, monkeypatch, capsys, *OWN, *words)
    (line,) = (line for line in said if line.startswith("ClientSGD("))
    assert "batches of 50, 2 passes over its samples a round: " in line
    assert "steps of the smallest client" in line


def test_a_resumed_run_keeps_the_same_best_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (*OWN, "algorithm=local", "trainer.check_val_every_n_epoch=1")
    _says(tmp_path, monkeypatch, capsys, *words, "trainer.max_epochs=8")
    whole = figures(tmp_path / "run")
    (tmp_path / "run").rename(tmp_path / "whole")
    _says(tmp_path, monkeypatch, capsys, *words, "trainer.max_epochs=3")
    _says(tmp_path, monkeypatch, capsys, *words, "trainer.max_epochs=8", "ckpt_path=auto")
    assert figures(tmp_path / "run") == whole
