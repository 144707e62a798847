"""Damaged, foreign and hostile runs: named, as text, and the rest still shown."""

import functools
import json
import os
import time
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from omegaconf import OmegaConf

from fedem_lightning import UserError
from fedem_lightning.errors import one_line
from fedem_lightning.records.configs import flatten
from fedem_lightning.report import find_runs
from fedem_lightning.report.cells import cell_text, shorten
from fedem_lightning.report.collect import read_config, read_run
from fedem_lightning.report.report_files import latex_text, markdown_text
from helpers.report_runs import report
from helpers.runs import composed_small, make_run


def config_of(folder: Path, text: str) -> dict[str, Any]:
    (folder / "config.yaml").write_text(text)
    return read_config(folder / "config.yaml")


@pytest.mark.parametrize("override", ["algorithm=fedem", "algorithm=d_fedem", "algorithm=mapper", "fidelity=reference"])
def test_configurations_resolve_as_omegaconf_resolves_them(override: str, tmp_path: Path) -> None:
    config, _ = composed_small(tmp_path, override)
    found = config_of(tmp_path, OmegaConf.to_yaml(config))
    config.update({"seed": 0, "data_dir": "", "run_dir": None})
    assert found == flatten(OmegaConf.to_container(config, resolve=True))


def test_a_foreign_configuration_calls_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "secret")
    found = config_of(
        tmp_path,
        "a: ${oc.env:TOKEN}\nb: x ${oc.env:TOKEN} y\nc: ${first:null,${d.e}}\nd: {e: 1e-3, f: '${.e}'}\n"
        "g: ${g}\nh: ${missing}\ni: ${oc.select:missing,${oc.env:TOKEN}}\nj: ${made.up:1}\nk: [1, '${d.e}']\n",
    )
    shown = {key: found[key] for key in ("a", "b", "c", "d.f", "g", "h", "i", "j", "k")}
    as_written = {"a": "${oc.env:TOKEN}", "b": "x ${oc.env:TOKEN} y", "g": "${g}", "h": "${missing}"}
    as_written |= {"i": "${oc.env:TOKEN}", "j": "${made.up:1}"}
    assert shown == {**as_written, "c": 0.001, "d.f": 0.001, "k": [1, 0.001]}


