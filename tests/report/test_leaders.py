"""Bold rows when nothing differs, on the whole way from runs to tables: at most 5 % of the tables have any."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from fedem_lightning.report import Run
from fedem_lightning.report.finished_run import read_run
from fedem_lightning.report.groups import Group, Setting
from fedem_lightning.report.scores_table import scores_table
from helpers.runs import make_run

CLIENTS = 40


def summaries(accuracies: np.ndarray) -> dict[str, float]:
    """The summaries of results.json for clients' accuracies [T]; the weights stand for their numbers of samples."""
    weights, ordered = np.arange(1, CLIENTS + 1), np.sort(accuracies)
    weighted, pooled = np.average(accuracies, weights=weights), np.average(accuracies, weights=weights[::-1])
    found = {"weighted": weighted, "pooled": pooled, "mean": accuracies.mean()}
    return {**found, "bottom_decile": ordered[CLIENTS // 10 - 1], "worst": ordered[0]}


def table_of(base: Run, scores: np.ndarray) -> Setting:
    """A table in memory: scores [rows, seeds, clients]."""
    groups = []
    for i, row in enumerate(scores):
        test = [{"accuracy": summaries(clients)} for clients in row]
        runs = [Run(base.folder, {**base.results, "seed": s, "test": t}, base.config) for s, t in enumerate(test)]
        groups.append(Group("fedem", f"row {i}", runs))
    return Setting("synthetic", "linear", "synthetic", groups)


def null(rng: np.random.Generator, n_rows: int, n_seeds: int) -> np.ndarray:
    """Accuracies [rows, seeds, clients] of methods that are equal: effects of clients, of seeds, of trained models."""
    client, seed = rng.normal(0, 0.1, size=(n_seeds, CLIENTS)), rng.normal(0, 0.02, size=(n_seeds, 1))
    size = (n_rows, n_seeds, 1)
    trained = rng.normal(size=size)
    sampled = rng.normal(0, 0.05, size=(n_rows, n_seeds, CLIENTS))
    return 0.7 + client + seed + 0.01 * trained + sampled


@pytest.fixture
def base(tmp_path: Path) -> Run:
    folder = make_run(tmp_path, 0.7, "fedem")
    for name in ("clients.parquet", "metrics.csv"):  # thousands of tables would read them again and again
        (folder / name).unlink()
    return read_run(folder)


def share_with_bold(base: Run, n_tables: int, n_rows: int, n_seeds: int) -> float:
    rng = np.random.default_rng(0)
    tables = [scores_table(table_of(base, null(rng, n_rows, n_seeds))) for _ in range(n_tables)]
    notes = [sum(note.startswith("no row is bold") for note in table.warnings) for table in tables]
    assert notes == [int(n_seeds < 5)] * n_tables
    return float(np.mean([bool(table.leaders) for table in tables]))


def most(n_tables: int) -> float:
    """The share that 5 % stays below in 99.9 % of simulations."""
    return float(stats.binom.ppf(0.999, n_tables, 0.05)) / n_tables


@pytest.mark.parametrize("n_rows", [2, 4])
@pytest.mark.parametrize("n_seeds", [3, 5])
def test_equal_rows_are_seldom_bold(n_rows: int, n_seeds: int, base: Run) -> None:
    found = share_with_bold(base, 200, n_rows, n_seeds)
    assert found == 0 if n_seeds < 5 else found <= most(200)


def test_a_row_that_is_better_with_every_seed_is_bold(base: Run) -> None:
    rng = np.random.default_rng(0)
    scores = null(rng, 3, 5)
    scores[1] = scores[:, :, :].max(axis=0) + 0.1
    table = scores_table(table_of(base, scores))
    assert table.leaders == {key: "row 1" for key in ("weighted", "pooled", "mean", "bottom_decile", "worst")}
    assert not [line for line in table.warnings if line.startswith("no row is bold")]
    short = table_of(base, scores)
    short.groups[0].runs.pop()  # four seeds that all rows share
    table = scores_table(short)
    assert table.leaders == {}
    assert table.warnings[:1] == ["no row is bold: that takes a test over 5 seeds that all rows share; these share 4"]
    two: Any = np.stack([scores[1], scores[1], scores[0]])
    assert scores_table(table_of(base, two)).leaders == {}  # the first two are equal
    assert not [line for line in scores_table(table_of(base, scores[1:2])).warnings if "bold" in line]  # one row
