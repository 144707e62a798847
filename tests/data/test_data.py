from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedem_lightning import FederatedDataModule, Federation, NpzDataModule, SyntheticMixture, UserError
from fedem_lightning.data.tasks import Classification
from helpers.federations import make_data, stored


def members(federation: Federation, client: int, split: str) -> list[int]:
    return sorted(federation.block(torch.tensor([client]), split).index.tolist())


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


def test_consecutive_samples_are_not_copied() -> None:
    data = SyntheticMixture(n_clients=3, dimension=4, test_size=5)
    block = data.federation.block(torch.arange(3), "test")
    assert block.x(torch.float32).data_ptr() == stored(data.federation).x[int(block.index[0])].data_ptr()


GOOD: dict[str, Any] = {"x": np.zeros((4, 2)), "y": np.array([0, 1, 1, 0]), "client": np.array([0, 0, 1, 1])}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"domain": np.array([0, 1, 1])}, r"domain: expected shape \(4,\)"),
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


def test_samples_may_have_domains() -> None:
    """They follow their samples into blocks, parts of a federation and other devices."""
    domain, names = [10, 9, 10, 11], ("9", "10", "11")
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
    data = NpzDataModule(path)
    assert (data.n_clients, data.n_outputs, data.federation.names) == (2, 2, ("Ann", "Bob"))
    assert (data.federation.domains.names, data.federation.task) == (("3", "5"), Classification(2))


def test_femnist_file(data_folder: Callable[[str], Path]) -> None:
    data = NpzDataModule(data_folder("femnist") / "femnist.npz")
    assert (data.n_clients, len(stored(data.federation).y), data.in_shape, data.n_outputs) == (
        250,
        38031,
        (1, 28, 28),
        62,
    )
    assert data.federation.splits["train"].counts().min() >= 1
