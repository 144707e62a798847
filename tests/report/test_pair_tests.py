"""Tests for many clients at once, against scipy's for one client after the other."""

import math

import numpy as np
import pytest
from scipy import stats

from fedem_lightning.report.pair_tests import all_beyond_chance, fisher, mcnemar, signed_ranks, t_test


def test_mcnemar_is_scipys_binomial_test() -> None:
    only_a, only_b = (grid.ravel() for grid in np.meshgrid(np.arange(12), np.arange(12)))
    expected = [stats.binomtest(a, a + b).pvalue if a + b else 1.0 for a, b in zip(only_a, only_b, strict=True)]
    np.testing.assert_allclose(mcnemar(only_a, only_b), expected, rtol=1e-12)


def test_fisher_is_scipys_exact_test_for_equal_sizes() -> None:
    random = np.random.default_rng(0)
    n = random.integers(1, 400, size=300)
    a, b = random.integers(0, n + 1), random.integers(0, n + 1)
    b[:150] = np.clip(a[:150] + random.integers(-8, 9, size=150), 0, n[:150])  # p-values that are neither 0 nor 1
    a[:3], b[:3] = (0, n[1], 0), (0, n[1], n[2])
    rows = zip(a, n, b, n, strict=True)
    expected = [stats.fisher_exact([[x, m - x], [y, k - y]]).pvalue for x, m, y, k in rows]
    np.testing.assert_allclose(fisher(a, n, b, n), expected, rtol=1e-8)


def test_fisher_is_twice_the_smaller_tail_for_unequal_sizes() -> None:
    random = np.random.default_rng(1)
    n_a, n_b = random.integers(1, 90, size=(2, 200))
    a, b = random.integers(0, n_a + 1), random.integers(0, n_b + 1)
    one_sided = [
        min(stats.fisher_exact([[x, m - x], [y, k - y]], alternative=side).pvalue for side in ("less", "greater"))
        for x, m, y, k in zip(a, n_a, b, n_b, strict=True)
    ]
    np.testing.assert_allclose(fisher(a, n_a, b, n_b), np.minimum(1, 2 * np.array(one_sided)), rtol=1e-8)


def test_signed_ranks_are_scipys_wilcoxon() -> None:
    random = np.random.default_rng(2)
    clients = [np.round(random.normal(0.2, 1, size=n), digits) for n, digits in ((8, 9), (40, 1), (300, 0), (25, 9))]
    clients[3][::2] = 0  # equal scores do not count
    owner = np.repeat(np.arange(5), [8, 40, 300, 25, 0])
    expected = [stats.wilcoxon(d[d != 0], correction=True, method="asymptotic").pvalue for d in clients]
    shuffled = random.permutation(len(owner))  # the order of samples does not matter
    found = signed_ranks(np.concatenate(clients)[shuffled], owner[shuffled], 5)
    np.testing.assert_allclose(found, [*expected, 1.0], rtol=1e-9)


def test_few_samples_are_never_beyond_what_an_exact_test_can_find() -> None:
    for n in range(1, 6):
        exact = stats.wilcoxon(np.arange(1.0, n + 1), method="exact").pvalue
        assert signed_ranks(np.arange(1.0, n + 1), np.zeros(n, int), 1)[0] >= exact * (1 - 1e-12)


def test_t_test_is_scipys() -> None:
    d = [0.1, -0.2, 0.4, 0.5, 0.3]
    assert t_test(d) == pytest.approx(stats.ttest_1samp(d, 0).pvalue)
    assert (t_test([0.0, 0.0]), t_test([0.5, 0.5])) == (1, 0)
    assert math.isnan(t_test([0.5]))
    assert math.isnan(t_test([0.5, math.nan]))


def test_holm_compares_the_smallest_p_with_all_tests() -> None:
    assert all_beyond_chance([0.02, 0.04])
    assert not all_beyond_chance([0.03, 0.03])  # 2 * 0.03
    assert not all_beyond_chance([0.001, 0.06])
    assert not all_beyond_chance([0.001, math.nan])
