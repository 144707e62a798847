"""The answer of `compare`: yes, no or cannot tell, by errors whose truth is known."""

import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from fedem_lightning.comparison.answer import answer, gain, seeds_needed

CLIENTS, SEEDS = 30, 5


def errors(mean: float, spread: float = 0.0, seed: int = 0, noise: float = 0.01) -> pd.DataFrame:
    """Errors [clients, seeds] with this mean; clients differ by `spread`."""
    rng = np.random.default_rng([seed, round(1000 * mean)])
    own = mean + rng.normal(scale=spread, size=(CLIENTS, 1))
    return pd.DataFrame(own + rng.normal(scale=noise, size=(CLIENTS, SEEDS)), index=[f"c{t}" for t in range(CLIENTS)])


def test_a_gain_has_the_outer_ends_of_students_intervals() -> None:
    a, b = errors(0.2), errors(0.3, spread=0.05)
    found = gain(a, b)
    d = (b - a).to_numpy()
    by_seed = stats.t.interval(0.95, SEEDS - 1, d.mean(axis=0).mean(), stats.sem(d.mean(axis=0)))
    by_client = stats.t.interval(0.95, CLIENTS - 1, d.mean(), stats.sem(d.mean(axis=1)))
    assert found.mean == pytest.approx(d.mean())
    assert found.low <= min(by_seed[0], by_client[0]) + 1e-12  # Hall's correction may move the ends of the second
    assert found.high >= max(by_seed[1], by_client[1]) - 1e-12
    assert found.p >= stats.ttest_1samp(d.mean(axis=0), 0).pvalue - 1e-15
    assert set(found.better) | set(found.worse) == set(a.index)


def test_yes_no_and_cannot_tell() -> None:
    tables = {"fedavg": errors(0.30), "fedem": errors(0.20), "local": errors(0.25)}
    yes = answer({"fedavg": 0.3, "fedem": 0.2, "local": 0.25}, tables, ["fedavg"], margin=0.01)
    assert (yes.verdict, yes.chosen, yes.rival) == ("yes", "fedem", "fedavg")
    assert yes.to_local is not None
    assert yes.to_local.mean == pytest.approx(0.05, abs=0.01)
    same = {"fedavg": errors(0.30, noise=0.001), "fedem": errors(0.30, seed=1, noise=0.001), "local": errors(0.5)}
    no = answer({"fedavg": 0.3, "fedem": 0.3, "local": 0.5}, same, ["fedavg"], margin=0.01)
    assert (no.verdict, no.chosen, no.rival) == ("no", "fedavg", "fedem")
    noisy = {"fedavg": errors(0.30, noise=0.2), "fedem": errors(0.30, seed=1, noise=0.2), "local": errors(0.5)}
    open_ = answer({"fedavg": 0.3, "fedem": 0.29, "local": 0.5}, noisy, ["fedavg"], margin=0.01)
    assert (open_.verdict, open_.chosen) == ("cannot tell", "fedavg")
    assert open_.more_seeds is None or open_.more_seeds > 0


def test_validation_chooses_and_test_errors_do_not() -> None:
    tables = {"fedavg": errors(0.30), "fedem": errors(0.25), "local": errors(0.20)}
    found = answer({"fedavg": 0.3, "fedem": 0.1, "local": 0.2}, tables, ["fedavg"], margin=0.01)
    assert found.chosen == "fedem"


def test_a_yes_is_seldom_false() -> None:
    """Errors of two methods with one distribution for all clients and seeds: each yes is false; at most 5 % may be."""
    rng, false = np.random.default_rng(0), 0
    for _ in range(400):
        tables = {name: pd.DataFrame(rng.normal(0.3, 0.05, size=(CLIENTS, SEEDS))) for name in ("fedavg", "local")}
        found = answer({"fedavg": 0.3, "local": 0.2}, tables, ["fedavg"], margin=0.001)
        false += found.verdict == "yes"
    assert false <= 0.05 * 400


def test_more_seeds_narrow_the_interval() -> None:
    found = gain(errors(0.3, noise=0.1), errors(0.3, seed=3, noise=0.1))
    n = seeds_needed(found, 0.02, SEEDS)
    assert n is not None
    reach = stats.t.ppf(0.975, SEEDS + n - 1) * found.deviation / math.sqrt(SEEDS + n)
    assert reach <= 0.02 < stats.t.ppf(0.975, SEEDS + n - 2) * found.deviation / math.sqrt(SEEDS + n - 1)
