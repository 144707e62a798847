"""The rules in plain NumPy, on made-up updates, and the cases in which they are the mean."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch

from fedem_lightning import Aggregation, Mean, Median, MultiKrum, NormClipping, TrimmedMean, UserError
from fedem_lightning.aggregate import Means, RoundContext, Update, make_aggregation
from fedem_lightning.state.processes import Processes

N, M = 7, 2
COUNTS = np.array([5, 1, 9, 3, 3, 7, 2])


def updates(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Models of 7 clients with two components and a matrix [3, 2] each, and the models that they received."""
    rng = np.random.default_rng(seed)
    received = rng.normal(size=(1, M, 3, 2)).repeat(N, axis=0)
    return received + rng.normal(size=(N, M, 3, 2)) * rng.uniform(0.1, 3, size=(N, M, 1, 1)), received


def combined(rule: Aggregation, models: np.ndarray, received: np.ndarray, blocks: int = 3, **more: Any) -> Means:
    """What the rule makes of the models, which arrive in blocks."""
    cohort = torch.arange(len(models)) * 2 + 1
    collector = rule.begin(RoundContext(cohort, ["weight"]))
    given = {"weights": torch.from_numpy(COUNTS[: len(models)]), **more}
    for part in torch.arange(len(models)).tensor_split(blocks):
        of_block: dict[str, Any] = {k: v[part] if isinstance(v, torch.Tensor) else v for k, v in given.items()}
        extras = {name: rows[part] for name, rows in of_block.pop("extras", {}).items()}
        start = {"weight": torch.from_numpy(received)[part]}
        sent = Update({"weight": torch.from_numpy(models)[part]}, start=start, extras=extras, **of_block)
        collector.add(sent, cohort[part])
    collector.reduce(Processes())
    means = collector.compute()
    assert means is not None
    return means


def krum(models: np.ndarray, f: int, m: int) -> list[int]:
    """The m clients with the lowest scores of Blanchard et al.: models [n, ...]."""
    n, scores = len(models), []
    for i in range(n):
        distances = sorted(((models[i] - models[j]) ** 2).sum() for j in range(n) if j != i)
        scores.append(sum(distances[: n - f - 2]))
    return sorted(range(n), key=lambda i: scores[i])[:m]


def test_the_median_of_each_coordinate() -> None:
    models, received = updates()
    np.testing.assert_allclose(combined(Median(), models, received).models["weight"], np.median(models, axis=0))
    even = models[:6]
    np.testing.assert_allclose(combined(Median(), even, received[:6]).models["weight"], np.median(even, axis=0))


@pytest.mark.parametrize("trim", [0.0, 0.15, 0.3, 0.49])
def test_the_trimmed_mean_of_each_coordinate(trim: float) -> None:
    models, received = updates()
    cut = int(trim * N)
    expected = np.sort(models, axis=0)[cut : N - cut].mean(axis=0)
    np.testing.assert_allclose(combined(TrimmedMean(trim), models, received).models["weight"], expected)


@pytest.mark.parametrize("faulty", [1, 0.3, 0.0])
def test_multi_krum_averages_the_nearest_updates_of_each_component(faulty: float) -> None:
    models, received = updates()
    f = int(faulty * N) if faulty < 1 else int(faulty)
    for m, found in enumerate(combined(MultiKrum(faulty), models, received).models["weight"]):
        best = krum(models[:, m], f, N - f)
        np.testing.assert_allclose(found, np.average(models[best, m], axis=0, weights=COUNTS[best]))


@pytest.mark.parametrize("limit", [None, 1.7])
def test_clipped_updates_are_no_longer_than_the_limit(limit: float | None) -> None:
    models, received = updates()
    delta = models - received
    norms = np.sqrt((delta**2).sum(axis=(2, 3)))  # [N, M]
    c = np.median(norms, axis=0) if limit is None else np.full(M, limit)
    scale = np.minimum(1, c / norms)[:, :, None, None]
    assert 0 < (scale < 1).sum() < scale.size
    expected = np.average(received + scale * delta, axis=0, weights=COUNTS)
    np.testing.assert_allclose(combined(NormClipping(limit), models, received).models["weight"], expected)


def test_updates_of_length_0_set_no_limit() -> None:
    models, received = updates()
    models[:5] = received[:5]  # more than half
    norms = np.sqrt(((models - received) ** 2).sum(axis=(2, 3)))[5:]
    scale = np.ones((N, M, 1, 1))
    scale[5:, :, 0, 0] = np.minimum(1, np.median(norms, axis=0) / norms)
    expected = np.average(received + scale * (models - received), axis=0, weights=COUNTS)
    np.testing.assert_allclose(combined(NormClipping(), models, received).models["weight"], expected)
    still = combined(NormClipping(), received, received).models["weight"]
    np.testing.assert_allclose(still, received[0], rtol=1e-14)


MEANS = [NormClipping(float("inf")), NormClipping(1e9), MultiKrum(faulty=0), Mean()]


