"""The estimated share of pairs of clients that disagree about labels, beside the known share."""

import numpy as np
import pytest
import torch

from fedem_lightning import Digits, FederatedDataModule, Federation
from fedem_lightning.data.concepts import _excess, concept_difference
from fedem_lightning.data.describe import describe


def federation(groups: np.ndarray, n: int = 120, seed: int = 0) -> Federation:
    """Normal samples around the mean of their class; each group has its own permutation of the labels."""
    rng = np.random.default_rng(seed)
    client = np.repeat(np.arange(len(groups)), n)
    true_class = rng.integers(12, size=len(client))
    x = rng.normal(size=(12, 30))[true_class] + rng.normal(size=(len(client), 30))
    names = np.stack([rng.permutation(12) for _ in range(groups.max() + 1)])
    return FederatedDataModule.from_arrays(x, names[groups[client], true_class], client, n_classes=12).federation


@pytest.mark.parametrize("sizes", [[20], [15, 5], [10, 10], [5, 5, 5, 5]])
def test_groups_of_clients_are_counted(sizes: list[int]) -> None:
    groups = np.repeat(np.arange(len(sizes)), sizes)
    n_pairs = len(groups) * (len(groups) - 1)
    disagree = 1 - sum(size * (size - 1) for size in sizes) / n_pairs
    found = np.mean([concept_difference(federation(groups, seed=seed)) or 0.0 for seed in range(5)])
    assert found == pytest.approx(disagree, abs=0.08)


def test_the_labels_shares_alone_are_no_difference() -> None:
    assert concept_difference(Digits(n_clients=20, alpha=0.5).federation) == pytest.approx(0, abs=0.1)
    assert concept_difference(Digits(n_clients=20, alpha=100.0, n_groups=3).federation) == pytest.approx(0.68, abs=0.06)


def test_the_excess_is_that_of_all_pairs_of_samples() -> None:
    rng = np.random.default_rng(0)
    z, y, client = rng.normal(size=(30, 4)), rng.integers(3, size=30), np.arange(30) % 3
    sums, counts = np.zeros((3, 3, 4)), np.zeros((3, 3))
    np.add.at(sums, (client, y), z)
    np.add.at(counts, (client, y), 1)
    found = _excess(torch.tensor(sums), torch.tensor(counts)).numpy()
    products = z @ z.T
    for s, t in [(0, 1), (1, 2), (2, 0)]:
        pairs = np.outer(client == s, client == t)
        same = y[:, None] == y
        assert found[s, t] == pytest.approx(products[pairs & same].mean() - products[pairs & ~same].mean())


def test_without_classes_there_is_none() -> None:
    rng = np.random.default_rng(0)
    real = FederatedDataModule.from_arrays(
        rng.normal(size=(40, 3)), rng.normal(size=40), np.arange(40) % 4, task="regression"
    )
    assert concept_difference(real.federation) is None
    lonely = federation(np.zeros(1, dtype=int))
    assert concept_difference(lonely) is None
    assert "concept difference" not in describe(lonely)
    assert describe(federation(np.zeros(4, dtype=int)))["concept difference"].startswith("0.0")


def test_of_many_clients_some_are_drawn() -> None:
    groups = np.arange(400) % 2
    assert concept_difference(federation(groups, n=60)) == pytest.approx(0.5, abs=0.15)
