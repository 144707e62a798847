"""The sentence above a table: gains over the baselines, the lead over the next method and its interval."""

from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from fedem_lightning.report import Papers, find_runs, group_runs
from fedem_lightning.report.headline import in_a_sentence
from fedem_lightning.report.scores_table import scores_table
from fedem_lightning.report.significance import t_interval
from helpers.runs import make_run


def sentence(folder: Path, scores: dict[str, list[float]], main: str | None = None) -> str:
    for name, values in scores.items():
        for seed, value in enumerate(values):
            make_run(folder / f"{name}{seed}", value, name, seed)
    (setting,), _ = group_runs(find_runs([folder])[0])
    return in_a_sentence(scores_table(setting, Papers()), main)


SCORES = {"fedem": [0.80, 0.82], "apfl": [0.79, 0.80], "fedavg": [0.70, 0.71], "local": [0.75, 0.76]}


def test_the_best_method_its_gains_and_its_rival(tmp_path: Path) -> None:
    differences = np.array([1.0, 2.0])
    low, high = stats.ttest_1samp(differences, 0).confidence_interval(0.95)
    assert sentence(tmp_path, SCORES) == (
        "FedEM is best with a test accuracy of 81.0 ± 1.41 % (+5.5 against Local, +10.5 against FedAvg). "
        f"FedEM is 1.5 ahead of APFL (95 % interval {low:+.1f} to {high:+.1f} over 2 seeds): "
        "more seeds may turn that round."
    )


def test_the_headline_speaks_of_the_method_that_is_asked_for(tmp_path: Path) -> None:
    said = sentence(tmp_path, SCORES, "local")
    assert said.startswith("Local has a test accuracy of 75.5 ± 0.71 % (+5.0 against FedAvg): number 3 of 4. FedEM is ")
    assert "FedEM is 5.5 ahead of Local (95 % interval " in said


def test_nothing_finite_is_said(tmp_path: Path) -> None:
    assert sentence(tmp_path, {"fedem": [float("nan")], "local": [0.5]}, "fedem") == "fedem has no finite test score."


@pytest.mark.parametrize("n_seeds", [2, 3, 5])
def test_the_interval_holds_the_mean_in_95_of_100_cases(n_seeds: int) -> None:
    """Under its own assumption, normal differences; 4,000 simulations have a standard error of 0.34 points."""
    drawn = np.random.default_rng(n_seeds).normal(0.7, 2.0, size=(4000, n_seeds))
    held = [low <= 0.7 <= high for low, high in map(t_interval, drawn)]
    assert np.mean(held) == pytest.approx(0.95, abs=0.015)
