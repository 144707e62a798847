"""Methods by data sets: average ranks by hand, the critical difference by simulation, and where they are shown."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from fedem_lightning.report import Papers, find_runs, group_runs
from fedem_lightning.report.ranks import Ranks, _not_told_apart, critical_difference, rank_figure, ranked
from fedem_lightning.report.scores_table import scores_table
from helpers.report_runs import report
from helpers.runs import make_run, sums

SCORES = {
    "synthetic": {"local": 0.6, "fedavg": 0.7, "fedem": 0.8},
    "digits": {"local": 0.5, "fedavg": 0.5, "fedem": 0.4},
}


def ranks_of(folder: Path) -> Ranks | None:
    return ranked([scores_table(setting, Papers()) for setting in group_runs(find_runs([folder])[0])[0]])


def two_data_sets(folder: Path) -> Path:
    for dataset, scores in SCORES.items():
        for method, score in scores.items():
            make_run(folder / dataset / method, score, method, dataset=dataset)
    make_run(folder / "digits" / "apfl", 0.9, "apfl", dataset="digits")
    return folder


def test_average_ranks_by_hand(tmp_path: Path) -> None:
    """Ranks 3, 2, 1 and 1.5, 1.5, 3: a tie has the mean rank."""
    found = ranks_of(two_data_sets(tmp_path))
    assert found is not None
    assert found.average.to_dict() == {"FedAvg": 1.75, "FedEM": 2.0, "Local": 2.25}
    assert found.scores.loc["FedAvg"].to_dict() == pytest.approx({"digits": 50.0, "synthetic": 70.0})
    assert found.notes == [
        "2 data sets are too few to tell 3 methods apart by their ranks",
        "not in every table, so not ranked: APFL",
    ]
    assert found.sentence.endswith("1.75 over 2 data sets, not beyond chance against FedEM, Local.")


def test_one_data_set_has_no_ranks(tmp_path: Path) -> None:
    for method, score in SCORES["synthetic"].items():
        make_run(tmp_path / method, score, method)
    assert ranks_of(tmp_path) is None


def test_validation_scores_choose_among_rows_of_a_method(tmp_path: Path) -> None:
    two_data_sets(tmp_path)
    for m, (val, test) in {2: (0.9, 0.55), 3: (0.1, 0.95)}.items():
        config = {"algorithm.n_components": m}
        make_run(tmp_path / f"m{m}", test, "hypcluster", val={"accuracy": sums(val)}, config=config)
        make_run(tmp_path / f"d{m}", test, "hypcluster", dataset="digits", val={"accuracy": sums(val)}, config=config)
    found = ranks_of(tmp_path)
    assert found is not None
    assert found.scores.loc["HypCluster"].to_dict() == pytest.approx({"digits": 55.0, "synthetic": 55.0})


@pytest.mark.parametrize(("n_methods", "n_data_sets"), [(2, 4), (2, 12), (3, 5), (6, 8)])
def test_equal_methods_differ_by_more_in_at_most_five_percent(n_methods: int, n_data_sets: int) -> None:
    limit = critical_difference(n_methods, n_data_sets)
    orders = np.random.default_rng(1).random((4000, n_data_sets, n_methods)).argsort(axis=-1)
    spans = np.ptp(orders.mean(axis=1), axis=1)
    assert (spans > limit + 1e-9).mean() <= stats.binom.ppf(0.999, 4000, 0.05) / 4000


def test_the_difference_is_nemenyis_for_many_data_sets() -> None:
    nemenyi = 2.569 * np.sqrt(4 * 5 / (6 * 200))  # q of Demsar 2006, Table 5, for four methods
    assert critical_difference(4, 200) == pytest.approx(nemenyi, rel=0.03)


def test_a_clear_winner_is_told_apart() -> None:
    names = ["best", "second", "third"]
    scores = pd.DataFrame({f"data {i}": [3.0, 1.0 + i % 2, 2.0 - i % 2] for i in range(10)}, index=names)
    average = pd.Series({"best": 1.0, "second": 2.5, "third": 2.5})
    found = Ranks(scores, average, critical_difference(3, 10), [])
    assert found.sentence == "best has the best average rank, 1.00 over 10 data sets, beyond chance."
    assert _not_told_apart(average.to_numpy(), found.difference) == [(1, 2)]
    words = [text.get_text() for text in rank_figure(found).figure.axes[0].texts]
    assert {"best  1.00", "second  2.50", "third  2.50"} <= set(words)


def test_bars_join_the_largest_groups_only() -> None:
    places = np.array([1.0, 1.5, 2.4, 2.6, 4.0])
    assert _not_told_apart(places, 1.2) == [(0, 1), (1, 3)]


def test_ranks_are_printed_and_written(tmp_path: Path, capsys: Any) -> None:
    out, _, code = report(capsys, two_data_sets(tmp_path / "runs"), "--out", tmp_path / "out")
    assert code == 0
    assert "methods by data sets" in out
    table = pd.read_csv(tmp_path / "out" / "ranks.csv")
    assert table.columns.tolist() == ["method", "average_rank", "synthetic", "digits"]
    page = (tmp_path / "out" / "report.html").read_text()
    assert page.index("Over several data sets") < page.index("scores after the last round")
    assert "| FedAvg | 1.75 |" in (tmp_path / "out" / "report.md").read_text()
    assert (tmp_path / "out" / "ranks.pdf").exists()
