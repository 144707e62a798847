"""Misspelt names on the command line: the nearest one, without PyTorch; folders of the user's own."""

from pathlib import Path

import pytest

from fedem_lightning.run.command_line import nearest_keys
from helpers.commands import call


def test_a_name_elsewhere_comes_before_one_that_is_spelt_alike() -> None:
    keys = ["a", "a.rate", "a._rate_", "b", "b.lr", "c.rates"]
    assert nearest_keys("b.rate", keys) == ["a.rate"]
    assert nearest_keys("b.learning_rate", keys) == ["b.lr"]
    assert nearest_keys("b.lrr", keys) == ["b.lr"]
    assert nearest_keys("ratess", keys) == ["c.rates"]


def test_a_search_is_over_one_method_and_seed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for word in ("algorithm=fedem,local", "seed=range(9)"):
        assert call(tmp_path, monkeypatch, "-m", "+tune=learning_rate", word) == 2
        assert "would be one search, which ends with one of them; tune each alone\n" in capsys.readouterr().err


def test_the_users_own_folder_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "own" / "algorithm").mkdir(parents=True)
    (tmp_path / "own" / "algorithm" / "mine.yaml").write_text(
        "defaults: [/algorithm_base@_here_, _self_]\n_target_: mine.Ditto\nstrength: 0.1\n"
    )
    own = ["--config-dir", "own"]
    assert call(tmp_path, monkeypatch, *own, "algorithm=minne") == 2
    assert capsys.readouterr().err == "error: algorithm=minne: no such choice; did you mean mine?\n"
    assert call(tmp_path, monkeypatch, *own, "algorithm=mine", "algorithm.strengthh=1") == 2
    assert capsys.readouterr().err.endswith("did you mean algorithm.strength?\n")
