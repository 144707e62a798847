"""The sentence above a table: gains over the baselines, the lead over the next method and its interval."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from fedem_lightning.report import Papers, Setting, find_runs, group_runs
from fedem_lightning.report.drawing import DrawnRows, looks
from fedem_lightning.report.headline import in_a_sentence
from fedem_lightning.report.score_figures import seeds_figure
from fedem_lightning.report.scores_table import scores_table
from fedem_lightning.report.significance import t_interval
from helpers.runs import make_run


def setting_of(folder: Path, scores: dict[str, list[float]]) -> Setting:
    for name, values in scores.items():
        for seed, value in enumerate(values):
            make_run(folder / f"{name}{seed}", value, name, seed)
    return group_runs(find_runs([folder])[0])[0][0]


def sentence(folder: Path, scores: dict[str, list[float]], main: str | None = None) -> str:
    return in_a_sentence(scores_table(setting_of(folder, scores), Papers()), main)


SCORES = {"fedem": [0.80, 0.82], "apfl": [0.79, 0.80], "fedavg": [0.70, 0.71], "local": [0.75, 0.76]}


def test_the_best_method_its_gains_and_its_rival(tmp_path: Path) -> None:
    differences = np.array([1.0, 2.0])
    low, high = stats.ttest_1samp(differences, 0).confidence_interval(0.95)
    assert sentence(tmp_path, SCORES) == (
        "FedEM is best with a test accuracy of 81.0 ± 1.41 % (+5.5 against Local, +10.5 against FedAvg). "
        f"FedEM is 1.5 ahead of APFL (95 % interval {low:+.1f} to {high:+.1f} over 2 seeds): "
        "more seeds may reverse it."
    )


def test_the_headline_speaks_of_the_method_that_is_asked_for(tmp_path: Path) -> None:
    said = sentence(tmp_path, SCORES, "local")
    assert said.startswith("Local has a test accuracy of 75.5 ± 0.71 % (+5.0 against FedAvg): number 3 of 4. FedEM is ")
    assert "FedEM is 5.5 ahead of Local (95 % interval " in said


def test_equal_methods_have_no_lead(tmp_path: Path) -> None:
    said = sentence(tmp_path, {"fedem": [0.8, 0.7], "fedavg": [0.8, 0.7]})
    assert said.endswith(". FedAvg and FedEM have the same score with every common seed.")


def test_a_row_without_one_seeds_score_is_not_drawn(tmp_path: Path) -> None:
    make_run(tmp_path / "broken", float("nan"), "ditto", 1)
    setting = setting_of(tmp_path, {**SCORES, "ditto": [0.9]})
    drawn = seeds_figure(DrawnRows(setting, looks([setting])))
    assert drawn is not None
    assert isinstance(drawn.data, pd.DataFrame)
    assert set(drawn.data["method"]) == {"FedEM", "APFL", "FedAvg", "Local"}


def test_nothing_finite_is_said(tmp_path: Path) -> None:
    assert sentence(tmp_path, {"fedem": [float("nan")], "local": [0.5]}, "fedem") == "fedem has no finite test score."


@pytest.mark.parametrize("n_seeds", [2, 3, 5])
def test_the_interval_holds_the_mean_in_95_of_100_cases(n_seeds: int) -> None:
    """Under its own assumption, normal differences; 4,000 simulations have a standard error of 0.34 points."""
    drawn = np.random.default_rng(n_seeds).normal(0.7, 2.0, size=(4000, n_seeds))
    held = [low <= 0.7 <= high for low, high in map(t_interval, drawn)]
    assert np.mean(held) == pytest.approx(0.95, abs=0.015)


def test_every_seed_is_a_point_and_the_best_method_is_on_top(tmp_path: Path) -> None:
    setting = setting_of(tmp_path, SCORES)
    drawn = seeds_figure(DrawnRows(setting, looks([setting])))
    assert drawn is not None
    (axes,) = drawn.figure.axes
    assert [text.get_text() for text in axes.get_yticklabels()] == ["FedAvg", "Local", "APFL", "FedEM"]
    means = [np.asarray(line.get_xdata())[0] for line in axes.lines if line.get_marker() == "|"]
    assert means == pytest.approx([70.5, 75.5, 79.5, 81.0])
    ends = stats.ttest_1samp([80.0, 82.0], 0).confidence_interval(0.95)
    assert axes.lines[-1].get_xdata() == pytest.approx(list(ends))
    assert isinstance(drawn.data, pd.DataFrame)
    best = drawn.data[drawn.data["method"] == "FedEM"]
    assert best["score"].tolist() == pytest.approx([80.0, 82.0])


def test_a_figure_has_files_for_papers_screens_and_tables(tmp_path: Path) -> None:
    setting = setting_of(tmp_path, SCORES)
    drawn = seeds_figure(DrawnRows(setting, looks([setting])))
    assert drawn is not None
    files = drawn.files
    assert files["pdf"].startswith(b"%PDF-")
    assert files["png"].startswith(b"\x89PNG")
    width = int.from_bytes(files["png"][16:20], "big")
    assert width == pytest.approx(300 * drawn.figure.get_figwidth(), abs=1)
    assert files["csv"].decode().splitlines()[0] == "method,seed,score"


def test_lines_of_the_main_method_are_wide(tmp_path: Path) -> None:
    setting = setting_of(tmp_path, SCORES)
    wide = {main: [name for name, look in looks([setting], main).items() if look.width > 2] for main in (None, "apfl")}
    assert wide == {None: ["fedem"], "apfl": ["apfl"]}
