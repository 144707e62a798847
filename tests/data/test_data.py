from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from fedem_lightning import Digits, FederatedDataModule, Federation, NpzDataModule, SyntheticMixture, UserError
from fedem_lightning.data.partitions import Labels, Partition, dirichlet
from fedem_lightning.data.shifts import Shift
from fedem_lightning.data.splits import HoldOut, Splitting
from fedem_lightning.data.synthetic import bayes_probability
from fedem_lightning.tasks import Classification
from helpers.federations import make_data, split_of, stored


def members(federation: Federation, client: int, split: str) -> list[int]:
    return sorted(federation.block(torch.tensor([client]), split).index.tolist())


# --- federation -------------------------------------------------------------------------------------------------------


def test_every_sample_is_in_one_split_of_its_client() -> None:
    rng = np.random.default_rng(0)
    client = rng.integers(5, size=100)
    data = FederatedDataModule.from_arrays(rng.normal(size=(100, 2)), rng.integers(2, size=100), client)
    for t in range(5):
        parts = [members(data.federation, t, split) for split in ("train", "val", "test")]
        assert sorted(i for part in parts for i in part) == np.flatnonzero(client == t).tolist()
        n = int((client == t).sum())
        assert [len(p) for p in parts] == [n - 2 * int(0.2 * n), int(0.2 * n), int(0.2 * n)]


def test_blocks_hold_what_numpy_selects() -> None:
    data = make_data(sizes=(7, 12, 3, 20))
    federation = data.federation
    block = federation.block(torch.tensor([3, 0]), "train")
    assert torch.equal(block.counts(), torch.tensor([12, 5]))
    assert torch.equal(block.owner, torch.tensor([0] * 12 + [1] * 5))
    assert torch.equal(block.x(torch.float64), stored(federation).x[block.index])
    assert torch.equal(block.y(), stored(federation).y[block.index])
    assert members(federation, 3, "train") == sorted(block.index[:12].tolist())


def test_pieces_put_together_are_the_block() -> None:
    data = FederatedDataModule.from_arrays(np.random.rand(1000, 4096), np.zeros(1000, int), np.arange(1000) % 3)
    block = data.federation.block(torch.arange(3), "train")
    pieces = list(block.pieces())
    assert len(pieces) == 3
    assert torch.equal(torch.cat([p.index for p in pieces]), block.index)
    assert torch.equal(torch.cat([p.owner for p in pieces]), block.owner)


@pytest.mark.parametrize(
    ("shape", "expected"), [((6, 28, 28), (1, 28, 28)), ((6, 32, 30, 3), (3, 32, 30)), ((6, 5), (5,))]
)
def test_bytes_are_images(shape: tuple[Any, ...], expected: tuple[Any, ...]) -> None:
    x = np.random.default_rng(0).integers(256, size=shape).astype(np.uint8)
    data = FederatedDataModule.from_arrays(x, np.arange(6) % 2, np.zeros(6, int), fractions=(1, 0, 0))
    assert data.in_shape == expected
    assert stored(data.federation).x.dtype == torch.uint8
    block = data.federation.block(torch.tensor([0]), "train")
    found, image = block.x(torch.float64).numpy(), x[block.index] / 255
    assert_allclose(found, np.moveaxis(image, -1, 1) if len(shape) == 4 else image.reshape(found.shape))


def test_consecutive_samples_are_not_copied() -> None:
    data = SyntheticMixture(n_clients=3, dimension=4, test_size=5)
    block = data.federation.block(torch.arange(3), "test")
    assert block.x(torch.float32).data_ptr() == stored(data.federation).x[int(block.index[0])].data_ptr()


def test_digest_tells_partitions_apart() -> None:
    assert make_data().federation.digest() == make_data().federation.digest()
    digests = {make_data(seed=s).federation.digest() for s in range(3)}
    assert len(digests) == 3
    # the same on every machine
    assert Digits(n_clients=5, seed=3).federation.digest().startswith("580f4ce82e81a7ea")


# --- splits and partitions --------------------------------------------------------------------------------------------


def test_a_clients_split_does_not_depend_on_who_is_unseen() -> None:
    everyone, some = make_data(sizes=(30,) * 5), make_data(sizes=(30,) * 5, unseen_fraction=0.4)
    assert int((~some.federation.seen).sum()) == 2
    for split in ("train", "val", "test"):
        assert torch.equal(split_of(everyone.federation, split).index, split_of(some.federation, split).index)


def test_split_codes_follow_the_fractions() -> None:
    codes = Splitting(fractions=(0.5, 0.3, 0.2)).split(np.zeros(1000, int))
    assert np.bincount(codes).tolist() == [500, 300, 200]
    assert abs(np.flatnonzero(codes == 2).mean() - 500) < 60  # spread over all positions


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
    assert np.array_equal(client, dirichlet(Labels(y), 0, 10, 100.0).client)
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


# --- synthetic --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def mixture() -> SyntheticMixture:
    return SyntheticMixture(n_clients=200, n_components=3, dimension=20, test_size=200, seed=1)


