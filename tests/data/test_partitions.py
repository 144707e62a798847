"""Partitions: every sample once (or named as left out), the heterogeneity they promise, the same on every machine."""

import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose

from fedem_lightning import FederatedDataModule, UserError
from fedem_lightning.data.images import Shift
from fedem_lightning.data.partitions import Labels, Partition, dirichlet, iid, natural, pachinko, shards
from fedem_lightning.data.splits import HoldOut

pytestmark = pytest.mark.fast

Y = np.arange(6000) % 20
LABELS = Labels(Y, coarse=Y // 5, client=np.arange(6000) % 30, names=tuple(f"w{t}" for t in range(30)))

PARTITIONS: dict[str, Callable[[int], Partition]] = {
    "natural": lambda seed: natural(LABELS, seed),
    "iid": lambda seed: iid(LABELS, seed, 12),
    "dirichlet": lambda seed: dirichlet(LABELS, seed, 12, 0.4),
    "dirichlet, 3 groups": lambda seed: dirichlet(LABELS, seed, 12, 0.4, n_label_groups=3),
    "pachinko": lambda seed: pachinko(LABELS, seed, 12, 0.4, 10.0),
    "shards": lambda seed: shards(LABELS, seed, 12, 2),
}


@pytest.mark.parametrize("name", PARTITIONS)
def test_every_sample_is_dealt_once(name: str) -> None:
    partition = PARTITIONS[name](0)
    assert partition.client.shape == Y.shape
    assert np.array_equal(np.unique(partition.client), np.arange(len(partition.names)))  # nobody's: none; empty: none
    assert "left_out_samples" not in partition.notes or partition.notes["left_out_samples"] == 0
    assert np.array_equal(partition.client, PARTITIONS[name](0).client)
    assert name == "natural" or not np.array_equal(partition.client, PARTITIONS[name](1).client)


def label_counts(partition: Partition) -> np.ndarray:
    n_clients = len(partition.names)
    return np.bincount(partition.client * 20 + Y, minlength=20 * n_clients).reshape(n_clients, 20)


def test_clients_of_iid_have_equal_sizes() -> None:
    sizes = np.bincount(iid(LABELS, 0, 7).client)
    assert sizes.max() - sizes.min() <= 1


def test_shards_give_few_labels_to_each_client() -> None:
    counts = label_counts(shards(LABELS, 0, 10, shards_per_client=2))
    assert (counts.sum(axis=1) == 600).all()
    assert np.count_nonzero(counts, axis=1).max() <= 2  # 20 shards of 20 labels


def test_grouped_labels_go_together() -> None:
    counts = label_counts(dirichlet(LABELS, 0, 8, 0.1, n_label_groups=2)).astype(float)
    shares = counts / counts.sum(axis=0)  # of each label over clients [T, Y]
    alike = np.abs(shares[:, :, None] - shares[:, None, :]).max(axis=0) < 0.15
    assert sorted(alike.sum(axis=0)) == [10] * 20  # every label is dealt like the other nine of its group


def test_pachinko_deals_equal_sizes_and_coarse_labels_cluster() -> None:
    partition = pachinko(LABELS, 0, 12, alpha=0.1, beta=10.0)
    counts = label_counts(partition)
    assert (counts.sum(axis=1) == 500).all()
    coarse = counts.reshape(12, 4, 5).sum(axis=2)
    assert (coarse[0].max() / 500) > 0.5  # the first client draws freely
    within = counts[0].reshape(4, 5)[coarse[0].argmax()]
    assert within.min() > 0  # beta is large: all fine labels of its main coarse one
    odd = pachinko(LABELS, 0, 11, 0.4, 10.0)
    assert (np.bincount(odd.client[odd.client >= 0]) == 545).all()
    assert odd.notes == {"left_out_samples": 5, "why": "n is no multiple of 11 clients"}


def test_natural_keeps_whole_owners() -> None:
    third = natural(LABELS, 0, 1 / 3)
    assert len(third.names) == 10
    assert third.notes["left_out_clients"] == 20
    assert third.notes["left_out_samples"] == (third.client < 0).sum() == 4000
    for t, name in enumerate(third.names):
        assert np.array_equal(third.client == t, LABELS.client == int(name[1:]))
    assert len(natural(LABELS, 0, 7).names) == 7
    assert natural(LABELS, 0, 7).names != natural(LABELS, 1, 7).names


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: natural(Labels(Y), 0), "needs the client of each sample"),
        (lambda: natural(LABELS, 0, 31), "got 31, but the data has 30"),
        (lambda: made(partition="iid"), "^n_clients"),
        (lambda: made(partition="dirichlet", n_clients=12, alpha=0.0), "^alpha"),
        (lambda: pachinko(Labels(Y), 0, 12, 0.4, 10.0), "needs data with coarse labels"),
        (lambda: shards(LABELS, 0, 4000, 2), "8000 shards of 6000 samples"),
    ],
)
def test_wrong_arguments_are_named(wrong: Callable[[], Partition], message: str) -> None:
    with pytest.raises(UserError, match=message):
        wrong()


