"""A user's own arrays and files: the axes of images, and partitions of samples without clients."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from numpy.testing import assert_array_equal

from fedem_lightning import FederatedDataModule, NpzDataModule, TableDataModule, UserError
from fedem_lightning.data.partitions import iid
from fedem_lightning.data.schema import Schema
from fedem_lightning.report.finished_run import read_run
from fedem_lightning.settings.keys import dataset_name
from helpers.federations import stored
from helpers.runs import run_small

RNG = np.random.default_rng(0)
N = 60
IMAGES = RNG.integers(256, size=(N, 8, 7, 3)).astype(np.uint8)
FIRST = np.moveaxis(IMAGES, -1, 1).copy()
Y, CLIENT = np.arange(N) % 3, np.arange(N) % 4
TABLE = pd.DataFrame({"a": RNG.normal(size=N), "b": RNG.normal(size=N), "y": np.where(RNG.random(N) < 0.5, "f", "g")})


def test_both_layouts_of_images_give_the_same_federation() -> None:
    last, first = (FederatedDataModule.from_arrays(x, Y, CLIENT).federation for x in (IMAGES, FIRST))
    assert first.digest() == last.digest()
    assert first.in_shape == last.in_shape == (3, 8, 7)
    block = torch.arange(4)
    assert torch.equal(first.block(block, "train").x(torch.float32), last.block(block, "train").x(torch.float32))
    assert "images 8 x 7 with 3 channels" in str(first)


def test_a_trained_model_takes_both_layouts() -> None:
    schema = Schema.of(FederatedDataModule.from_arrays(FIRST, Y, CLIENT).federation)
    found = [schema.samples_of(x).features(torch.arange(N), torch.float32) for x in (FIRST, IMAGES)]
    assert torch.equal(*found)
    with pytest.raises(
        UserError, match=r"^x: expected shape \[n, 8, 7, 3\] or \[n, 3, 8, 7\] as in training, got \[3, 8, 7\]$"
    ):
        schema.samples_of(FIRST[0])


def test_the_run_says_how_images_are_read() -> None:
    for shape, n in (((N, 1, 8, 7), 1), ((N, 8, 7), 1), ((N, 8, 7, 5), 5)):  # neither axis is 1 or 3: the last
        data = FederatedDataModule.from_arrays(np.zeros(shape, np.uint8), Y, CLIENT)
        assert data.in_shape == (n, 8, 7)
        assert f"images 8 x 7 with {n} channel" in data.federation.notes["images"]


def test_images_with_channels_at_either_end_are_refused() -> None:
    with pytest.raises(UserError, match=r"axes 1 and 3 of uint8 images \[60, 3, 8, 3\] may both be the channels; give"):
        FederatedDataModule.from_arrays(np.zeros((N, 3, 8, 3), np.uint8), Y, CLIENT)


def test_uint8_images_are_refused_by_a_model_of_floats() -> None:
    schema = Schema.of(FederatedDataModule.from_arrays(FIRST / np.float32(255), Y, CLIENT).federation)
    with pytest.raises(UserError, match=r"^x: expected floats as in training, got uint8 images$"):
        schema.samples_of(FIRST)


def test_arrays_files_and_tables_are_dealt_alike(tmp_path: Path) -> None:
    x, y = TABLE[["a", "b"]].to_numpy(), TABLE["y"].to_numpy().astype(str)
    np.savez(tmp_path / "mine.npz", x=x, y=y)
    TABLE.to_csv(tmp_path / "mine.csv", index=False)
    options: dict[str, Any] = {"partition": "dirichlet", "n_clients": 4, "min_samples": 2, "seed": 3}
    made = [
        FederatedDataModule.from_arrays(x, y, **options),
        NpzDataModule(tmp_path / "mine.npz", **options),
        TableDataModule(tmp_path / "mine.csv", "y", **options),
    ]
    for data in made:
        federation = data.federation
        assert federation.n_clients == 4
        assert sum(len(split) for split in federation.splits.values()) == N
        assert federation.notes["partition"] == "dirichlet"
        for split, other in zip(federation.splits.values(), made[0].federation.splits.values(), strict=True):
            assert_array_equal(split.fingerprint()[0], other.fingerprint()[0])


def test_functions_deal_arrays_and_pachinko_does_not() -> None:
    x = RNG.normal(size=(N, 2))
    with pytest.raises(UserError, match="pachinko needs data with coarse labels"):
        FederatedDataModule.from_arrays(x, Y, partition="pachinko", n_clients=3)
    assert FederatedDataModule.from_arrays(x, Y, partition=iid, n_clients=6).n_clients == 6


def test_natural_keeps_a_share_of_the_clients(tmp_path: Path) -> None:
    TABLE.assign(c=CLIENT).to_csv(tmp_path / "mine.csv", index=False)
    data = TableDataModule(tmp_path / "mine.csv", "y", "c", n_clients=2)
    assert data.n_clients == 2
    kept = TABLE[np.isin(CLIENT, [int(name) for name in data.federation.names])]
    assert data.federation.notes["left_out_samples"] == N - len(kept)
    train = stored(data.federation).x[data.federation.block(torch.arange(2), "train").index]
    assert train.mean(dim=0).abs().max() < 1e-6  # standardised by the clients that are kept


@pytest.mark.parametrize("kind", [np.int8, np.uint16, np.uint32])
def test_whole_numbers_stay_whole(kind: Any) -> None:
    x: np.ndarray = np.arange(2 * N).reshape(N, 2).astype(kind)
    samples: Any = FederatedDataModule.from_arrays(x, Y, CLIENT).federation.samples
    found = samples.features(torch.arange(N), torch.float32)
    assert samples.x.element_size() == {np.uint16: 4, np.uint32: 8}.get(kind, x.itemsize)  # torch computes with signed
    assert (found.dtype, found.tolist()) == (torch.int64, x.tolist())


def test_a_run_is_called_by_its_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez(tmp_path / "our.shops.npz", x=RNG.normal(size=(N, 2)), y=Y, client=CLIENT)
    keys = ["dataset=npz", f"dataset.path={tmp_path / 'our.shops.npz'}"]
    results = run_small(tmp_path / "run", tmp_path, *keys)
    assert results["dataset"] == json.loads((tmp_path / "run" / "results.json").read_text())["dataset"] == "our.shops"
    assert " on our.shops (linear)" in capsys.readouterr().out
    older = json.loads((tmp_path / "run" / "results.json").read_text()) | {"dataset": "npz"}
    (tmp_path / "run" / "results.json").write_text(json.dumps(older))
    assert read_run(tmp_path / "run").results["dataset"] == "our.shops"
    for choice, source, name in (
        ("table", "a/mine.CSV", "mine"),
        ("pfllib", "PFLlib/dataset/MNIST", "MNIST"),
        ("hub", "user/reviews-1.5", "reviews-1.5"),
        ("npz", "femnist.npz", "femnist (npz)"),  # it is not the known one
        ("femnist", "femnist.npz", "femnist"),
        ("torch", None, "torch"),
    ):
        assert dataset_name(choice, source) == name
