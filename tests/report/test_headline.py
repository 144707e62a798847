"""The sentence above a table, by hand."""

from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from fedem_lightning.report.scores_table import headline
from helpers.report_runs import tables_in
from helpers.runs import make_run


def sentence(folder: Path, scores: dict[str, list[float]], measure: str = "accuracy") -> str:
    for name, values in scores.items():
        for seed, value in enumerate(values):
            make_run(folder / f"{name}{seed}", value, name, seed, measure=measure)
    return headline(tables_in(folder)[0])


def test_the_best_method_its_gains_and_its_rival(tmp_path: Path) -> None:
    scores = {"fedem": [0.80, 0.82], "apfl": [0.79, 0.80], "fedavg": [0.70, 0.71], "local": [0.75, 0.76]}
    low, high = stats.ttest_1samp(np.array([1.0, 2.0]), 0).confidence_interval(0.95)
    assert sentence(tmp_path, scores) == (
        "FedEM is best with a test accuracy of 81.0 ± 1.41 % (higher by 5.5 than with Local, by 10.5 than with FedAvg)."
        f" The accuracy with FedEM is higher by 1.5 than with APFL (95 % interval {low:.1f} to {high:.1f} over 2 "
        "seeds): more seeds may reverse it."
    )


def test_of_losses_the_lower_one_is_better_and_signs_agree(tmp_path: Path) -> None:
    scores = {"fedem": [0.5, 0.6], "local": [0.4, 0.35], "fedavg": [0.9, 1.0]}
    low, high = stats.ttest_1samp(np.array([0.1, 0.25]), 0).confidence_interval(0.95)
    assert low < 0 < high
    assert sentence(tmp_path, scores, measure="mse") == (
        "Local is best with a test squared error of 0.375 ± 0.035 (lower by 0.575 than with FedAvg). "
        f"The squared error with Local is lower by 0.175 than with FedEM (95 % interval {low:.4g} to {high:.4g} over 2 "
        "seeds): more seeds may reverse it."
    )


@pytest.mark.parametrize(
    ("fedem", "fedavg", "end"),
    [
        ([0.8, 0.7], [0.7, 0.8], "FedAvg and FedEM have the same test accuracy, 75.0 %."),
        ([0.80052], [0.80048], "FedAvg and FedEM have the same test accuracy, 80.1 %."),  # 0.0 apart
        ([0.8], [0.7], "but they share only one seed, and another seed may reverse it."),
        ([0.8, 0.81, 0.83], [0.7, 0.71, 0.72], "over 3 seeds): a test of all methods needs 5 common seeds."),
        (
            [0.8, 0.81, 0.83, 0.8, 0.82],
            [0.7, 0.71, 0.72, 0.7, 0.71],
            "The accuracy with FedEM is higher by 10.4 than with FedAvg, beyond chance.",
        ),
        ([float("nan")], [float("nan")], "No method has a finite test score."),
    ],
)
def test_how_sure_a_lead_is(fedem: list[float], fedavg: list[float], end: str, tmp_path: Path) -> None:
    assert sentence(tmp_path, {"fedem": fedem, "fedavg": fedavg}).endswith(end)


def test_equal_rows_are_best_together(tmp_path: Path) -> None:
    assert sentence(tmp_path, {"fedem": [0.8], "apfl": [0.8], "local": [0.7]}) == (
        "APFL and FedEM are best with the same test accuracy, 80.0 % (higher by 10.0 than with Local)."
    )
