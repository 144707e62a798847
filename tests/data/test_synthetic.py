"""Synthetic data: splits share no sample, and a client is a function of (seed, client)."""

from itertools import combinations

import numpy as np
import pytest
import torch

from fedem_lightning import SyntheticMixture

pytestmark = pytest.mark.fast


def split_of(data: SyntheticMixture, split: str, client: int) -> tuple[np.ndarray, np.ndarray]:
    block = data.federation.block(torch.tensor([client]), split)
    return block.x(torch.float32).numpy(), block.y().numpy()


@pytest.mark.parametrize("one_hot", [False, True])
def test_no_sample_is_in_two_splits_or_twice_in_one(one_hot: bool) -> None:
    data = SyntheticMixture(n_clients=4, dimension=6, test_size=80, one_hot=one_hot)
    everybodys = []
    for t in range(4):
        found = {split: split_of(data, split, t)[0] for split in ("train", "val", "test")}
        n = len(found["train"])
        assert [len(found["val"]), len(found["test"])] == [n // 3, 80]
        rows = {split: {x.tobytes() for x in samples} for split, samples in found.items()}
        for split, samples in found.items():
            assert len(rows[split]) == len(samples)
        for one, other in combinations(rows.values(), 2):
            assert not one & other
        everybodys.append(set.union(*rows.values()))
    for one, other in combinations(everybodys, 2):  # nor do clients share samples
        assert not one & other


@pytest.mark.parametrize("one_hot", [False, True])
def test_a_client_does_not_depend_on_how_many_there_are(one_hot: bool) -> None:
    few, many = (SyntheticMixture(n_clients=t, dimension=5, test_size=20, one_hot=one_hot, seed=2) for t in (3, 7))
    np.testing.assert_array_equal(few.federation.truth["theta"], many.federation.truth["theta"])
    for name in ("pi", "bayes_accuracy"):
        np.testing.assert_array_equal(few.federation.truth[name], many.federation.truth[name][:3])
    for split in ("train", "val", "test"):
        assert torch.equal(few.federation.splits[split].counts(), many.federation.splits[split].counts()[:3])
        for t in range(3):
            for one, other in zip(split_of(few, split, t), split_of(many, split, t), strict=True):
                np.testing.assert_array_equal(one, other)


def test_clients_and_seeds_differ() -> None:
    data, other = (SyntheticMixture(n_clients=5, dimension=5, test_size=20, seed=seed) for seed in (0, 1))
    for name in ("pi", "theta"):
        truth = data.federation.truth[name]
        assert len({values.tobytes() for values in truth}) == len(truth)
        assert not np.isin(truth, other.federation.truth[name]).any()
    assert len(set(data.federation.splits["train"].counts().tolist())) > 1
    assert not np.isin(split_of(data, "test", 0)[0], split_of(other, "test", 0)[0]).all(axis=1).any()