@pytest.mark.parametrize("rule", MEANS, ids=lambda rule: type(rule).__name__)
def test_rules_that_leave_nothing_out_are_the_weighted_mean(rule: Aggregation) -> None:
    models, received = updates()
    expected = np.average(models, axis=0, weights=COUNTS)
    np.testing.assert_allclose(combined(rule, models, received).models["weight"], expected, rtol=1e-12)


@pytest.mark.parametrize("name", ["mean", "norm_clipping", "median", "trimmed_mean", "multi_krum"])
def test_one_or_two_clients(name: str) -> None:
    models, received = updates()
    one = combined(make_aggregation(name), models[:1], received[:1], blocks=1).models["weight"]
    np.testing.assert_allclose(one, models[0], rtol=1e-14)
    two = combined(make_aggregation(name), models[:2], received[:2], blocks=1)
    assert two.models["weight"].isfinite().all()


GROUPS = torch.tensor([0, 2, 0, 2, 0, 2, 0])


@pytest.mark.parametrize("rule", [Median(), TrimmedMean(0.3), MultiKrum(1)], ids=lambda rule: type(rule).__name__)
def test_each_group_has_its_own_average(rule: Aggregation) -> None:
    models, received = updates()
    found = combined(rule, models, received, group=GROUPS, n_groups=3)
    assert found.nonempty.tolist() == [True, True, False, False, True, True]
    assert found.weight.tolist() == [5 + 9 + 3 + 2, 0, 1 + 3 + 7]
    for g in (0, 2):
        members = np.flatnonzero(g == GROUPS)
        alone = make_alone(rule, models, received, members)
        np.testing.assert_allclose(found.models["weight"][g * M : (g + 1) * M], alone)
    assert not found.models["weight"][M : 2 * M].any()


def make_alone(rule: Aggregation, models: np.ndarray, received: np.ndarray, members: np.ndarray) -> torch.Tensor:
    weights = torch.from_numpy(COUNTS[members])
    return combined(rule, models[members], received[members], blocks=1, weights=weights).models["weight"]


def test_the_median_does_not_go_with_weights_for_each_receiver() -> None:
    models, received = updates()
    with pytest.raises(UserError, match="aggregation: Median counts clients alike, the method has weights for each"):
        combined(Median(), models, received, weights=torch.ones(N, 3))


def test_extras_are_combined_too_and_counters_take_the_largest() -> None:
    models, received = updates()
    losses = np.random.default_rng(1).normal(size=(N, 3))
    found = combined(Median(), models, received, extras={"losses": torch.from_numpy(losses)})
    np.testing.assert_allclose(found.extras["losses"][0], np.median(losses, axis=0))
    for rule in (Median(), NormClipping()):
        collector = rule.begin(RoundContext(torch.arange(3), ["weight"]))
        counter = torch.tensor([[4], [9], [6]])
        stack = torch.zeros(3, 1, 2)
        collector.add(Update({"weight": stack, "n": counter}, torch.ones(3), {"weight": stack}), torch.arange(3))
        collector.reduce(Processes())
        assert collector.compute().models["n"].tolist() == [9]


@pytest.mark.parametrize("rule", [Median(), NormClipping(), Mean()], ids=lambda rule: type(rule).__name__)
def test_updates_that_are_not_finite_are_left_out(rule: Aggregation) -> None:
    models, received = updates()
    broken = models.copy()
    broken[2, 0, 1, 1], broken[5] = np.nan, np.inf
    left = [0, 1, 3, 4, 6]
    expected = combined(rule, models[left], received[left], weights=torch.from_numpy(COUNTS[left])).models["weight"]
    np.testing.assert_allclose(combined(rule, broken, received).models["weight"], expected)


def test_the_order_of_clients_and_the_blocks_do_not_matter() -> None:
    models, received = updates()
    for rule, blocks in itertools.product((Median(), MultiKrum(1), NormClipping()), (1, 7)):
        found = combined(rule, models, received, blocks).models["weight"]
        assert torch.equal(found, combined(rule, models, received).models["weight"])
        back = combined(rule, models[::-1].copy(), received, weights=torch.from_numpy(COUNTS[::-1].copy()))
        torch.testing.assert_close(found, back.models["weight"], rtol=1e-12, atol=1e-12)


def test_a_cohort_without_updates_has_no_average() -> None:
    collector = Median().begin(RoundContext(torch.arange(2), ["weight"]))
    collector.reduce(Processes())
    assert collector.compute() is None
    stack = torch.full((2, 1, 3), torch.nan)
    assert collector.add(Update({"weight": stack}, torch.ones(2), {}), torch.arange(2)).tolist() == [False, False]
    collector.reduce(Processes())
    assert collector.compute() is None


def test_multi_krum_needs_more_than_twice_the_faulty_clients() -> None:
    MultiKrum(2).check(7)
    with pytest.raises(UserError, match=r"Multi-Krum with f = 2 .* more than 2 f \+ 2 = 6 clients .* there are 6"):
        MultiKrum(2).check(6)
    with pytest.raises(UserError, match=r"aggregation: expected one of mean, norm_clipping, .* got krum"):
        make_aggregation("krum")
