"""A mistake at the commands on trained models is one line with exit code 2, and leaves every file as it was."""

import re
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedem_lightning.data.datamodule import ARRAYS
from fedem_lightning.data.formats import read_npz
from helpers.runs import snapshot
from helpers.serving import refused

MISTAKES = {
    "personalize fedavg_plus unseen.npz --out o.safetensors --steps 3": "--steps: FedAvg has no such steps",
    "personalize fedem unseen.npz --few-shot 1 --out o.safetensors": "a name that ends in .csv",
    "personalize fedem unseen.npz --few-shot 1,x --out o.csv": "--few-shot: expected numbers",
    "personalize fedem untested.npz --few-shot 1 --out o.csv": "no row is a test row",
    "predict fedavg_plus seen.npz --out p.csv": "tune their models on their own samples",
    "evaluate fedem plain.npz --split val": "--split: val, but DATA has no split",
    "evaluate fedem untested.npz": "--split: DATA has no test rows",
    "export fedem --client clinic --format torch": "is none of the 9 clients with a model, e.g. clinic",
    "export fedem --all --format onnx --out a.onnx": "--out: with --all there is a .onnx file for each client",
    "export fedem --all --format safetensors --out there.safetensors": "there.safetensors exists; choose another",
    "export fedavg_plus --all --format torch": "they tune their models on their own samples; personalize them",
}


@pytest.fixture(scope="module")
def folder(place: Path, run_of: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs, rows, and files of the user's."""
    folder = tmp_path_factory.mktemp("mistakes")
    for name in ("fedem", run_of("fedavg_plus").name, "seen.npz", "unseen.npz", "seen.csv"):
        (folder / name).symlink_to(place / name)
    seen = read_npz(place / "seen.npz", ARRAYS)
    made: dict[str, Any] = {
        "plain": {k: v for k, v in seen.items() if k != "split"},
        "untested": {**seen, "split": seen["split"] * 0},
    }
    for name, content in made.items():
        np.savez(folder / f"{name}.npz", **content)
    (folder / "held").mkdir()
    for name in ("there.safetensors", "held/clients.csv"):
        (folder / name).write_text("mine")
    return folder


@pytest.mark.parametrize("typed", MISTAKES)
def test_a_mistake_is_one_line_and_leaves_no_file(
    typed: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    before = snapshot(folder)
    command, *arguments = typed.split()
    line = refused(import_module(f"fedem_lightning.{command}").main, capsys, *arguments)
    assert re.search(MISTAKES[typed], line)
    assert snapshot(folder) == before
