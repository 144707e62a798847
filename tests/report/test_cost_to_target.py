"""Rounds, megabytes and seconds until a test score is reached, by hand."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from fedem_lightning.report import find_runs, group_runs
from fedem_lightning.report.cells import Table
from fedem_lightning.report.cost_to_target import target_table
from helpers.report_runs import report
from helpers.runs import make_run


def with_scores(folder: Path, method: str, scores: list[float], seed: int = 0, measure: str = "accuracy") -> None:
    """A run of two clients, which sends 2 MB up and 2 MB down a round."""
    make_run(folder, scores[-1], method, seed, measure=measure)
    rounds = range(1, 1 + len(scores))
    sent = {f"{way}_megabytes": [2.0 * r for r in rounds] for way in ("up", "down")}
    columns = {"round": rounds, f"test/{measure}": scores, "training_seconds": [0.5 * r for r in rounds], **sent}
    pd.DataFrame(columns).to_csv(folder / "metrics.csv", index=False)


def table_of(folder: Path, target: float | None = None) -> Table | None:
    (setting,), _ = group_runs(find_runs([folder])[0])
    return target_table(setting, target)


def costs(table: Table | None) -> dict[str, list[float]]:
    assert table is not None
    return {group.label: [cell.value for cell in cells.values()] for group, cells in table.rows}


def test_the_target_is_what_fedavg_ends_with_for_each_seed(tmp_path: Path) -> None:
    with_scores(tmp_path / "a0", "fedavg", [0.5, 0.6, 0.7])
    with_scores(tmp_path / "a1", "fedavg", [0.5, 0.65, 0.6], seed=1)
    with_scores(tmp_path / "e0", "fedem", [0.6, 0.72, 0.8])
    with_scores(tmp_path / "e1", "fedem", [0.7, 0.7, 0.7], seed=1)
    with_scores(tmp_path / "l0", "local", [0.6, 0.6, 0.6])
    with_scores(tmp_path / "l1", "local", [0.6, 0.6, 0.6], seed=1)
    table = table_of(tmp_path)
    # fedavg: rounds 3 and 2; fedem: rounds 2 and 1; a round has 2 MB a client up and down, and half a second
    assert costs(table) == {"local": [], "fedavg": [2.5, 5.0, 1.25], "fedem": [1.5, 3.0, 0.75]}
    assert table is not None
    assert "local: 1 of 2 seeds reach it" in table.notes
    assert table.title.endswith("cost until the test accuracy reaches that of FedAvg's last round")


def test_a_target_of_the_users(tmp_path: Path) -> None:
    with_scores(tmp_path / "e", "fedem", [0.6, 0.72, 0.8])
    assert table_of(tmp_path) is None  # no FedAvg
    assert costs(table_of(tmp_path, 72.0)) == {"fedem": [2.0, 4.0, 1.0]}
    assert table_of(tmp_path, 90.0) is None  # nobody reaches it


def test_a_loss_is_to_fall(tmp_path: Path) -> None:
    with_scores(tmp_path / "e", "fedem", [3.0, 2.0, 1.0], measure="loss")
    assert costs(table_of(tmp_path, 2.0)) == {"fedem": [2.0, 4.0, 1.0]}


def test_the_option(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with_scores(tmp_path / "e", "fedem", [0.6, 0.72, 0.8])
    out, _, _ = report(capsys, tmp_path, "--target", "70")
    assert "cost until the test accuracy reaches 70.0 %" in out
    wrong: dict[str, list[Any]] = {
        "--target: expected a number, got nan": ["--target", "nan"],
        "argument --target: invalid float value: 'x'": ["--target", "x"],
        "so leave out --target": ["--watch", "--target", "0"],
    }
    for message, arguments in wrong.items():
        _, err, code = report(capsys, tmp_path, *arguments)
        assert (code, err.count("\n")) == (2, 1)
        assert message in err