def test_synthetic_sizes_follow_the_paper(mixture: SyntheticMixture) -> None:
    train, val, test = (mixture.federation.splits[s].counts() for s in ("train", "val", "test"))
    assert train.min() >= 50
    assert train.max() <= 1000
    # n_t = 50 + floor(LogNormal(4, 2)): the median of LogNormal(4, 2) is e^4 = 54.6
    assert 85 <= train.float().median() <= 130
    assert torch.equal(val, train // 3)
    assert (test == 200).all()


def test_synthetic_draws_follow_the_paper(mixture: SyntheticMixture) -> None:
    federation, truth = mixture.federation, mixture.federation.truth
    assert_allclose(truth["pi"].sum(axis=1), 1)
    # Dirichlet(0.4, 0.4, 0.4): mean 1/3, variance (1/3)(2/3) / (1.2 + 1)
    assert_allclose(truth["pi"].mean(axis=0), 1 / 3, atol=0.07)
    assert_allclose(truth["pi"].var(axis=0), 2 / 9 / 2.2, atol=0.025)
    x = stored(federation).x.numpy()
    assert np.abs(x).max() <= 1
    assert_allclose([x.mean(), x.var()], [0, 1 / 3], atol=0.005)
    assert np.abs(truth["theta"]).max() <= 1
    # labels: p(y = 1 | x, t) is what bayes_probability says, in every decile of it
    block = federation.block(torch.arange(200), "test")
    scores = block.x(torch.float32).numpy() @ truth["theta"].T
    pi = truth["pi"][block.owner.numpy()]
    p = np.concatenate(
        [bayes_probability(scores[pi_rows], pi[pi_rows[0]], 1.0) for pi_rows in np.split(np.arange(40000), 200)]
    )
    y = block.y().numpy()
    for low in np.arange(0, 1, 0.1):
        inside = (p >= low) & (p < low + 0.1)
        assert y[inside].mean() == pytest.approx(p[inside].mean(), abs=0.03)
    right = ((p > 0.5) == y).reshape(200, 200).mean(axis=1)
    assert_allclose(truth["bayes_accuracy"], right)


def test_bayes_probability_is_the_expectation_over_the_noise() -> None:
    rng = np.random.default_rng(0)
    scores, pi = np.array([[1.5, -2.0]]), np.array([0.3, 0.7])
    eps = rng.normal(size=(400_000, 1))
    sampled = (1 / (1 + np.exp(-(scores + eps)))).mean(axis=0) @ pi
    assert bayes_probability(scores, pi, noise=1.0)[0] == pytest.approx(sampled, abs=2e-3)
    assert bayes_probability(scores, pi, noise=0.0)[0] == pytest.approx(pi @ (1 / (1 + np.exp(-scores[0]))))


@pytest.mark.parametrize("one_hot", [False, True])
def test_a_synthetic_client_does_not_depend_on_how_many_there_are(one_hot: bool) -> None:
    options: dict[str, Any] = {"dimension": 3, "test_size": 4, "one_hot": one_hot}
    few, many = (SyntheticMixture(n_clients=t, **options).federation for t in (2, 5))
    assert_allclose(many.truth["theta"], few.truth["theta"], rtol=0)
    assert_allclose(many.truth["pi"][:2], few.truth["pi"], rtol=0)
    first = torch.arange(2)
    for split in ("train", "val", "test"):
        a, b = (federation.block(first, split) for federation in (few, many))
        assert torch.equal(a.counts(), b.counts())
        assert torch.equal(a.x(torch.float32), b.x(torch.float32))
        assert torch.equal(a.y(), b.y())
    other = SyntheticMixture(n_clients=2, seed=1, **options).federation.block(first[:1], "test")
    assert not torch.equal(other.x(torch.float32), few.block(first[:1], "test").x(torch.float32))
    if one_hot:
        assert sorted(np.unique(many.truth["pi"])) == [0, 1]


@pytest.mark.parametrize(
    "options",
    [{"n_clients": 0}, {"n_components": 0}, {"dimension": 1.5}, {"alpha": 0}, {"noise": -1}, {"test_size": -1}],
)
def test_wrong_synthetic_options_are_named(options: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=rf"^SyntheticMixture\.{next(iter(options))}"):
        SyntheticMixture(**options)


def test_digits_are_real_images() -> None:
    data = Digits(n_clients=8, alpha=0.5, n_groups=2)
    federation = data.federation
    assert (len(stored(federation).y), data.in_shape, data.n_outputs) == (1797, (1, 8, 8), 10)
    assert stored(federation).x.max() == 255
    assert np.bincount(federation.truth["group"]).tolist() == [4, 4]
    assert min(federation.splits["train"].counts()) >= 6


# --- a user's arrays --------------------------------------------------------------------------------------------------

GOOD: dict[str, Any] = {"x": np.zeros((4, 2)), "y": np.array([0, 1, 1, 0]), "client": np.array([0, 0, 1, 1])}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": np.zeros((0, 2)), "y": np.zeros(0, int), "client": np.zeros(0, int)}, "x: expected at least one sample"),
        ({"y": np.array([0, 1, 7, 0]), "n_classes": 3}, "y: label 7 at sample 2 is outside the 3 classes 0..2"),
        ({"y": np.array([0, -1, 1, 0])}, "y: label -1 at sample 1 is outside"),
        ({"n_classes": 1}, "n_classes: expected "),
        ({"client": np.array([0.5, 1, 1, 0])}, "client: expected whole numbers or strings"),
        ({"split": np.array([0, 0, 1, 2])}, "client 1 has no training sample"),
        ({"domain": np.array([0, 1, 1])}, r"domain: expected shape \(4,\)"),
        ({"domain": np.array([0, 1, 1, 0.5])}, "domain: expected whole numbers or strings"),
        ({"label_smoothing": 1.0}, "label_smoothing: expected "),
        ({"label_smoothing": 0.1, "task": "binary"}, "label_smoothing: only a classification has it, got 0.1"),
        ({"fractions": (0.5, 0.2, 0.2)}, "fractions"),
        ({"unseen_fraction": 1.0}, "unseen_fraction"),
    ],
)
def test_wrong_arrays_are_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        FederatedDataModule.from_arrays(**{**GOOD, **change})


