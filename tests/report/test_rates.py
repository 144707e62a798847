"""Rows whose learning rate nobody chose for their data: marked in the table, and no ground to be sure of a method."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from helpers.report_runs import make_sampled_run, report


def make_rated_run(
    folder: Path, algorithm: str, shift: float, *rates: tuple[str, float, str | None], seed: int = 0
) -> None:
    """A run of 30 clients, with who chose its learning rates; none: of an older version, which does not say."""
    rng = np.random.default_rng(0)
    samples, val = [rng.random(20) < 0.5 for _ in range(30)], np.clip(rng.normal(0.6 + shift, 0.01, 30), 0, 1)
    said: list[Any] = [{"of": of, "rate": rate, "chosen_by": by} for of, rate, by in rates]
    extra = {"val_accuracy": val, "val_loss": 1 - val, "n_val": 20}
    more: dict[str, Any] = {"learning_rates": said} if said else {}
    make_sampled_run(folder, samples, algorithm, seed, extra=extra, **more)


def row_of(out: str, label: str) -> list[str]:
    return next(line.split() for line in out.splitlines() if line.split()[:1] == [label])


def test_a_rate_that_nobody_chose_is_marked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_rated_run(tmp_path / "a", "fedem", 0.1, ("fedem", 0.3, "chosen_for"))
    make_rated_run(tmp_path / "b", "local", 0.0, ("local", 0.03, None))
    make_rated_run(tmp_path / "c", "fedavg_plus", 0.0, ("fedavg_plus", 0.1, "command"), ("finetune", 0.03, None))
    make_rated_run(tmp_path / "d", "ditto", 0.0)
    out, err, code = report(capsys, tmp_path, "--out", tmp_path / "out")
    assert (code, err) == (0, "")
    rates = {name: row_of(out, name)[3] for name in ("fedem", "local", "fedavg_plus", "ditto")}
    assert rates == {"fedem": "0.3", "local": "0.03*", "fedavg_plus": "0.1*", "ditto": "-"}
    assert "* nobody chose the learning rate of local, finetune of fedavg_plus for these data" in out
    assert "in Python with client_optimizer=ClientSGD(lr=...)" in out
    table = pd.read_csv(tmp_path / "out" / "report_wide.csv").set_index("algorithm")
    assert table.rate_chosen.drop("ditto").to_dict() == {"fedem": 1, "local": 0, "fedavg_plus": 0}
    assert table.learning_rate["local"] == 0.03
    for name in ("report.md", "report.tex", "report.html"):
        assert "nobody chose the learning rate of local" in (tmp_path / "out" / name).read_text(), name


@pytest.mark.parametrize(("chosen_by", "word"), [("chosen_for", "sure: "), (None, "not sure: ")])
def test_the_recommendation_is_not_sure_against_a_rate_that_nobody_chose(
    chosen_by: str | None, word: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for seed in range(5):
        make_rated_run(tmp_path / f"a{seed}", "fedem", 0.2 + seed / 100, ("fedem", 0.3, "command"), seed=seed)
        make_rated_run(tmp_path / f"b{seed}", "local", 0.0, ("local", 0.03, chosen_by), seed=seed)
    out, _, code = report(capsys, tmp_path, "--recommend")
    (said,) = (line.strip() for line in out.splitlines() if "sure: " in line)
    assert code == 0
    assert said.startswith(f"{word}fedem is better than every other method beyond chance")
    assert ("nobody chose the learning rate of local" in said) == (chosen_by is None)


def test_a_recommendation_without_a_test_names_rates_that_nobody_chose(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_rated_run(tmp_path / "a", "fedem", 0.2, ("fedem", 0.3, "command"))
    make_rated_run(tmp_path / "b", "local", 0.0, ("local", 0.03, None))
    out, _, _ = report(capsys, tmp_path, "--recommend")
    (said,) = (line.strip() for line in out.splitlines() if "sure: " in line)
    assert said.startswith("not sure: fedem is not shown to be better than local; ")
    assert "; nobody chose the learning rate of local for these data" in said
