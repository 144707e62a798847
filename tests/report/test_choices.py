"""`--compare`, `--recommend`, `--watch`, the columns about baselines, and the terminal's width."""

import functools
import io
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from rich.console import Console
from scipy import stats

from fedem_lightning.evaluation.mean_tests import mean_tests
from fedem_lightning.report import Papers, command, find_runs
from fedem_lightning.report.choices import recommendation
from fedem_lightning.report.collect import read_run
from fedem_lightning.report.command import assemble
from fedem_lightning.report.report_files import Report
from fedem_lightning.report.terminal import print_report, watch
from helpers.report_runs import make_sampled_run, report
from helpers.runs import make_run

random = np.random.default_rng(0)
BASE = [random.random(100) < p for p in np.linspace(0.4, 0.8, 30)]


def shifted(n: int) -> list[np.ndarray]:
    """The samples of BASE, of which n more are predicted well by every second client, and n fewer by the third one."""
    moved = [x.copy() for x in BASE]
    for t, x in enumerate(moved):
        if t % 2 == 0 and n:
            x[np.flatnonzero(~x)[:n]] = True
        if t == 3 and n:
            x[np.flatnonzero(x)[:n]] = False
    return moved


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "report_figures", lambda *_: ({}, []))  # they have tests of their own


@pytest.mark.usefixtures("drawn")
def test_two_rows_are_compared_client_by_client(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for seed in (0, 1):
        make_sampled_run(tmp_path / f"a{seed}", shifted(12), "fedem", seed)
        make_sampled_run(tmp_path / f"b{seed}", shifted(0), "local", seed)
    out, err, code = report(capsys, tmp_path, "--compare", "fedem", "local", "--out", tmp_path / "out")
    assert (code, err) == (0, "")
    words = " ".join(out.split())
    gain = np.array([100 * (x.mean() - y.mean()) for x, y in zip(shifted(12), shifted(0), strict=True)])
    gain = np.round(gain, 6)
    assert f"mean gain {gain.mean():+.3g}, 95 % interval" in words
    p = mean_tests(gain, np.zeros(30, dtype=int), 1).p[0]
    assert f"p = {p:.2g} (30 clients, means over 2 seeds); interval and p are about other clients" in words
    assert "t-test over 2 seeds: p = 0.5" in words  # both seeds have the same gain
    assert "clients: 50.0% better, 3.3% worse, 46.7% equal" in words
    assert "beyond chance: 50.0% gain, 3.3% lose; by chance alone at most 2.5% each" in words
    losers = words.partition("lose most with fedem:")[2]
    lost = stats.binomtest(0, 12).pvalue
    assert f"3 0 100 {100 * shifted(12)[3].mean():.4g} {100 * BASE[3].mean():.4g} {lost:.2g}" in losers
    rows = pd.read_csv(tmp_path / "out" / "compare.csv")
    assert list(rows) == ["setting", "row_a", "row_b", *["seed", "id", "n_test", "a", "b", "difference", "gain", "p"]]
    np.testing.assert_allclose(rows.gain, np.tile(gain, 2), atol=1e-9)
    wide = pd.read_csv(tmp_path / "out" / "report_wide.csv").set_index("row")
    assert wide.worse_than_local["fedem"] == pytest.approx(100 / 30)
    assert wide.loses_to_local["fedem"] == pytest.approx(100 / 30)
    assert math.isnan(wide.worse_than_local["local"])
    assert wide.weighted_std["fedem"] == pytest.approx(0)
    assert "loses" not in (tmp_path / "out" / "report.md").read_text()
    tex = (tmp_path / "out" / "report.tex").read_text()
    assert tex.count(r"\toprule") == tex.count(r"\bottomrule") == tex.count(r"\end{table*}") == 1
    headers = tex.partition(r"\toprule")[2].partition(r"\midrule")[0]
    assert r"local, \%" in headers
    assert max(len(word.strip()) for line in headers.split(r"\\") for word in line.split("&")) <= 12  # stacked
    assert not {"rounds", "seeds"} & set(headers.split())
    assert r"\textbf{" not in tex
    assert (
        "- no row is bold: that takes a test over 5 seeds that all rows share; these share 2"
        in (tmp_path / "out" / "report.md").read_text()
    )


def test_a_name_that_no_row_has_gets_the_nearest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(tmp_path / "a", algorithm="fedem", config={"algorithm.n_components": 2})
    make_run(tmp_path / "b", algorithm="fedem", config={"algorithm.n_components": 3})
    make_run(tmp_path / "c", algorithm="local")
    wrong = {
        "no row 'fedemm (n_components=2)'; the nearest is 'fedem (n_components=2)'": (
            "fedemm (n_components=2)",
            "local",
        ),
        "'fedem' means 2 rows of synthetic; expected one of 'fedem (n_components=2)', ": ("local", "fedem"),
    }
    for message, names in wrong.items():
        _, err, code = report(capsys, tmp_path, "--compare", *names)
        assert (code, err.count("\n")) == (2, 1)
        assert message in err
    assert "leave out --compare" in report(capsys, tmp_path, "--watch", "--compare", "a", "b")[1]
    assert "above 0" in report(capsys, tmp_path, "--watch", "--every", "0")[1]


def make_val_run(folder: Path, m: int, gain: float, algorithm: str = "fedem", seed: int = 0, **more: Any) -> None:
    """A run with validation accuracies `gain` above those of others, with noise; its test scores say the contrary."""
    noise = np.random.default_rng((m, len(algorithm), seed)).normal(0, 0.01, size=30)
    val = np.linspace(0.4, 0.8, 30) + gain + noise
    extra = {"n_val": 50, "val_accuracy": val, "val_loss": 1 - val, "pi_0": 0.9, "pi_1": 0.1}
    samples = [random.random(100) < 0.9 - gain for _ in range(30)]
    config = {"algorithm.n_components": m}
    make_sampled_run(folder, samples, algorithm, seed, extra=extra, config=config, **more)


def make_val_runs(folder: Path, n_seeds: int) -> None:
    for seed in range(n_seeds):
        for m, gain in ((2, 0.0), (3, 0.05), (4, 0.0501 - seed % 2 / 100)):
            make_val_run(folder / f"{m}_{seed}", m, gain, seed=seed)
        make_val_run(folder / f"avg{seed}", 1, -0.1, "fedavg", seed)


def test_the_smallest_m_that_is_not_beaten_is_recommended(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_val_runs(tmp_path, 5)
    make_run(tmp_path / "none", 0.99, "local")
    out, err, code = report(capsys, tmp_path, "--recommend")
    assert (code, err) == (0, "")
    said = out.partition("recommended by validation scores")[2]
    assert "fedem: M = 3: validation " in said
    assert re.search(r"; M = 2: [\d.]+ \(p < 0.0001 over 5 seeds\); M = 4 is not better beyond chance: ", said)
    assert "method: fedem (n_components=3): validation " in said
    assert " for fedavg (p < 0.0001 over 5 seeds)" in said
    assert (
        "\n  sure: fedem (n_components=3) is better than every other method beyond chance (at worst p < 0.0001)" in said
    )
    assert "without validation scores, so not considered: local" in said
    header = next(line for line in out.splitlines() if line.strip().startswith("algorithm"))
    assert " val " in f"{header} "


def test_few_seeds_are_never_sure(tmp_path: Path) -> None:
    """However much better a method is: other seeds may tell otherwise."""
    make_val_runs(tmp_path, 2)
    (setting,), _ = assemble(find_runs([tmp_path])[0], [], Papers())
    said = "\n".join(recommendation(setting))
    assert "fedem: M = 3: validation " in said  # the best mean
    assert re.search(r"; M = 2: [\d.]+ \(no test: 2 of 5 common seeds\)", said)
    assert "M = 4 is not better: " in said
    assert "\nnot sure: fedem (n_components=3) is not shown to be better than fedavg; more seeds may tell" in said
    assert "\nsure: " not in said


def test_what_cannot_be_told_apart_is_said(tmp_path: Path) -> None:
    for seed in range(5):
        make_val_run(tmp_path / f"a{seed}", 1, 0.0, "fedavg", seed)
        make_val_run(tmp_path / f"b{seed}", 1, 0.0005, "local", seed)
    (setting,), _ = assemble(find_runs([tmp_path])[0], [], Papers())
    method, verdict = recommendation(setting)
    assert "p = " in method
    assert verdict.startswith("not sure: ")
    make_run(tmp_path / "c" / "d")
    (setting,), _ = assemble(find_runs([tmp_path / "c"])[0], [], Papers())
    lacking = "no validation scores, so nothing can be recommended: the runs had no validation samples; "
    shares = "dataset.fractions sets their share, where the data have no split of their own"
    assert recommendation(setting) == [lacking + shares]
    make_run(tmp_path / "e" / "f", config={"dataset.split": "part"})
    (setting,), _ = assemble(find_runs([tmp_path / "e"])[0], [], Papers())
    (said,) = recommendation(setting)
    assert said == lacking + "the column of dataset.split=part has no val; without dataset.split they are drawn"


def printed(content: Report, width: int) -> str:
    console = Console(width=width, force_terminal=True, record=True, file=io.StringIO())
    print_report(content, console)
    return console.export_text()


def test_numbers_are_never_cut(tmp_path: Path) -> None:
    long = {f"algorithm.option_{letter}": "value" * 4 for letter in "abc"}
    for seed in (0, 1):
        make_run(tmp_path / f"a{seed}", 0.66 + seed / 100, "fedem", seed)
        make_run(tmp_path / f"b{seed}", 0.7, "x" * 100, seed)
        make_run(tmp_path / f"c{seed}", 0.7, "fedavg", seed, config=long)
        make_run(tmp_path / f"d{seed}", 0.7, "fedavg", seed)
    content = assemble(find_runs([tmp_path])[0], [], Papers())[1]
    for width in (60, 80, 120, 300):
        text = printed(content, width)
        lines = text.splitlines()
        tables = [line for line in lines if line.startswith("  ")]
        assert all(len(line) <= width for line in tables)
        assert "…" not in text
        assert any("66.5 ± 0.71" in line for line in lines)
        assert ("no room for: " in text) == (width < 200)
    narrow = " ".join(printed(content, 80).split())
    assert "(report.csv of --out has all columns)" in narrow
    left_out = narrow.partition("no room for: ")[2]
    assert all(name in left_out for name in ("pooled", "s a round"))


def test_a_sweep_is_watched_until_ctrl_c(tmp_path: Path) -> None:
    make_run(tmp_path / "done", 0.7, "local")
    (make_run(tmp_path / "half", 0.7, "fedem", config={"trainer.max_epochs": 200}) / "results.json").unlink()
    (make_run(tmp_path / "begun", 0.7, "fedem") / "results.json").unlink()
    (tmp_path / "begun" / "metrics.csv").unlink()
    read = functools.cache(read_run)

    def view() -> Report:
        return assemble(*find_runs([tmp_path], read), Papers())[1]

    waits = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        make_run(tmp_path / f"new{len(waits)}", 0.7, f"new{len(waits)}")
        if len(waits) == 2:
            raise KeyboardInterrupt

    with open(tmp_path / "out", "w") as file:
        watch(view, 7, Console(width=200, file=file, force_terminal=False), sleep)
    text = (tmp_path / "out").read_text()
    assert waits == [7, 7]
    assert f"{tmp_path / 'half'}: unfinished: no results.json; round 4 of 200, test accuracy 70" in text
    assert f"{tmp_path / 'begun'}: unfinished: no results.json\n" in text
    assert "new2" in text  # read once more at the end
    (tmp_path / "nothing").mkdir()
    (skipped,) = find_runs([tmp_path / "nothing"])[1]
    assert skipped.reason.startswith("no run in it or below")