def test_every_process_and_machine_deals_alike() -> None:
    """A process hashes strings by a seed of its own; what an earlier one dealt is kept here."""
    dealt = hashlib.sha256(b"".join(PARTITIONS[name](3).client.tobytes() for name in sorted(PARTITIONS)))
    assert dealt.hexdigest().startswith("f310534dba664105")


def made(**options: Any) -> Any:
    return FederatedDataModule.from_arrays(np.zeros((len(Y), 1)), Y, **options)


def dealt_to(client: np.ndarray, n_clients: int) -> Partition:
    return Partition(client, tuple(map(str, range(n_clients))))


@pytest.mark.parametrize(
    ("kind", "n_groups", "change"),
    [("rotation", 4, np.rot90), ("inversion", 2, lambda image, group: 255 - image if group else image)],
)
def test_images_of_groups_are_rotated_by_quarter_turns_or_inverted(kind: Any, n_groups: int, change: Any) -> None:
    rng = np.random.default_rng(0)
    x, client = rng.integers(256, size=(80, 6, 6)).astype(np.uint8), np.arange(80) % 8
    found, y, group = Shift(kind, n_groups).apply(x.copy(), Y[:80], dealt_to(client, 8), 20, seed=0)
    assert np.bincount(group).tolist() == [8 // n_groups] * n_groups
    assert np.array_equal(y, Y[:80])
    for i in range(80):
        assert np.array_equal(found[i], change(x[i], group[client[i]]))


@pytest.mark.parametrize(("share", "sizes"), [(0.0, [20]), (0.3, [16, 2, 2]), (0.5, [14, 3, 3]), (1.0, [7, 7, 6])])
def test_a_share_of_the_clients_is_dealt_to_the_groups(share: float, sizes: list[int]) -> None:
    x, client = np.zeros((40, 6, 6), dtype=np.uint8), np.arange(40) % 20
    group = Shift("labels", 3, share).apply(x, np.arange(40) % 2, dealt_to(client, 20), 2, seed=1)[2]
    assert np.bincount(group).tolist() == sizes
    everyone = Shift("labels", 3).apply(x, np.arange(40) % 2, dealt_to(client, 20), 2, seed=1)[2]
    assert np.array_equal(group, everyone) == (share == 1)


@pytest.mark.parametrize(
    ("shape", "kind", "n_groups", "message"),
    [
        ((8, 6, 6), "rotation", 5, "4 groups at most"),
        ((8, 6, 5), "rotation", 2, "square images"),
        ((8, 6, 6), "labels", 9, "^n_groups"),
    ],
)
def test_impossible_shifts_are_named(shape: tuple[Any, ...], kind: Any, n_groups: int, message: str) -> None:
    x = np.zeros(shape, dtype=np.uint8)
    with pytest.raises(UserError, match=message):
        Shift(kind, n_groups).apply(x, np.arange(8) % 2, dealt_to(np.arange(8), 8), 2, seed=0)


def test_unseen_clients_are_a_random_share() -> None:
    draws = np.stack([HoldOut(0.3, seed=s).seen([*"abcdefghij"]) for s in range(200)])
    assert (draws.sum(axis=1) == 7).all()
    assert_allclose(draws.mean(axis=0), 0.7, atol=0.12)


def test_dirichlet_partition_deals_every_sample_and_alpha_sets_the_skew() -> None:
    y = np.arange(5000) % 10
    skew = {}
    for alpha in (0.1, 100.0):
        client = dirichlet(Labels(y), 0, 10, alpha).client
        counts = np.bincount(client * 10 + y, minlength=100).reshape(10, 10)  # [client, label]
        assert counts.sum() == 5000
        assert counts.sum(axis=1).min() >= 10
        skew[alpha] = (counts.max(axis=1) / counts.sum(axis=1)).mean()
    assert skew[0.1] > 0.4
    assert skew[100.0] < 0.16
    with pytest.raises(UserError, match="5000 samples are too few for 501 clients with 10 each"):
        dirichlet(Labels(y), 0, 501, 0.1)
    with pytest.raises(UserError, match="no Dirichlet"):
        dirichlet(Labels(y), 0, 450, 0.1)


def test_label_permutations_differ_between_groups_only() -> None:
    y, client = np.arange(600) % 10, np.arange(600) % 6
    _, shifted, group = Shift("labels", 3).apply(np.zeros(600), y, Partition(client, tuple("abcdef")), 10, seed=0)
    assert np.bincount(group).tolist() == [2, 2, 2]
    maps = []
    for g in range(3):
        rows = group[client] == g
        table = {a: set(shifted[rows][y[rows] == a]) for a in range(10)}
        assert all(len(images) == 1 for images in table.values())
        maps.append([images.pop() for images in table.values()])
        assert sorted(maps[-1]) == list(range(10))
    assert maps[0] == list(range(10))
    assert len({tuple(m) for m in maps}) == 3
