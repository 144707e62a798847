"""What methods spend until a score is reached, and the sentence above a table, by hand."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from fedem_lightning.report import Papers, Setting, find_runs, group_runs
from fedem_lightning.report.cost_to_score import costs
from fedem_lightning.report.headline import in_a_sentence
from fedem_lightning.report.scores_table import scores_table
from fedem_lightning.report.significance import t_interval
from helpers.runs import make_run


def with_scores(folder: Path, method: str, scores: list[float], seed: int = 0, measure: str = "accuracy") -> None:
    """A run of two clients, which sends 2 MB up and 2 MB down a round, and takes 3 s in the network `wired`."""
    make_run(folder, scores[-1], method, seed, measure=measure)
    rounds = range(1, 1 + len(scores))
    sent = {f"{way}_megabytes": [2.0 * r for r in rounds] for way in ("up", "down")}
    times = {"training_seconds": [0.5 * r for r in rounds], "time_wired": [3.0 * r for r in rounds]}
    pd.DataFrame({"round": rounds, f"test/{measure}": scores, **times, **sent}).to_csv(folder / "metrics.csv")


def setting_in(folder: Path) -> Setting:
    return group_runs(find_runs([folder])[0])[0][0]


def test_the_target_is_what_fedavg_ends_with_for_each_seed(tmp_path: Path) -> None:
    with_scores(tmp_path / "a0", "fedavg", [0.5, 0.6, 0.7])
    with_scores(tmp_path / "a1", "fedavg", [0.5, 0.65, 0.6], seed=1)
    with_scores(tmp_path / "e0", "fedem", [0.6, 0.72, 0.8])
    with_scores(tmp_path / "e1", "fedem", [0.7, 0.7, 0.7], seed=1)
    with_scores(tmp_path / "l0", "local", [0.6, 0.6, 0.6])
    with_scores(tmp_path / "l1", "local", [0.6, 0.6, 0.6], seed=1)
    table = scores_table(setting_in(tmp_path), Papers())
    # fedavg: rounds 3 and 2; fedem: rounds 2 and 1; a round has 2 MB a client up and down, half a second of training
    expected = {"rounds": (2.5, 1.5), "megabytes": (5.0, 3.0), "seconds": (1.25, 0.75), "time_wired": (7.5, 4.5)}
    for key, (fedavg, fedem) in expected.items():
        found = {row: v for row, v in table.mean[f"target_{key}"].items() if v == v}
        assert found == {"fedavg": fedavg, "fedem": fedem}  # not Local: with seed 0 it never gets there
        assert table.columns[f"target_{key}"].header.endswith("to the target")
    assert "local: 1 of 2 seeds reach the target" in table.notes
    assert [line for line in table.notes if line.startswith("target: the test accuracy of fedavg's last round; ")]


def test_a_target_of_the_users(tmp_path: Path) -> None:
    with_scores(tmp_path / "e", "fedem", [0.6, 0.72, 0.8])
    setting = setting_in(tmp_path)
    assert costs(setting)[0].empty  # no FedAvg
    assert costs(setting, 72.0)[0]["target_rounds"].tolist() == [2]
    assert costs(setting, 72.0)[1][0].startswith("target: a test accuracy of 72 %; ")
    assert costs(setting, 90.0)[0].empty  # nobody reaches it


def test_a_loss_is_to_fall(tmp_path: Path) -> None:
    with_scores(tmp_path / "e", "fedem", [3.0, 2.0, 1.0], measure="loss")
    assert costs(setting_in(tmp_path), 2.0)[0]["target_rounds"].tolist() == [2]


def sentence(folder: Path, scores: dict[str, list[float]]) -> str:
    for name, values in scores.items():
        for seed, value in enumerate(values):
            make_run(folder / f"{name}{seed}", value, name, seed)
    return in_a_sentence(scores_table(setting_in(folder), Papers()))


def test_the_best_method_its_gains_and_its_rival(tmp_path: Path) -> None:
    scores = {"fedem": [0.80, 0.82], "apfl": [0.79, 0.80], "fedavg": [0.70, 0.71], "local": [0.75, 0.76]}
    low, high = stats.ttest_1samp(np.array([1.0, 2.0]), 0).confidence_interval(0.95)
    assert sentence(tmp_path, scores) == (
        "FedEM is best with a test accuracy of 81.0 ± 1.41 % (+5.5 against Local, +10.5 against FedAvg). "
        f"FedEM is 1.5 ahead of APFL (95 % interval {low:+.1f} to {high:+.1f} over 2 seeds): more seeds may reverse it."
    )


@pytest.mark.parametrize(
    ("fedem", "fedavg", "end"),
    [
        ([0.8, 0.7], [0.8, 0.7], "FedAvg and FedEM have the same score with every common seed."),
        ([0.8], [0.7], "but they share only one seed, and another seed may reverse it."),
        ([0.8, 0.81, 0.83], [0.7, 0.71, 0.72], "over 3 seeds): a test of all methods needs 5 common seeds."),
        ([0.8, 0.81, 0.83, 0.8, 0.82], [0.7, 0.71, 0.72, 0.7, 0.71], "FedEM is 10.4 ahead of FedAvg, beyond chance."),
        ([float("nan")], [float("nan")], "No method has a finite test score."),
    ],
)
def test_how_sure_a_lead_is(fedem: list[float], fedavg: list[float], end: str, tmp_path: Path) -> None:
    assert sentence(tmp_path, {"fedem": fedem, "fedavg": fedavg}).endswith(end)


@pytest.mark.parametrize("n_seeds", [2, 3, 5])
def test_the_interval_holds_the_mean_in_95_of_100_cases(n_seeds: int) -> None:
    """Under its own assumption, normal differences; 4,000 simulations have a standard error of 0.34 points."""
    drawn = np.random.default_rng(n_seeds).normal(0.7, 2.0, size=(4000, n_seeds))
    held = [low <= 0.7 <= high for low, high in map(t_interval, drawn)]
    assert np.mean(held) == pytest.approx(0.95, abs=0.015)
