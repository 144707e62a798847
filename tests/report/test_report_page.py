"""The report's page and figures: what readers see, from made-up runs; names are text and never markup."""

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest

from fedem_lightning.report import Papers, find_runs, group_runs
from fedem_lightning.report.cells import Cell
from fedem_lightning.report.drawing import FIRST, MAIN_WIDTH, Drawn, DrawnRows, looks
from fedem_lightning.report.figures import by_file_name, report_figures
from fedem_lightning.report.groups import Setting
from fedem_lightning.report.mixture_figures import structure_figures
from fedem_lightning.report.page import SVG, inline_svg, page, pairs_data
from fedem_lightning.report.report_files import Report
from fedem_lightning.report.scores_table import scores_table
from fedem_lightning.run.figure_style import PALETTE
from fedem_lightning.settings.shipped import method_title
from helpers.runs import make_run

NASTY = "<script>alert(1)</script>$\\frac{$\x1b[31m\n" + "x" * 300
HITS = {"local": [0.5, 0.9], "fedavg": [0.8, 0.8], "fedem": [0.9, 0.9]}
N = 100  # test samples of each of the two clients


def settings_of(folder: Path) -> list[Setting]:
    return group_runs(find_runs([folder])[0])[0]


def rows_of(folder: Path) -> DrawnRows:
    setting = settings_of(folder)[0]
    return DrawnRows(setting, looks([setting]))


def scored(folder: Path, accuracy: list[float], ids: list[str]) -> None:
    """Two clients with their accuracies, and with the first samples right."""
    table = {"id": ids, "population": "seen", "n_train": 50, "n_test": N, "test_accuracy": accuracy}
    pd.DataFrame(table).to_parquet(folder / "clients.parquet", index=False)
    values = np.concatenate([np.arange(N) < round(share * N) for share in accuracy])
    np.savez(folder / "test_samples.npz", n=np.array([N, N]), values=values, measure=np.array("accuracy"))


def three_methods(folder: Path, ids: list[str], **more: Any) -> Path:
    for name, accuracy in HITS.items():
        run = make_run(folder / name, float(np.mean(accuracy)), name, federation_digest="d", **more)
        scored(run, accuracy, ids)
    return folder


