"""The same clients with two methods, against scipy client by client and tables made by hand."""

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from fedem_lightning.evaluate.summaries import mean_tests
from fedem_lightning.report.gains_by_client import compare_clients, gains_and_losses
from helpers.report_runs import group_of, make_sampled_run

random = np.random.default_rng(0)


def bools(n: int, share: float) -> np.ndarray:
    return random.random(n) < share


def test_every_client_is_tested_by_its_own_samples(tmp_path: Path) -> None:
    sizes = (40, 0, 60, 1, 90)
    a, b = [bools(n, 0.9) for n in sizes], [bools(n, 0.7) for n in sizes]
    one = group_of(make_sampled_run(tmp_path / "a", a))
    other = group_of(make_sampled_run(tmp_path / "b", b, "fedem"))
    table = compare_clients(one, other)
    assert table["id"].tolist() == ["0", "2", "3", "4"]  # client 1 has no test samples
    assert table["n_test"].tolist() == [40, 60, 1, 90]
    kept = [(x, y) for x, y in zip(a, b, strict=True) if len(x)]
    np.testing.assert_allclose(table["a"], [100 * x.mean() for x, _ in kept])
    np.testing.assert_allclose(table["gain"], [100 * (x.mean() - y.mean()) for x, y in kept])
    counts = [((x & ~y).sum(), (y & ~x).sum()) for x, y in kept]
    expected = [stats.binomtest(n, n + m).pvalue if n + m else 1.0 for n, m in counts]
    np.testing.assert_allclose(table["p"], expected)
    back = compare_clients(other, one)
    np.testing.assert_allclose(back["gain"], -table["gain"])
    np.testing.assert_allclose(back["p"], table["p"])


def test_clients_are_paired_by_seed_and_name(tmp_path: Path) -> None:
    rows = {name: bools(30, 0.5) for name in "abcd"}
    names = {"a": "abc", "b": "dcb"}
    folders: dict[str, list[Path]] = {"a": [], "b": []}
    for row, seeds in (("a", (0, 1)), ("b", (1, 2))):
        samples = [~rows[n] if (row, n) == ("b", "c") else rows[n] for n in names[row]]
        for seed in seeds:
            folders[row] += [make_sampled_run(tmp_path / f"{row}{seed}", samples, row, seed, names=list(names[row]))]
    groups = [group_of(*found) for found in folders.values()]
    table = compare_clients(*groups)
    assert table[["seed", "id"]].values.tolist() == [[1, "b"], [1, "c"]]
    right = int(rows["c"].sum())
    np.testing.assert_allclose(table["gain"], [0, 100 * (2 * right / 30 - 1)])
    assert table["p"].isna().all()  # clients in another order: not the same samples
    assert compare_clients(groups[0], group_of(tmp_path / "b2")).empty  # no common seed


@pytest.mark.parametrize("lost", ["samples", "digest"])
def test_without_the_same_samples_no_client_is_tested(lost: str, tmp_path: Path) -> None:
    a, b = [bools(n, 0.8) for n in (50, 80)], [bools(n, 0.5) for n in (50, 80)]
    one = make_sampled_run(tmp_path / "a", a, keep_samples=lost != "samples")
    other = make_sampled_run(tmp_path / "b", b, federation_digest="another" if lost == "digest" else "digest 0")
    table = compare_clients(group_of(one), group_of(other))
    assert table["p"].isna().all()
    shares = gains_and_losses(table)
    assert shares.better + shares.worse + shares.equal == 1
    assert math.isnan(shares.gains)


def test_losses_are_better_when_they_are_smaller(tmp_path: Path) -> None:
    a = [random.exponential(1.0, size=n) for n in (60, 30)]
    b = [x + random.normal(0.2, 0.3, size=len(x)) for x in a]
    one = make_sampled_run(tmp_path / "a", a, dataset="npz")
    other = make_sampled_run(tmp_path / "b", b, "fedem", dataset="npz")
    table = compare_clients(group_of(one), group_of(other))
    np.testing.assert_allclose(table["gain"], [y.mean() - x.mean() for x, y in zip(a, b, strict=True)])
    differences = [x.astype(np.float32).astype(float) - y.astype(np.float32) for x, y in zip(a, b, strict=True)]
    expected = [mean_tests(d, np.zeros(len(d), int), 1).p[0] for d in differences]
    np.testing.assert_allclose(table["p"], expected, rtol=1e-6)


def test_gains_and_losses_of_a_table_by_hand() -> None:
    table = pd.DataFrame({"gain": [1.0, 2, 3, -1, -2, 0, 0, math.nan], "p": [0.04, 0.06, 0.01, 0.2, 0.03, 1, 1, 0.001]})
    shares = gains_and_losses(table)
    np.testing.assert_allclose(shares, [3 / 7, 2 / 7, 2 / 7, 2 / 7, 1 / 7])


def test_damaged_samples_and_tables_are_as_good_as_none(tmp_path: Path) -> None:
    a = [bools(50, 0.8)]
    good = make_sampled_run(tmp_path / "good", a)
    for damage in ("bytes", "counts"):
        bad = make_sampled_run(tmp_path / damage, a)
        path = bad / "test_samples.npz"
        if damage == "bytes":
            path.write_bytes(path.read_bytes()[:100])
        else:
            np.savez(path, n=[49], values=a[0], measure="accuracy")
        table = compare_clients(group_of(good), group_of(bad))
        assert table["p"].isna().all()
    twice = make_sampled_run(tmp_path / "twice", [*a, *a], names=["x", "x"])
    assert group_of(twice).runs[0].scored.empty
