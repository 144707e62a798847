"""The benchmarks run: their figures are not looked at here."""

import importlib
import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import ttest_1samp

from helpers.paths import ROOT

BENCHMARKS = ROOT / "benchmarks"
pytestmark = pytest.mark.skipif(not BENCHMARKS.is_dir(), reason="benchmarks/ is only in a checkout")


@pytest.mark.slow
def test_all_benchmarks_run(tmp_path: Path) -> None:
    command = [sys.executable, str(BENCHMARKS), "--quick", "--out", str(tmp_path)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=1500, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stderr
    joined = (tmp_path / "README.md").read_text()
    for part in ("rounds", "throughput", "roofs", "growth", "processes", "loading", "precision", "soak"):
        assert (tmp_path / f"{part}.json").is_file() or list(tmp_path.glob(f"{part}*.json")), joined


@pytest.mark.slow
def test_the_table_of_attacks(tmp_path: Path) -> None:
    """A second call runs nothing again; one with other sizes is refused."""
    command = [sys.executable, str(BENCHMARKS / "attacks.py"), "--quick", "--json", str(tmp_path / "a.json")]
    for n_runs in (20, 0):
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        assert done.stderr.count("/20 ") == n_runs
        table = [line for line in done.stdout.splitlines() if line.startswith("| ")]
        assert len(table) == 1 + 2 * 2
        assert all(re.fullmatch(r"\d\d\.\d \([+-]\d+\.\d\)", cell) for cell in table[2].strip("| ").split(" | ")[2:])
    other = [word for word in command if word != "--quick"]
    done = subprocess.run([*other, "--clients", "9"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "has other sizes" in done.stderr


METRICS = """round,up_megabytes,down_megabytes,test/accuracy,test/accuracy_bottom_decile
9,2.7,2.7,,
10,3,3,{},0.2
"""


def tables(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str | Path
) -> tuple[int, list[str], str]:
    """The exit code of `benchmarks/tables.py` run in this process, the lines that it prints, and its complaint."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    monkeypatch.setattr(sys, "argv", ["tables.py", *map(str, arguments)])
    capsys.readouterr()
    code = 0
    try:
        runpy.run_path(str(BENCHMARKS / "tables.py"), run_name="__main__")
    except SystemExit as stop:
        code = int(stop.code or 0)
    out, err = capsys.readouterr()
    return code, out.splitlines(), err.strip()


def test_the_table_of_a_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two methods, two seeds, three clients: means, deviations, who is worse off, and the difference by client."""
    accuracies = {"local": [[0.5, 0.6, 0.7], [0.5, 0.6, 0.9]], "fedem": [[0.6, 0.5, 0.8], [0.7, 0.5, 1.0]]}
    for method, of_seeds in accuracies.items():
        for seed, found in enumerate(of_seeds):
            run = tmp_path / f"{method}{seed}"
            (run / ".hydra").mkdir(parents=True)
            (run / ".hydra" / "overrides.yaml").write_text(f"- algorithm={method}\n- seed={seed}\n")
            table = {"id": list("abcd"), "population": 3 * ["seen"] + ["unseen"], "n_train": [10, 10, 20, 5]}
            table["test_accuracy"] = [*found, 0.3]
            pd.DataFrame(table).to_parquet(run / "clients.parquet")
            (run / "metrics.csv").write_text(METRICS.format(0.4 + 0.1 * seed))
            score = {"weighted": float(np.average(found, weights=[1, 1, 2])), "bottom_decile": min(found)}
            facts = {"algorithm": method, "seed": seed, "n_clients": 3, "test": {"accuracy": score}}
            facts["unseen"] = {"test": {"accuracy": {"weighted": 0.3, "bottom_decile": 0.1}}}
            facts |= {"communication": {"up_bytes": 6e6, "down_bytes": 3e6}, "seconds": {"total": 30}}
            (run / "results.json").write_text(json.dumps(facts))
    command = [sys.executable, str(BENCHMARKS / "tables.py"), str(tmp_path), "--against", "fedem", "local"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    first, second, size, against = done.stdout.splitlines()
    assert first == "| FedEM | `fedem` | 73.8 ± 8.8 | 50.0 ± 0.0 | 33 % |  | 3.00 |"
    assert second == "| Local | `local` | 67.5 ± 7.1 | 50.0 ± 0.0 |  |  | 3.00 |"
    assert size == "4 runs, 2 minutes"
    for options, line in (
        (["--by", "noise"], "| FedEM |  | 73.8 ± 8.8 | 50.0 ± 0.0 | 2 |"),
        (["--round", "10"], "| FedEM | `fedem` | 45.0 ± 7.1 | 20.0 ± 0.0 |  |  | 2.00 |"),
        (["--unseen"], "| FedEM | `fedem` | 30.0 ± 0.0 | 10.0 ± 0.0 | 0 % |  | 3.00 |"),
    ):
        code, lines, _ = tables(monkeypatch, capsys, tmp_path, *options)
        assert (code, lines[0]) == (0, line)
    code, _, complaint = tables(monkeypatch, capsys, tmp_path, "--round", "9")
    assert (code, complaint.endswith("round 9 was not evaluated, but 10")) == (2, True)
    code, lines, complaint = tables(monkeypatch, capsys, tmp_path, "--against", "fedem", "fedex")
    assert (code, lines) == (2, [])
    assert complaint.endswith("--against fedex: no runs of common seeds; the methods here are fedem, local")
    code, lines, _ = tables(monkeypatch, capsys, tmp_path / "fedem1")
    assert (code, lines[0]) == (0, "| FedEM | `fedem` | 80.0 | 50.0 |  |  | 3.00 |")
    assert re.fullmatch(r"fedem - local: 6\.25 \(-?\d+\.\d\d to \d+\.\d\d\), p 0\.\d+", against)


def test_a_client_is_drawn_once_for_all_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same clients with the same scores in a second seed are no news; other clients halve the variance."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    difference = importlib.import_module("tables").difference
    rng, n = np.random.default_rng(0), 200

    def table(accuracy: np.ndarray) -> pd.DataFrame:
        return pd.DataFrame({"test_accuracy": accuracy, "n_train": 10}, index=[f"client {i}" for i in range(n)])

    gains = rng.normal(0.01, 0.1, size=(2, n))  # [seeds, clients]
    one = {("a", 0): table(gains[0]), ("b", 0): table(np.zeros(n))}
    twice = one | {("a", 1): table(gains[0]), ("b", 1): table(np.zeros(n))}
    others = one | {("a", 1): table(gains[1]), ("b", 1): table(np.zeros(n))}
    mean, low, high, p = difference(one, "a", "b")
    assert mean == pytest.approx(100 * gains[0].mean())
    assert high - low == pytest.approx(2 * 1.96 * 100 * gains[0].std() / n**0.5, rel=0.1)
    assert p == pytest.approx(ttest_1samp(gains[0], 0).pvalue, abs=0.01)
    assert difference(twice, "a", "b") == pytest.approx((mean, low, high, p))
    assert difference(one, "a", "a") == (0, 0, 0, 1)
    assert np.diff(difference(others, "a", "b")[1:3])[0] == pytest.approx((high - low) / 2**0.5, rel=0.1)


def test_the_curves_of_sweeps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last round's score is that of the results, the later folder counts, the wide control has its own name."""
    for folder, algorithm, accuracy in (
        ("a", "fedem", 0.1),
        ("a", "local", 0.5),
        ("b", "fedem", 0.6),
        ("a_wide", "fedavg", 0.7),
    ):
        run = tmp_path / folder / algorithm
        run.mkdir(parents=True)
        sent = 0 if algorithm == "local" else 30
        rows = [f"{r},{sent * r},{sent * r},{score}" for r, score in ((1, ""), (10, accuracy / 2), (20, ""))]
        (run / "metrics.csv").write_text("\n".join(["round,up_megabytes,down_megabytes,test/accuracy", *rows, ""]))
        score = {"test": {"accuracy": {"weighted": accuracy}}, "algorithm": algorithm, "seed": 0, "n_clients": 3}
        (run / "results.json").write_text(json.dumps(score))
    monkeypatch.syspath_prepend(BENCHMARKS)
    folders = [tmp_path / name for name in ("a", "b", "a_wide")]
    table = importlib.import_module("curves").points(folders).set_index(["method", "round"])
    assert table.loc["fedem"].accuracy.tolist() == pytest.approx([30, 60])
    assert table.loc["fedem"].megabytes.tolist() == pytest.approx([200, 400])
    assert table.loc["fedavg, wide"].accuracy.tolist() == pytest.approx([35, 70])
    command = [sys.executable, str(BENCHMARKS / "curves.py"), str(tmp_path / "c.png")]
    subprocess.run([*command, "A=" + ",".join(map(str, folders))], timeout=120, check=True)
    assert (tmp_path / "c.png").read_bytes()[1:4] == b"PNG"
    done = subprocess.run([*command, f"A={tmp_path / 'none'}"], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr.strip().endswith("no results.json in it")) == (2, True)


def test_writers_are_repeated_up_to_the_number_of_clients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    common = importlib.import_module("common")
    client = np.repeat(np.arange(3), 20)
    x = np.broadcast_to(client.astype(np.uint8)[:, None, None], (60, 4, 4))  # a writer's images are its number
    np.savez(tmp_path / "few.npz", x=x, y=client, client=client)
    federation = common.femnist(tmp_path / "few.npz", 7, repeat=True).federation
    assert federation.n_clients == 7
    for t in range(7):
        assert set(federation.block(torch.tensor([t]), "train").y().tolist()) == {t % 3}
    assert common.femnist(tmp_path / "few.npz", 7).n_clients == 3
