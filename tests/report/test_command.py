"""`python -m fedem_lightning.report`: what it prints and writes, mistakes, folders that cannot be read, odd names."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedem_lightning.report.command import print_sweep
from fedem_lightning.report.gains_by_client import compare_clients, gains_and_losses
from helpers.commands import call
from helpers.report_runs import make_sampled_run, report, tables_in
from helpers.runs import make_run


def two_methods(folder: Path) -> Path:
    for seed in (0, 1):
        make_run(
            folder / f"em{seed}", 0.7 + seed / 10, "fedem", seed, pi=[[1, 0], [0.5, 0.5]], n_clients=300, rounds=200
        )
        make_run(folder / f"avg{seed}", 0.6, "fedavg", seed, n_clients=300, rounds=200)
    return folder


def test_the_default_is_six_columns_a_page_a_table_and_a_figure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    two_methods(tmp_path / "runs")
    out, err, code = report(capsys, tmp_path / "runs", "--out", tmp_path / "out")
    assert (code, err) == (0, "")
    row = next(line.split() for line in out.splitlines() if line.split()[:1] == ["FedEM"])
    assert " ".join(row) == "FedEM 75.0 ± 7.07 74.7 65.0 ± 7.07 0.0133 77.0 ± 7.07"
    assert "more columns in report.csv (--out DIR): seeds, rounds, pooled, " in out
    expected = {"report.html", "report.csv", "curves.pdf", "curves.png"}
    assert {path.name for path in (tmp_path / "out").iterdir()} == expected
    assert (tmp_path / "out" / "curves.pdf").read_bytes().startswith(b"%PDF-")
    page = (tmp_path / "out" / "report.html").read_text()
    assert re.findall(r'src="([^"]{22})', page) == ["data:image/png;base64,"]
    assert "<script" not in page
    assert "http" not in page.replace("http-equiv", "")
    assert "no row is bold" in page.split('<aside class="warnings">')[1].split("</aside>")[0]
    table = pd.read_csv(tmp_path / "out" / "report.csv").set_index("row")
    assert table.loc["fedem", "weighted"] == pytest.approx(75)
    assert table.loc["fedem", "weighted_std"] == pytest.approx(10 / 2**0.5)
    assert [table.loc["fedem", key] for key in ("seeds", "paper_weighted")] == pytest.approx([2, 74.7])
    assert report(capsys, tmp_path / "runs", "--out", tmp_path / "out", "--force")[2] == 0


def test_a_method_has_its_title_everywhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for seed in (0, 1):
        make_run(tmp_path / "runs" / f"m{seed}", 0.7, "mine", seed, config={"algorithm.title": "My Method"})
    out, err, code = report(capsys, tmp_path / "runs", "--out", tmp_path / "out")
    assert (code, err) == (0, "")
    assert "My Method 70.0 ± 0.00 60.0 ± 0.00 2 72.0 ± 0.00" in [" ".join(line.split()) for line in out.splitlines()]
    assert pd.read_csv(tmp_path / "out" / "report.csv").title.tolist() == ["My Method"]


def test_two_rows_are_compared_client_by_client(tmp_path: Path) -> None:
    for seed in (0, 1):
        for name, n_right in (("fedem", 60), ("fedavg", 50 - seed)):
            samples = [np.arange(60) < n_right] * 8
            make_sampled_run(tmp_path / f"{name}{seed}", samples, name, seed)
    (table,) = tables_in(tmp_path)
    rows = {group.label: group for group in table.setting.groups}
    clients = compare_clients(rows["fedem"], rows["fedavg"])
    assert len(clients) == 16
    np.testing.assert_allclose(clients["gain"], np.repeat([100 / 6, 110 / 6], 8))
    np.testing.assert_allclose(clients["p"], np.repeat([2 * 0.5**10, 2 * 0.5**11], 8))  # ten samples, and eleven
    assert gains_and_losses(clients).to_dict() == {"better": 1, "worse": 0, "equal": 0, "gains": 1, "loses": 0}


def test_folders_that_cannot_be_read_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(tmp_path / "good", 0.7, "local")
    (make_run(tmp_path / "unfinished") / "results.json").unlink()
    (make_run(tmp_path / "torn") / "results.json").write_text('{"algorithm": "fed')
    (make_run(tmp_path / "listed") / "results.json").write_text("[1]")
    (make_run(tmp_path / "copied") / ".hydra" / "config.yaml").unlink()  # as by cp *
    (make_run(tmp_path / "cut", 0.7, "fedem") / "clients.parquet").write_bytes(b"PAR1")
    odd: dict[str, Any] = {"text for a score": {"test": {"accuracy": {"weighted": "a"}}}}
    odd["harmless"] = {"algorithm": "fine", "environment": [1], "data": None, "reference": 3, "val": [2]}
    for name, part in odd.items():
        path = make_run(tmp_path / name) / "results.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | part))
    (tmp_path / "empty").mkdir()
    out, err, code = report(capsys, tmp_path, tmp_path / "empty", "--out", tmp_path / "report")
    assert (code, err) == (0, "")
    left_out = out.partition("left out:")[2]
    reasons = {
        "unfinished": "unfinished: no results.json",
        "torn": "broken: results.json cannot be read (JSONDecodeError)",
        "listed": "broken: results.json has no keys",
        "copied": "broken: .hydra/config.yaml is unreadable (FileNotFoundError)",
        "text for a score": "broken: its files lack or hold something unexpected (TypeError",
        "empty": "no run in it or below",
    }
    for name, reason in reasons.items():
        assert f"{tmp_path / name}: {reason}" in left_out, name
        assert f"{name}: {reason}"[:40] in (tmp_path / "report" / "report.html").read_text()
    assert left_out.count(str(tmp_path)) == len(reasons) + 1  # and where the report is
    assert set(pd.read_csv(tmp_path / "report" / "report.csv").row) == {"local", "fedem", "fine"}


NAMES = {
    "html": "<script>alert(1)</script>",
    "markup": "[bold red]a[/] *b* `c` | d\n# e\r\x1b[31mred\x07\u202eright",
    "long": "x" * 300,
    "formula": "=HYPERLINK(1)",
}


def test_names_are_text_everywhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for i, name in enumerate(NAMES.values()):
        make_run(tmp_path / str(i), 0.7, name, config={"algorithm.note": name})
        make_run(tmp_path / f"{i}b", 0.6, name, config={"algorithm.note": "b", "dataset.kind": name}, dataset=name)
    out, err, code = report(capsys, tmp_path, "--out", tmp_path / "report")
    assert (code, err) == (0, "")
    texts = {name: (tmp_path / "report" / name).read_text() for name in ("report.html", "report.csv")}
    for text in (out, *texts.values()):
        assert not any(ord(c) < 32 and c != "\n" for c in text)
        assert "\u202e" not in text
    assert "[bold red]a[/] *b*" in out
    assert "x" * 300 in texts["report.csv"]
    assert "<script" not in texts["report.html"]
    assert "&lt;script&gt;alert(1)" in texts["report.html"]
    cells = pd.read_csv(tmp_path / "report" / "report.csv", dtype=str, keep_default_na=False)
    texts_of_cells = cells[["dataset", "setting", "algorithm", "row"]]
    assert not texts_of_cells.apply(lambda column: column.str.match(r"[=+\-@]")).any().any()


def test_a_sweep_ends_with_its_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    print_sweep(tmp_path / "without a job")
    assert capsys.readouterr().out == ""
    print_sweep(two_methods(tmp_path / "my sweep"))
    out = capsys.readouterr().out
    assert "FedEM is best" in out
    command = out.splitlines()[-1].partition("python -m fedem_lightning.report ")[2]
    assert shlex.split(command) == [str(tmp_path / "my sweep"), "--out", str(tmp_path / "my sweep" / "report")]


def test_a_search_ends_with_what_validation_chose(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweep = two_methods(tmp_path / "tune")
    found = "name: optuna\nbest_params: {algorithm.client_optimizer.lr: 0.15678}\nbest_value: 0.75\n"
    (sweep / "optimization_results.yaml").write_text(found)
    print_sweep(sweep)
    said = capsys.readouterr().out
    assert "best on validation (0.75): algorithm.client_optimizer.lr=0.157" in said
    assert "is best" not in said


def test_real_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = ["dataset.n_clients=6", "dataset.dimension=5", "dataset.test_size=20", "dataset.unseen_fraction=0.34"]
    options += ["trainer.max_epochs=3", "trainer.check_val_every_n_epoch=1", "run_dir=sweep", "network=reliable"]
    with monkeypatch.context() as patched:
        words = ["-m", "algorithm=fedem,local", "seed=0,1", "initialization=random", *options]
        assert call(tmp_path, patched, *words) == 0
    command = [sys.executable, "-m", "fedem_lightning.report", "sweep", "--out", "report"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200)
    assert (done.returncode, done.stderr) == (0, "")
    cells = pd.read_csv(tmp_path / "report" / "report.csv").set_index("row")
    found = [json.loads(p.read_text()) for p in tmp_path.glob("sweep/*/results.json")]
    for algorithm in ("fedem", "local"):
        tests = [100 * r["test"]["accuracy"]["weighted"] for r in found if r["algorithm"] == algorithm]
        assert cells.loc[algorithm, "weighted"] == pytest.approx(np.mean(tests))
        assert cells.loc[algorithm, "weighted_std"] == pytest.approx(np.std(tests, ddof=1))
        unseen = [100 * r["unseen"]["test"]["accuracy"]["weighted"] for r in found if r["algorithm"] == algorithm]
        assert cells.loc[algorithm, "unseen"] == pytest.approx(np.mean(unseen))
    # 3 models of 5 weights and a bias in float32, both ways, 3 rounds
    assert cells["megabytes"].to_dict() == pytest.approx({"fedem": 3 * 3 * 24 * 2 / 1e6, "local": 0})
    assert {path.stem for path in (tmp_path / "report").glob("*.png")} == {"curves"}
