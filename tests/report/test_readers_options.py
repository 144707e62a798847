"""Names of the user's own for rows, and figures for a printed page."""

import re
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pytest

from fedem_lightning.report.drawing import STYLE, Drawn, axes_of, legend
from fedem_lightning.report.paper_style import paper_files
from helpers.report_runs import report
from helpers.runs import make_run


def two_rows(folder: Path) -> Path:
    for m in (2, 3):
        make_run(folder / f"{m}", 0.7 + m / 100, "fedem", config={"algorithm.n_components": m})
    make_run(folder / "avg", 0.6, "fedavg")
    return folder


def test_own_names_stand_in_tables_and_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    labels = ["--labels", "fedem (n_components=2)=Ours, two", "fedavg=Baseline"]
    out, _, code = report(capsys, two_rows(tmp_path / "runs"), "--out", tmp_path / "out", *labels)
    assert code == 0
    assert {"Ours, two", "Baseline", "fedem (n_components=3)"} <= {
        re.split(r"\s{2,}", line.strip())[0] for line in out.splitlines()
    }
    for name in ("report.html", "report.md", "report.tex", "synthetic_methods.csv"):
        text = (tmp_path / "out" / name).read_text()
        assert "Ours, two" in text, name
        shown = text.replace('title="fedem (n_components=2)"', "")  # the page says what the row's label is
        assert "fedem (n_components=2)" not in shown, name


def test_wrong_names_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    two_rows(tmp_path)
    wrong: dict[str, list[Any]] = {
        "--labels: expected ROW=NAME, got 'fedavg'": ["fedavg"],
        "--labels: expected ROW=NAME, got 'fedavg='": ["fedavg="],
        "--labels: no row 'fedavgg'; the nearest is 'fedavg'": ["fedavgg=x"],
        "--labels: two rows of synthetic would be called 'x'": ["fedem=x"],
    }
    for message, labels in wrong.items():
        _, err, code = report(capsys, tmp_path, "--labels", *labels)
        assert (code, err.count("\n")) == (2, 1)
        assert message in err


def test_paper_figures_have_their_width_and_no_title() -> None:
    with mpl.rc_context(STYLE):
        figure, axes = axes_of("a title that no paper wants")
        for i in range(6):
            axes.plot([0, 1], [i, i], label=f"a method with a long name {i}")
        legend(figure, axes)
        files = paper_files(Drawn("name", "scores", "caption", figure))
    assert set(files) == {"3.25in.pdf", "6.75in.pdf"}
    for name, content in files.items():
        ((width, _),) = re.findall(rb"/MediaBox \[ 0 0 ([\d.]+) ([\d.]+) \]", content)
        assert float(width) == 72 * float(name.removesuffix("in.pdf"))
    assert figure.get_suptitle() == "a title that no paper wants"  # the page's figure is as it was


def test_the_style_needs_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(tmp_path / "avg", 0.6)
    _, err, code = report(capsys, tmp_path, "--style", "paper")
    assert (code, err) == (2, "error: --style: expected --out DIR with it\n")
    report(capsys, tmp_path / "avg", "--out", tmp_path / "out", "--style", "paper")
    assert (tmp_path / "out" / "synthetic_by_round-3.25in.pdf").exists()
