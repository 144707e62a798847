"""Tests for many clients at once, against scipy's for one client after the other."""

import math

import numpy as np
import pytest
from scipy import stats

from fedem_lightning.evaluate.summaries import mean_tests
from fedem_lightning.report.gains_by_client import mcnemar, t_test


def test_mcnemar_is_scipys_binomial_test() -> None:
    only_a, only_b = (grid.ravel() for grid in np.meshgrid(np.arange(12), np.arange(12)))
    expected = [stats.binomtest(a, a + b).pvalue if a + b else 1.0 for a, b in zip(only_a, only_b, strict=True)]
    np.testing.assert_allclose(mcnemar(only_a, only_b), expected, rtol=1e-12)


def test_means_are_tested_by_student_and_by_hall() -> None:
    random = np.random.default_rng(2)
    clients = [random.normal(0.5, 1, size=12), random.lognormal(size=40) - 1, np.full(7, 0.1), np.zeros(4), np.ones(1)]
    owner = np.repeat(np.arange(6), [len(client) for client in clients] + [0])
    shuffled = random.permutation(len(owner))  # the order of samples does not matter
    found = mean_tests(np.concatenate(clients)[shuffled], owner[shuffled], 6)
    for t, d in enumerate(clients[:2]):
        n, k, s = len(d), stats.skew(d, bias=False), d.mean() / d.std(ddof=1)
        hall = s + k * s**2 / 3 + k**2 * s**3 / 27 + k / (6 * n)
        p = 2 * stats.t.sf(abs(hall) * n**0.5, n - 1)
        assert found.p[t] == pytest.approx(max(stats.ttest_1samp(d, 0).pvalue, p))
        ends = stats.ttest_1samp(d, 0).confidence_interval()
        assert found.low[t] <= ends.low + 1e-12
        assert found.high[t] >= ends.high - 1e-12
    np.testing.assert_allclose(found.p[2:], [2.0**-6, 1, np.nan, np.nan])


def test_the_interval_leaves_out_what_the_test_rejects() -> None:
    random = np.random.default_rng(3)
    values = random.lognormal(0, 1, size=(300, 15)) - 1.4
    found = mean_tests(values.ravel(), np.repeat(np.arange(300), 15), 300)
    outside = (found.low > 0) | (found.high < 0)
    assert (outside == (found.p < 0.05)).all()
    assert 0 < outside.sum() < 300


def test_t_test_is_scipys() -> None:
    d = [0.1, -0.2, 0.4, 0.5, 0.3]
    assert t_test(d) == pytest.approx(stats.ttest_1samp(d, 0).pvalue)
    assert (t_test([0.0, 0.0]), t_test([0.5, 0.5]), t_test([0.1] * 5)) == (1, 0.5, 2**-4)
    assert math.isnan(t_test([0.5]))
    assert math.isnan(t_test([0.5, math.nan]))


def skewed(shape: str, rng: np.random.Generator, size: tuple[int, int]) -> tuple[np.ndarray, float]:
    """Values of clients, and their true mean."""
    if shape == "losses":
        return rng.lognormal(0, 0.5, size), math.exp(0.125)
    if shape == "accuracies":
        return rng.binomial(20, rng.beta(18, 1, size)) / 20, 18 / 19
    if shape == "differences":
        return rng.lognormal(0, 0.8, size) - rng.lognormal(0, 0.8, size), 0.0
    return rng.normal(size=size), 0.0


@pytest.mark.parametrize("shape", ["normal", "losses", "accuracies", "differences"])
@pytest.mark.parametrize("n_clients", [10, 20])
def test_intervals_have_the_mean_in_94_percent(shape: str, n_clients: int) -> None:
    values, mean = skewed(shape, np.random.default_rng(0), (4000, n_clients))
    found = mean_tests(values.ravel(), np.repeat(np.arange(4000), n_clients), 4000)
    assert ((found.low <= mean) & (mean <= found.high)).mean() >= 0.94
    tested = mean_tests(values.ravel() - mean, np.repeat(np.arange(4000), n_clients), 4000)
    assert (tested.p < 0.05).mean() <= 0.06