def test_arrays_may_come_with_split_and_names() -> None:
    split = np.array(["train", "test", "val", "train"])
    data = FederatedDataModule.from_arrays(**{**GOOD, "client": np.array(["b", "b", "a", "a"])}, split=split)
    assert data.federation.names == ("a", "b")
    assert members(data.federation, 0, "train") == [3]
    assert members(data.federation, 1, "test") == [1]
    listed: Any = ["Ann", "Bob"]
    named = FederatedDataModule.from_arrays(**GOOD, names=listed, fractions=(1, 0, 0))
    assert named.federation.names == ("Ann", "Bob")


@pytest.mark.parametrize(
    ("domain", "names"), [(["b", "a", "b", "c"], ("a", "b", "c")), ([10, 9, 10, 11], ("9", "10", "11"))]
)
def test_samples_may_have_domains(domain: list[Any], names: tuple[Any, ...]) -> None:
    """They follow their samples into blocks, parts of a federation and other devices."""
    data = FederatedDataModule.from_arrays(**GOOD, domain=np.array(domain), fractions=(1, 0, 0))
    federation, clients = data.federation, torch.tensor([1, 0])
    assert federation.domains.names == names
    for f in (federation, federation.with_part(torch.tensor([1]), 1.0, seed=0)):
        block = f.block(clients, "train")
        assert [names[i] for i in block.domain()] == [str(domain[i]) for i in block.index]
        assert torch.equal(torch.cat([piece.domain() for piece in block.pieces()]), block.domain())
    moved = federation.to("meta")
    assert (moved.domains.names, moved.domains.of_sample.device.type) == (names, "meta")
    assert (moved.names, moved.task, federation.device.type) == (federation.names, federation.task, "cpu")
    bare = FederatedDataModule.from_arrays(**GOOD, fractions=(1, 0, 0)).federation
    assert bare.domains is None
    assert bare.digest() != federation.digest()


def test_npz_files_read_back(tmp_path: Path) -> None:
    path = tmp_path / "mine.npz"
    np.savez(path, **GOOD, client_names=np.array(["Ann", "Bob"]), domain=np.array([3, 3, 5, 5]))
    data = NpzDataModule(path, label_smoothing=0.1)
    assert (data.n_clients, data.n_outputs, data.federation.names) == (2, 2, ("Ann", "Bob"))
    assert (data.federation.domains.names, data.federation.task) == (("3", "5"), Classification(2, label_smoothing=0.1))


@pytest.mark.parametrize("task", ["classification", "binary", "regression"])
def test_labels_that_are_signs(task: Any, tmp_path: Path) -> None:
    for number, y in enumerate(([-1, 1, -1, 1], [-1.0, 1.0, 1.0, 1.0], [1, 1, 1, 1], [-1, 2, 0, 1])):
        np.savez(tmp_path / "mine.npz", **{**GOOD, "y": np.array(y)})
        if task == "regression" or number == 2:
            NpzDataModule(tmp_path / "mine.npz", task=task)
        else:
            expected = r"^y: expected classes 0..K-1, got -1 and 1; use \(y \+ 1\) // 2$" if number < 2 else "outside"
            with pytest.raises(UserError, match=expected):
                NpzDataModule(tmp_path / "mine.npz", task=task)
            with pytest.raises(UserError, match=expected):
                FederatedDataModule.from_arrays(GOOD["x"], np.array(y), GOOD["client"], task=task)


def test_femnist_file(data_folder: Callable[[str], Path]) -> None:
    data = NpzDataModule(data_folder("femnist") / "femnist.npz")
    assert (data.n_clients, len(stored(data.federation).y), data.in_shape, data.n_outputs) == (
        250,
        38031,
        (1, 28, 28),
        62,
    )
    assert data.federation.splits["train"].counts().min() >= 1