BOMBS = {
    "aliases": "a: &a [x, x]\n" + "".join(f"b{i}: &b{i} [*a, *a]\n" for i in range(3)),
    "merges": "a: &a {x: 1}\nb: {<<: *a}\n",
    "doubling": "".join(f"s{i}: {{x: '${{s{i + 1}}}', y: '${{s{i + 1}}}'}}\n" for i in range(60)) + "s60: 1\n",
    "text": "".join(f"t{i}: ${{t{i + 1}}}${{t{i + 1}}}\n" for i in range(60)) + "t60: x\n",
    "depth": "a: " + "[" * 100_000,
    "size": "a: " + "x" * 2_000_000,
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_configuration_that_grows_is_refused_at_once(name: str, tmp_path: Path) -> None:
    start = time.perf_counter()
    with pytest.raises(UserError, match=r"broken: .hydra/config.yaml"):
        config_of(tmp_path, BOMBS[name])
    assert time.perf_counter() - start < 5


DAMAGE: dict[str, Any] = {
    "text for a score": {
        "test": {"accuracy": dict.fromkeys(("weighted", "pooled", "mean", "bottom_decile", "worst"), "a")}
    },
    "text for seconds": {"seconds": {"per_round": "fast"}},
    "text for bytes": {"communication": {"up_bytes": "1", "down_bytes": 1}},
    "text for recovery": {"recovery": {"group_accuracy": "all"}},
}
HARMLESS: dict[str, Any] = {
    "null": {"environment": None, "data": None, "reference": None, "recovery": None, "unseen": None},
    "lists": {"environment": [1], "reference": 3, "components": "x", "val": [2], "adaptation": {"a": 1}},
}


def test_a_damaged_run_never_ends_the_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(tmp_path / "good", 0.7, "local")
    for name, part in DAMAGE.items():
        path = make_run(tmp_path / name) / "results.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | part))
    for i, (name, part) in enumerate(HARMLESS.items()):
        make_run(tmp_path / name, 0.7, f"harmless{i}", **part)
    weights = make_run(tmp_path / "weights", 0.7, "other", pi=[[0.5, 0.5], [1, 0]])
    pd.read_parquet(weights / "clients.parquet").assign(pi_0="much").to_parquet(weights / "clients.parquet")
    deep = make_run(tmp_path / "deep")
    (deep / "results.json").write_text("[" * 100_000)
    (make_run(tmp_path / "binary") / "results.json").write_bytes(b"\xff\xfe")
    (make_run(tmp_path / "npz", 0.7, "npz") / "test_samples.npz").write_bytes(b"PK")
    (tmp_path / "empty").mkdir()
    (tmp_path / "good" / "loop").symlink_to(tmp_path)
    raw = os.fsencode(tmp_path) + b"/r\xe9sum"
    make_run(tmp_path / "encoded", 0.7, "encoded")
    os.rename(tmp_path / "encoded", raw)
    (make_run(tmp_path / "killed") / "results.json").unlink()
    out, err, code = report(capsys, tmp_path, tmp_path / "empty", "--out", tmp_path / "report")
    assert (code, err) == (0, "")
    left_out = out.partition("left out of the tables:")[2]
    for name in (*DAMAGE, "weights", "deep", "binary"):
        assert f"{tmp_path / name}: broken: " in left_out
    assert f"{tmp_path / 'empty'}: no run in it or below" in left_out
    assert f"{tmp_path / 'killed'}: unfinished: no results.json; round 4 of 4, test accuracy 70" in left_out
    shown = pd.read_csv(tmp_path / "report" / "report_wide.csv")
    assert {"local", "harmless0", "npz", "encoded"} <= set(shown.row)
    assert left_out.count(": broken") == len(DAMAGE) + 3


NAMES = {
    "html": "<script>alert(1)</script>",
    "latex": r"$\frac{$ & % _ ~ ^ # {",
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
    texts = {
        path.name: path.read_text() for path in (tmp_path / "report").iterdir() if path.suffix not in (".png", ".pdf")
    }
    for text in (out, *texts.values()):
        assert not any(ord(c) < 32 and c != "\n" for c in text)
        assert "\u202e" not in text
    assert "[bold red]a[/] *b*" in out
    assert "x" * 81 not in out + texts["report.md"] + texts["report.tex"]
    assert "x" * 300 in texts["report.csv"]
    assert "<script>" not in texts["report.md"].replace(r"\<script\>", "")
    rows = [line for line in texts["report.md"].splitlines() if line.startswith("| ")]
    assert {line.replace(r"\|", "").count("|") for line in rows} == {rows[0].count("|")}
    assert r"\$\textbackslash{}frac\{\$ \& \% \_ \textasciitilde{} \textasciicircum{} \# \{" in texts["report.tex"]
    cells = pd.read_csv(tmp_path / "report" / "report.csv", dtype=str, keep_default_na=False)
    assert not cells[["dataset", "setting", "algorithm", "row"]].apply(lambda c: c.str.match(r"[=+\-@]")).any().any()


def test_letters_that_have_a_meaning() -> None:
    assert one_line("a\nb\x00c\t d\ud800") == "a b c d?"
    assert shorten("a" * 100 + "z" * 100, 10) == "aaaa...zzz"
    assert markdown_text("a_b _c_ <d> | $e & f") == r"a_b \_c\_ \<d\> \| \$e &amp; f"
    assert markdown_text("# x") == r"\# x"
    assert latex_text("ü 中 -1 ± 2") == r"ü ? -1 $\pm$ 2"
    assert latex_text('"a"') == "''a''"  # LaTeX's first font encoding has no sign of its own
    assert [cell_text(name) for name in ("=1", "+a", "-b", "@c", "d=1")] == ["'=1", "'+a", "'-b", "'@c", "d=1"]


def test_a_folder_is_read_once_with_a_memory(tmp_path: Path) -> None:
    make_run(tmp_path / "run")
    read = functools.cache(read_run)
    (first,), _ = find_runs([tmp_path], read)
    assert find_runs([tmp_path], read)[0][0] is first
    assert find_runs([tmp_path])[0][0] is not first
