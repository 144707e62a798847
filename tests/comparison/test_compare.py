"""`compare` from data to answer: a table by the command, arrays from Python, kills, mistakes."""

import json
import re
import runpy
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedem_lightning as fl
from fedem_lightning.comparison.command import main
from fedem_lightning.comparison.models import constant_errors
from fedem_lightning.comparison.warnings_of_data import data_warnings

QUICK: dict[str, Any] = {"trials": 1, "seeds": 2, "overrides": ["trainer.max_epochs=10"]}
ROLES = ["{table}", "--label", "units", "--client", "shop"]
WORDS = ["--trials", "1", "--seeds", "2", "trainer.max_epochs=10"]


def shops(path: Path, n_shops: int = 10, rows: int = 40) -> Path:
    """A table of shops of two hidden kinds, whose sales follow the price in opposite ways."""
    rng = np.random.default_rng(0)
    price = rng.uniform(1, 9, n_shops * rows)
    shop = np.repeat(np.arange(n_shops), rows)
    units = 30 + np.where(shop % 2, 4.0, -4.0) * (price - 5) + rng.normal(size=len(price))
    pd.DataFrame({"shop": [f"s{s:02d}" for s in shop], "price": price, "units": units}).to_csv(path, index=False)
    return path


def test_a_table_from_file_to_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table, out = shops(tmp_path / "shops.csv"), tmp_path / "out"
    words = [str(table), "--label", "units", "--client", "shop", "--out", str(out), "--methods", "fedem", *WORDS]
    words += ["--seeds", "3"]  # two are too few to tell
    main(words)
    said = capsys.readouterr().out
    assert re.search(
        r"^Yes: (train a model for each shop alone|give each shop FedEM's mixture of 3 models)\.$", said, re.M
    )
    assert "95 % intervals over 3 seeds and 10 shops" in said
    assert "10 of 10 shops gain over the one model, none loses." in said or "of 10 shops gain over being alone" in said
    page = (out / "comparison.html").read_text()
    assert page.count("<img") == 3
    assert "python -m fedem_lightning dataset=table" in page
    models = fl.load_clients(out / "model.safetensors")
    assert models.names == tuple(f"s{s:02d}" for s in range(10))
    assert fl.load(out / "model").trained_model.client("s01").predict(pd.DataFrame({"price": [5.0]})) is not None
    runs = json.loads((out / "runs.json").read_text())
    main(words)  # the same command has nothing left to do, and the same answer
    again = capsys.readouterr().out
    assert json.loads((out / "runs.json").read_text()) == runs
    assert [line for line in again.splitlines() if line in said.splitlines()][-6:-1] == said.splitlines()[-7:-2]


def arrays(seed: int) -> fl.FederatedDataModule:
    """Four clients of classes that are alike."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(160, 3)).astype(np.float32)
    return fl.FederatedDataModule.from_arrays(x, (x[:, 0] > 0).astype(int), np.arange(160) % 4, seed=seed)


def test_from_python_with_an_own_network_and_a_tuned_method(tmp_path: Path) -> None:
    network = fl.Linear((3,), 2)
    found = fl.compare(arrays, backbone=network, methods=["fedavg_tuned"], out=tmp_path / "out", **QUICK)
    assert set(found.errors) == {"local", "fedavg", "fedavg_tuned", "constant"}
    assert found.answer.verdict in ("no", "cannot tell")
    assert str(found).splitlines() == found.lines
    assert len(found.table) == 4


def test_a_method_that_is_not_defined_for_the_data_is_left_out(tmp_path: Path) -> None:
    said: list[str] = []
    found = fl.compare(arrays(0), methods=["mocha", "fedper"], out=tmp_path / "out", say=said.append, **QUICK)
    assert any(line.startswith("MOCHA is left out") for line in said)
    assert "fedper" in found.errors


def test_killed_runs_end_with_the_same_answer(tmp_path: Path) -> None:
    table = shops(tmp_path / "shops.csv", 4, 30)
    words = [str(table), "--label", "units", "--client", "shop", "--methods", "fedem", *WORDS]
    main([*words, "--out", str(tmp_path / "whole")])
    command = [sys.executable, "-m", "fedem_lightning.compare", *words, "--out", str(tmp_path / "killed")]
    done = tmp_path / "killed" / "runs.json"
    for n in (1, 4, 8):  # it is killed in the run after so many
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        while process.poll() is None and not (done.exists() and len(json.loads(done.read_text())) >= n):
            time.sleep(0.02)
        assert process.poll() is None
        process.kill()
        process.wait()
    main([*words, "--out", str(tmp_path / "killed")])
    tables = [pd.read_csv(tmp_path / name / "comparison.csv") for name in ("whole", "killed")]
    pd.testing.assert_frame_equal(tables[0], tables[1])


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["no_such.csv"], "no_such.csv: no such file or folder"),
        (["{table}"], "--label: expected the name of a column of shops.csv"),
        (["{table}", "--label", "units"], "--client: expected the name of a column of shops.csv"),
        (["{table}", "--label", "unit", "--client", "shop"], "no column 'unit'; did you mean units?"),
        ([*ROLES, "--methods", "dito"], "no method dito; did you mean ditto?"),
        ([*ROLES, "--seeds", "1"], "seeds: expected at least 2, got 1"),
        ([*ROLES, "bacbone=mlp"], "bacbone: no such key; did you mean"),
        (["--frobnicate"], "unknown option --frobnicate"),
        ([], "DATA: expected a file"),
    ],
)
def test_mistakes_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], line: str) -> None:
    table = shops(tmp_path / "shops.csv", 4, 20)
    with pytest.raises(SystemExit) as stop:
        main([word.format(table=table) for word in words] + ["--out", str(tmp_path / "out")])
    assert stop.value.code == 2
    said = capsys.readouterr().err.strip()
    assert line in said
    assert "\n" not in said


def test_constants_and_doubts() -> None:
    x = np.zeros((60, 1), dtype=np.float32)
    y = np.array([1.0, 3.0, 8.0] * 20, dtype=np.float32)
    client, split = np.repeat([0, 1], 30), np.tile([0, 0, 2], 20)
    data = fl.FederatedDataModule.from_arrays(x, y, client, split=split, task="regression")
    errors = constant_errors(data.federation)
    assert errors is not None
    assert errors.tolist() == [36.0, 36.0]  # mean 2, tested on 8
    assert not data_warnings(data.federation)
    few = fl.FederatedDataModule.from_arrays(x[:20], np.array([0] * 18 + [1] * 2), np.arange(20) % 2)
    lines = "\n".join(data_warnings(few.federation))
    assert "2 of 2 clients have fewer than 20 training rows" in lines
    assert "have one class" in lines


def test_a_column_that_gives_the_label_away_is_named(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"who": np.arange(400) % 4, "a": rng.normal(size=400), "y": rng.integers(0, 2, 400)})
    frame.assign(late=frame["y"] + rng.normal(scale=0.01, size=400)).to_csv(tmp_path / "t.csv", index=False)
    data = fl.TableDataModule(tmp_path / "t.csv", "y", "who")
    assert any("column late alone predicts the label" in line for line in data_warnings(data.federation))


def test_the_shipped_table_is_what_its_script_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path(__file__).parents[2] / "examples"
    monkeypatch.setattr(sys, "argv", ["shops.py", str(tmp_path / "shops.csv")])
    runpy.run_path(str(folder / "shops.py"), run_name="__main__")
    assert (tmp_path / "shops.csv").read_text() == (folder / "shops.csv").read_text()
    assert len(pd.read_csv(tmp_path / "new_shop.csv")) == 20