class Seen(HTMLParser):
    """The tags of a page, and its text outside scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text, self._inside = "", ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside = tag if tag in ("script", "style") else ""

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        self.text += "" if self._inside else data


def written(folder: Path) -> str:
    settings, papers = settings_of(folder), Papers()
    report = Report([scores_table(s, papers) for s in settings], sum(len(s.groups) for s in settings))
    return page(report, settings, report_figures(settings, papers)[0])


def test_the_page_needs_nothing_else_and_names_methods_as_their_papers_do(tmp_path: Path) -> None:
    text = written(three_methods(tmp_path, ["a", "b"]))
    seen = Seen(text)
    for tag, attributes in seen.tags:
        assert tag not in ("link", "iframe", "object", "embed", "base"), tag
        for key in ("src", "href", "xlink:href", "srcset"):
            value = attributes.get(key) or "#"
            assert value.startswith(("#", "data:")), (tag, value)
    assert not re.search(r"url\((?!#)|@import", text)
    assert {"FedEM", "FedAvg", "Local"} <= {line.strip() for line in seen.text.splitlines()}
    assert method_title("qffl") == "q-FFL"
    assert method_title("fedavg+finetune") == "FedAvg + finetune"
    assert method_title("mine") == "mine"
    headings = [tag for tag, attributes in seen.tags if tag == "button"]
    assert len(headings) > 10  # every heading sorts its table


def test_names_are_text(tmp_path: Path) -> None:
    three_methods(tmp_path, [NASTY, "=cmd|'/c calc'!A1"], dataset=NASTY, command=NASTY)
    make_run(tmp_path / "nasty", 0.7, NASTY, dataset=NASTY)
    text = written(tmp_path)
    seen = Seen(text)
    scripts = [attributes for tag, attributes in seen.tags if tag == "script"]
    assert scripts == [{"type": "application/json"}, {}]  # the clients' scores, and the page's own
    assert "<script>alert" not in text
    assert "<script>alert(1)</script>" in seen.text  # it is shown, though
    assert "\x1b" not in text
    data = json.loads(re.findall(r'<script type="application/json">(.*?)</script>', text, re.S)[0])
    assert data["clients"][0] == [NASTY, 0]


def test_who_gains_by_hand(tmp_path: Path) -> None:
    (setting,) = settings_of(three_methods(tmp_path, ["a", "b"]))
    data = pairs_data(setting)
    assert data is not None
    assert data["rows"] == ["Local", "FedAvg", "FedEM"]
    assert data["clients"] == [["a", 0], ["b", 0]]
    assert data["scores"] == [[50, 90], [80, 80], [90, 90]]
    # Local against FedAvg: 30 samples lost by a, 10 won by b; FedEM and Local agree on b
    assert data["pairs"]["0,1"] == {"shares": [0.5, 0.5, 0, 0.5, 0.5, 0.025, 2], "marks": "-+"}
    assert data["pairs"]["0,2"] == {"shares": [0, 0.5, 0.5, 0, 0.5, 0.025, 2], "marks": "-."}
    assert data["pairs"]["1,2"] == {"shares": [0, 1, 0, 0, 1, 0.025, 2], "marks": "--"}
    cells = dict((group.label, cells) for group, cells in scores_table(setting, Papers()).rows)
    shares = {name: [cells[name].get(key) for key in ("worse_than_fedavg", "loses_to_fedavg")] for name in HITS}
    assert shares == {"local": [Cell(50, None, 1)] * 2, "fedavg": [None] * 2, "fedem": [Cell(0, None, 1)] * 2}
    assert "worse than fedavg beyond chance, %" in written(tmp_path)


def test_many_clients_are_thinned_out_and_shares_are_those_of_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedem_lightning.report.page.MARKS_SHOWN", 3)
    data = pairs_data(*settings_of(three_methods(tmp_path, ["a", "b"])))
    assert data is not None
    assert (data["clients"], data["left_out"]) == ([["a", 0]], 1)
    assert data["pairs"]["1,2"] == {"shares": [0, 1, 0, 0, 1, 0.025, 2], "marks": "-"}


def test_a_method_has_one_colour_and_many_methods_stay_apart(tmp_path: Path) -> None:
    names = [*FIRST, "fedprox", "afl", "apfl", "mocha", "qffl", "l2sgd", "mine", "clustered", "pfedme", "d_fedem"]
    for i, name in enumerate(names):
        make_run(tmp_path / "one" / name, 0.7, name)
        if i % 2:
            make_run(tmp_path / "two" / name, 0.7, name, dataset="digits")
    for m in (2, 3):
        make_run(tmp_path / f"m{m}", 0.7, "fedem", config={"algorithm.n_components": m})
    settings = settings_of(tmp_path)
    found = looks(settings)
    by_method: dict[str, set[str]] = {}
    for setting in settings:
        for group in setting.groups:
            if "n_components" not in group.label:
                by_method.setdefault(group.algorithm, set()).add(found[group.label].colour)
    assert all(len(colours) == 1 for colours in by_method.values())
    others = {label: look for label, look in found.items() if "n_components" not in label}
    assert len({(look.colour, look.line) for look in others.values()}) == len(others)
    assert found["fedavg"].colour == PALETTE[FIRST.index("fedavg")]
    assert [label for label, look in found.items() if look.width == MAIN_WIDTH] == [
        label for label in found if label.startswith("fedem")
    ]


def test_figures_have_names_above_lines_and_axes_for_the_script(tmp_path: Path) -> None:
    folder = three_methods(tmp_path, ["a", "b"])
    settings = settings_of(folder)
    drawn = next(d for d in report_figures(settings, Papers())[0][0] if d.name.endswith("_by_round"))
    root = ElementTree.fromstring(inline_svg(drawn))
    titles = {g.get("data-row"): g.findtext(f"{{{SVG}}}title") for g in root.iter(f"{{{SVG}}}g") if g.get("data-row")}
    assert titles == {"row-0": "Local", "row-1": "FedAvg", "row-2": "FedEM"}
    line = next(g for g in root.iter(f"{{{SVG}}}g") if g.get("data-row") == "row-2")
    d = next(path.get("d") for path in line.iter(f"{{{SVG}}}path"))
    points = [tuple(map(float, pair)) for pair in re.findall(r"[ML] (\S+) (\S+)", d or "")]
    axes = json.loads(root.get("data-axes") or "")
    back = [
        [
            v0 + (p - p0) / (p1 - p0) * (v1 - v0)
            for p, (p0, p1, v0, v1, _) in zip(point, (axes["x"], axes["y"]), strict=True)
        ]
        for point in points
    ]
    np.testing.assert_allclose(back, [[2, 80], [4, 90]], atol=1e-3)  # rounds and scores of the made-up curve
    assert "#010203" not in inline_svg(drawn)


def test_files_of_figures_keep_apart(tmp_path: Path) -> None:
    make_run(tmp_path / "a", 0.7)
    one = report_figures(settings_of(tmp_path), Papers())[0][0][0]
    alike = [Drawn(name, one.section, one.caption, one.figure) for name in ("a b", "a|b", "a/b")]
    assert list(by_file_name(alike)) == ["a-b", "a-b-", "a-b--"]


def test_a_tree_of_clusters_is_drawn_with_its_clients(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", 0.7, "clustered")
    table = {"id": list("abcd"), "population": "seen", "cluster": [3, 4, 4, 2], "true_group": [0, 1, 1, 2]}
    pd.DataFrame(table | {"test_accuracy": 0.5}).to_parquet(run / "clients.parquet")
    np.savez(run / "clusters.npz", node=np.array([0, 1, 2, 3, 4]), parent=np.array([-1, 0, 0, 1, 1]))
    rows = rows_of(tmp_path)
    (tree,) = structure_figures(rows, rows.setting.groups[0])
    words = [text.get_text() for text in tree.figure.axes[0].texts]
    assert words == ["1 client\ngroup 0: 1", "2 clients\ngroup 1: 2", "1 client\ngroup 2: 1"]


@pytest.mark.slow
def test_a_browser_runs_the_page(tmp_path: Path) -> None:
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no Chromium here")
    path = tmp_path / "page.html"
    path.write_text(written(three_methods(tmp_path / "runs", ["a", NASTY])))
    options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
    command = [browser, *options, "--virtual-time-budget=5000", "--dump-dom", path.as_uri()]
    dom = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    assert "FedEM is better for 100.0 % of 2 clients" in dom
    assert dom.count('class="point gains"') == 2
