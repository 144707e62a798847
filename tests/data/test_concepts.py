"""The estimated share of pairs of clients that disagree about labels, beside the known share."""

import numpy as np
import pytest
import torch

from fedem_lightning import Digits, FederatedDataModule, Federation
from fedem_lightning.data.concepts import PERMUTATIONS, _agreement, concept_difference
from fedem_lightning.data.describe import describe


def federation(groups: np.ndarray, n: int = 120, seed: int = 0) -> Federation:
    """Normal samples around the mean of their class; each group has its own permutation of the labels."""
    rng = np.random.default_rng(seed)
    client = np.repeat(np.arange(len(groups)), n)
    true_class = rng.integers(12, size=len(client))
    x = rng.normal(size=(12, 30))[true_class] + rng.normal(size=(len(client), 30))
    names = np.stack([rng.permutation(12) for _ in range(groups.max() + 1)])
    return FederatedDataModule.from_arrays(x, names[groups[client], true_class], client, n_classes=12).federation


def hospitals(rng: np.random.Generator, flipped: bool, n_clients: int = 12) -> Federation:
    """The tutorial's table: two labels; with age the illness grows in one half of the hospitals and falls in the other.

    Args:
        rng: of the samples.
        flipped: False: it grows in all.
        n_clients: number of hospitals.

    """
    client = np.repeat(np.arange(n_clients), 60)
    age, pressure = rng.normal(0, 1, size=(2, len(client)))
    sex = rng.integers(2, size=len(client))
    slope = (-1.0) ** client if flipped else np.ones(len(client))
    ill = 2 * slope * age + sex + rng.logistic(size=len(client)) > 0
    x = np.stack([age, pressure, sex == 0, sex == 1], axis=1)
    return FederatedDataModule.from_arrays(x, ill.astype(int), client, n_classes=2).federation


def share(found: Federation) -> float:
    difference = concept_difference(found)
    assert difference is not None
    return difference.share


@pytest.mark.parametrize("sizes", [[20], [15, 5], [10, 10], [5, 5, 5, 5]])
def test_groups_of_clients_are_counted(sizes: list[int]) -> None:
    groups = np.repeat(np.arange(len(sizes)), sizes)
    n_pairs = len(groups) * (len(groups) - 1)
    disagree = 1 - sum(size * (size - 1) for size in sizes) / n_pairs
    found = np.mean([share(federation(groups, seed=seed)) for seed in range(5)])
    assert found == pytest.approx(disagree, abs=0.08)


def test_two_groups_with_exchanged_labels_are_found() -> None:
    found = [concept_difference(hospitals(np.random.default_rng(seed), flipped=True)) for seed in range(5)]
    assert [difference is not None and difference.p <= 0.05 for difference in found] == [True] * 5
    for difference in found:
        assert difference is not None
        assert difference.share == pytest.approx(6 / 11, abs=0.08)
        assert str(difference).startswith("0.5")


def false_alarms(n: int) -> int:
    """In how many of n federations of clients that are alike a difference is found."""
    found = [concept_difference(hospitals(np.random.default_rng(seed), False, 6)) for seed in range(n)]
    assert all(str(difference).startswith("cannot tell") for difference in found if difference and difference.p > 0.05)
    return sum(difference is not None and difference.p <= 0.05 for difference in found)


def test_clients_that_are_alike_seldom_differ() -> None:
    assert false_alarms(12) <= 3  # 99.8 % of simulations


@pytest.mark.slow
def test_clients_that_are_alike_differ_in_one_of_twenty_draws() -> None:
    found = false_alarms(400)
    print(f"{found} of 400")
    assert found <= 35  # 99.9 % of simulations


def test_the_labels_shares_alone_are_no_difference() -> None:
    alike = concept_difference(Digits(n_clients=20, alpha=0.5).federation)
    assert alike is not None
    assert alike.share == pytest.approx(0, abs=0.1)
    assert alike.noise < 0.2
    assert share(Digits(n_clients=20, alpha=100.0, n_groups=3).federation) == pytest.approx(0.68, abs=0.08)


def test_the_agreement_is_that_of_all_pairs_of_labels() -> None:
    rng = np.random.default_rng(0)
    z, y, client = rng.normal(size=(60, 4)), rng.integers(3, size=60), np.arange(60) % 3
    known = torch.ones(3, 3, dtype=torch.float64)
    found, own = _agreement(torch.tensor(z), torch.tensor(client * 3 + y), known)
    mean = np.array([[z[(client == t) & (y == label)].mean(axis=0) for label in range(3)] for t in range(3)])
    pairs = [(0, 1), (0, 2), (1, 2)]
    for s, t in pairs:
        expected = sum((mean[s, i] - mean[s, j]) @ (mean[t, i] - mean[t, j]) for i, j in pairs) / 6
        assert found[s, t] == found[t, s] == pytest.approx(expected)
    cells = [z[(client == 0) & (y == label)] for label in range(3)]
    square = [((c @ c.T).sum() - (c**2).sum()) / (len(c) * (len(c) - 1)) for c in cells]  # of pairs of other samples
    expected = sum(square[i] + square[j] - 2 * mean[0, i] @ mean[0, j] for i, j in pairs) / 6
    assert own[0, 1] == own[0, 2] == pytest.approx(expected)


def test_without_classes_there_is_none() -> None:
    rng = np.random.default_rng(0)
    real = FederatedDataModule.from_arrays(
        rng.normal(size=(40, 3)), rng.normal(size=40), np.arange(40) % 4, task="regression"
    )
    assert concept_difference(real.federation) is None
    lonely = federation(np.zeros(1, dtype=int))
    assert concept_difference(lonely) is None
    assert "concept difference" not in describe(lonely)
    assert describe(federation(np.zeros(4, dtype=int)))["concept difference"].startswith("cannot tell (p = ")
    label = np.arange(80) % 2
    disjoint = FederatedDataModule.from_arrays(rng.normal(size=(80, 3)), label, label, n_classes=2).federation
    assert "two samples each of the same two labels" in str(concept_difference(disjoint))


def test_of_many_clients_some_are_drawn() -> None:
    groups = np.arange(400) % 2
    found = concept_difference(federation(groups, n=60))
    assert found is not None
    assert found.share == pytest.approx(0.5, abs=0.15)
    assert found.p == 1 / (1 + PERMUTATIONS)
