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
    "personalize fedem broken.npz --out o.safetensors": "DATA: .*broken.npz is no .npz file",
    "personalize fedem unseen.npz --out o.npz": "--out: expected a name that ends in .safetensors",
    "personalize fedem unseen.npz --out there.safetensors": "--out: .* is already there",
    "personalize fedem seen.npz --out o.safetensors": "took part in training",
    "personalize fedem unseen.npz --out o.safetensors --steps 0": "--steps: expected a number greater than or equal",
    "personalize fedavg_plus unseen.npz --out o.safetensors --steps 3": "--steps: FedAvg has no such steps",
    "personalize fedem unseen.npz --out o.safetensors --client a": "--client: DATA names the clients",
    "personalize fedem unseen.npz --few-shot 1 --out o.safetensors": "a name that ends in .csv",
    "personalize fedem unseen.npz --few-shot 1,x --out o.csv": "--few-shot: expected numbers",
    "personalize fedem untested.npz --few-shot 1 --out o.csv": "no row is a test row",
    "personalize fedem unlabelled.npz --out o.safetensors": "no labels",
    "predict fedem seen.npz --out p.txt": "--out: expected a name that ends in .parquet or .csv",
    "predict fedem seen.npz --out fedem/clients.parquet --force": "is what the command reads",
    "predict fedem seen.csv --out seen.csv --force": "--out: seen.csv is what the command reads",
    "predict fedem unseen.npz --out p.csv": "3 of 3 clients have no model: .*personalise them first",
    "predict fedavg_plus seen.npz --out p.csv": "tune their models on their own samples",
    "predict there.safetensors seen.npz --out p.csv": "no intact .safetensors file",
    "evaluate fedem seen.npz --out held": "--out: held already holds clients.csv",
    "evaluate fedem seen.npz --out text.txt": "--out: text.txt is no folder",
    "evaluate fedem plain.npz --split val": "--split: val, but DATA has no split",
    "evaluate fedem untested.npz": "--split: DATA has no test rows",
    "export fedem --client clinic --format torch": "is none of the 9 clients with a model; the closest: clinic",
    "export fedem --all --format torch --out held": "--out: held exists; choose another folder, or add --force",
    "export fedem --all --format onnx --out a.pt2": "--out: a.pt2, but --format onnx writes .onnx files",
    "export fedem --all --format onnx --out a.onnx": "--out: with --all there is a .onnx file for each client",
    "export fedem --all --format safetensors --out there.safetensors": "there.safetensors exists; choose another",
    "export fedem --all --format torch --out fedem --force": "what the command reads",
    "export fedavg_plus --all --format torch": "they tune their models on their own samples; personalize them",
}


@pytest.fixture(scope="module")
def folder(place: Path, run_of: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs, rows, and files of the user's."""
    folder = tmp_path_factory.mktemp("mistakes")
    for name in ("fedem", run_of("fedavg_plus").name, "seen.npz", "unseen.npz", "seen.csv"):
        (folder / name).symlink_to(place / name)
    seen, unseen = (read_npz(place / f"{name}.npz", ARRAYS) for name in ("seen", "unseen"))
    made: dict[str, Any] = {
        "plain": {k: v for k, v in seen.items() if k != "split"},
        "unlabelled": {k: v for k, v in unseen.items() if k != "y"},
        "untested": {**seen, "split": seen["split"] * 0},
    }
    for name, content in made.items():
        np.savez(folder / f"{name}.npz", **content)
    (folder / "broken.npz").write_bytes((place / "unseen.npz").read_bytes()[:200])
    (folder / "held").mkdir()
    for name in ("text.txt", "there.safetensors", "held/clients.csv"):
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
