"""The lines about what makes a table less sure, and the bold rows that validation scores do not recommend."""

from pathlib import Path
from typing import Any

import pandas as pd

from fedem_lightning.report import Papers, find_runs, group_runs
from fedem_lightning.report.cells import Table
from fedem_lightning.report.choices import recommendation
from fedem_lightning.report.scores_table import scores_table
from fedem_lightning.report.warning_lines import equal_rows, warning_lines
from helpers.report_runs import report
from helpers.runs import make_run, sums


def table_in(folder: Path) -> Table:
    (setting,) = group_runs(find_runs([folder])[0])[0]
    return scores_table(setting, Papers())


def clustered_with(folder: Path, clusters: list[int]) -> list[str]:
    """The lines for FedAvg and Clustered FL, whose two clients have the same scores and are in these clusters."""
    for name in ("fedavg", "clustered"):
        make_run(folder / name, 0.7, name)
    path = folder / "clustered" / "clients.parquet"
    pd.read_parquet(path).assign(cluster=clusters).to_parquet(path, index=False)
    return list(warning_lines(table_in(folder).setting))


def test_equal_methods_are_named_with_the_reason_where_it_is_known(tmp_path: Path) -> None:
    same = "fedavg and clustered have equal test scores for every client and seed"
    assert f"{same} (Clustered FL never split its clients, so it is FedAvg)" in clustered_with(tmp_path / "1", [0, 0])
    assert same in clustered_with(tmp_path / "2", [0, 1])


def test_one_differing_client_makes_methods_differ(tmp_path: Path) -> None:
    for name in ("fedavg", "fedprox"):
        make_run(tmp_path / name, 0.7, name)
    path = tmp_path / "fedprox" / "clients.parquet"
    pd.read_parquet(path).assign(test_accuracy=[0.6, 0.8001]).to_parquet(path, index=False)
    assert equal_rows(table_in(tmp_path).setting) == []


def test_methods_that_only_guess_are_named(tmp_path: Path) -> None:
    classes = {"imbalanced": False, "threshold": 0.8, "majority_accuracy": sums(0.7), "worse_than_majority": 0.5}
    make_run(tmp_path / "a", 0.7, "fedavg", class_scores=classes)
    make_run(tmp_path / "b", 0.71, "fedem", class_scores=classes)
    lines = [line for line in warning_lines(table_in(tmp_path).setting) if "most frequent class" in line]
    assert lines == [
        "rows that are no better than always predicting each client's most frequent class, whose share is in brackets: "
        "fedavg (70.0 %)"
    ]


def test_few_evaluations_are_counted(tmp_path: Path) -> None:
    make_run(tmp_path / "a", 0.7, "fedavg")  # evaluated after two of four rounds
    often = make_run(tmp_path / "b", 0.7, "fedem") / "metrics.csv"
    pd.DataFrame({"round": range(1, 6), "test/accuracy": 0.5}).to_csv(often, index=False)
    lines = [line for line in warning_lines(table_in(tmp_path).setting) if "evaluations" in line]
    assert len(lines) == 1
    assert lines[0].endswith(": fedavg (2)")


def five_seeds(folder: Path, val: dict[str, float], chosen_by: str = "user") -> Table:
    """FedEM is better than FedAvg with every seed by test; by validation as `val` says."""
    for name, test in {"fedavg": 0.6, "fedem": 0.8}.items():
        for seed in range(5):
            apart = (seed if name == "fedem" else seed % 3) / 1000  # differences of two methods vary over seeds
            more: dict[str, Any] = {"val": {"accuracy": sums(val[name] + apart)}}
            more["learning_rates"] = [{"of": "clients", "rate": 0.1, "chosen_by": chosen_by or None}]
            make_run(folder / f"{name}{seed}", test + apart, name, seed, **more)
    return table_in(folder)


def is_bold(table: Table) -> list[bool]:
    return [table.is_bold(group, "weighted") for group, _ in table.rows]


def test_bold_is_what_test_and_validation_scores_both_say(tmp_path: Path) -> None:
    agreed = five_seeds(tmp_path / "agreed", {"fedavg": 0.6, "fedem": 0.79})
    assert is_bold(agreed) == [False, True]
    assert recommendation(agreed.setting)[-1].startswith("sure: fedem is better")
    assert not [line for line in agreed.warnings if "bold" in line]
    reversed_ = five_seeds(tmp_path / "reversed", {"fedavg": 0.79, "fedem": 0.6})
    said = "best by test scores beyond chance, but not bold, because --recommend is not sure of it: fedem"
    assert (is_bold(reversed_), said in reversed_.warnings) == ([False, False], True)
    default_rate = five_seeds(tmp_path / "default", {"fedavg": 0.6, "fedem": 0.79}, chosen_by="")
    assert (is_bold(default_rate), said in default_rate.warnings) == ([False, False], True)


def test_the_page_has_the_warnings_in_a_box(tmp_path: Path, capsys: Any) -> None:
    make_run(tmp_path / "a", 0.7, "fedavg")
    report(capsys, tmp_path / "a", "--out", tmp_path / "out")
    page = (tmp_path / "out" / "report.html").read_text()
    box = page.split('<aside class="warnings">')[1].split("</aside>")[0]
    assert "fewer than 5 evaluations" in box
    assert "fewer than 5 evaluations" in (tmp_path / "out" / "report.md").read_text()
