"""DATA of the commands: every kind of file gives the same rows, and what does not fit is named."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from fedem_lightning import FederatedDataModule, Linear, TableDataModule, UserError, load
from fedem_lightning.data.datamodule import ARRAYS
from fedem_lightning.data.formats import read_npz
from fedem_lightning.data.samples import Arrays
from fedem_lightning.data.schema import Schema
from fedem_lightning.models.personal_models import ClientModel
from fedem_lightning.serving.rows import ClientRows, read_rows
from helpers.serving import FEATURES


@pytest.fixture(scope="module")
def schema(place: Path) -> Schema:
    found = load(place / "fedem").schema
    assert found is not None
    return found


def x_of(rows: ClientRows) -> torch.Tensor:
    return rows.samples.features(torch.arange(len(rows)), torch.float32)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_table_has_the_rows_of_the_array(kind: str, place: Path, schema: Schema, tmp_path: Path) -> None:
    table, path = pd.read_csv(place / "unseen.csv").astype(dict.fromkeys(FEATURES, "float32")), tmp_path / f"t.{kind}"
    write: dict[str, Callable[[], Any]] = {
        "csv": lambda: table.to_csv(path, index=False),
        "parquet": lambda: table.astype({"client": "category"}).to_parquet(path),
    }
    write[kind]()
    rows, wanted = (read_rows(p, schema, labelled=True) for p in (path, place / "unseen.npz"))
    assert torch.equal(x_of(rows), x_of(wanted))
    assert isinstance(rows.samples, Arrays)
    assert isinstance(wanted.samples, Arrays)
    assert torch.equal(rows.samples.y, wanted.samples.y)
    assert rows.names == wanted.names
    assert (rows.client == wanted.client).all()
    assert (rows.codes() == wanted.codes()).all()


def test_clients_without_rows_are_left_out_and_rows_keep_their_order(schema: Schema, tmp_path: Path) -> None:
    names = np.array(["new b", "nobody", "clinic 3", "new a"])
    client = np.array([3, 0, 3, 2, 0])
    np.savez(tmp_path / "d.npz", x=np.arange(20.0).reshape(5, 4), client=client, names=names)
    rows = read_rows(tmp_path / "d.npz", schema)
    assert [rows.names[k] for k in rows.client] == names[client].tolist()
    assert rows.names[0] == "clinic 3"  # the run's client comes first
    assert rows.split is None
    assert torch.equal(x_of(rows)[:, 0], torch.tensor([0.0, 4.0, 8.0, 12.0, 16.0]))


def test_a_table_of_training_is_transformed(tmp_path: Path) -> None:
    """By its own features, columns and classes; other columns may be there, and `split` is a feature here."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"site": rng.choice(["p", "q"], 40), "ill": rng.random(40) < 0.5, "split": rng.random(40)})
    table["sex"] = rng.choice(["f", "m"], 40)
    table.to_csv(tmp_path / "t.csv", index=False)
    data = TableDataModule(tmp_path / "t.csv", label="ill", client="site", split=None)
    trained = Schema.of(data.federation)
    new = table[["sex", "site", "split", "ill"]].iloc[::-1].assign(note="-")
    new.to_parquet(tmp_path / "new.parquet", index=False)
    rows = read_rows(tmp_path / "new.parquet", trained, labelled=True)
    everything = torch.arange(40)
    wanted = data.federation.samples
    assert torch.equal(x_of(rows), wanted.features(everything.flip(0), torch.float32))
    assert torch.equal(rows.samples.labels(everything), wanted.labels(everything.flip(0)))
    assert rows.names == ("p", "q")
    assert rows.split is None
    new.assign(ill=None).to_parquet(tmp_path / "new.parquet", index=False)
    assert len(read_rows(tmp_path / "new.parquet", trained)) == 40  # labels may be unknown where nobody asks


def test_clients_predict_rows_with_names(schema: Schema, tmp_path: Path) -> None:
    frame = pd.DataFrame({"hospital": ["a", "b"] * 20, "age": np.arange(40), "sex": ["f", "f", "m", "m"] * 10})
    frame.assign(y=np.arange(40) % 2).to_csv(tmp_path / "t.csv", index=False)
    of_table = Schema.of(TableDataModule(tmp_path / "t.csv", "y", "hospital").federation)
    model = ClientModel([Linear((3,), 2)], torch.ones(1), of_table, "a")
    wanted, others = model.predict(frame), frame[["sex", "age"]]  # without clients, in another order
    assert model.predict(others).tolist() == wanted.tolist()
    for row in ({"sex": "f", "age": 0}, {"age": 0.0, "sex": "f", "hospital": "a"}):
        np.testing.assert_allclose(model.predict(row), wanted[:1], rtol=1e-6)
    for given, line in (
        ({"age": 3}, "column 'sex': the table has none of this name"),
        (
            [[1.0, 0.0, 1.0]],
            "x: expected a DataFrame, or a dictionary of one row",
        ),
    ):
        with pytest.raises(UserError, match=f"^{line}"):
            model.predict(given)
    np.savez(tmp_path / "t.npz", x=np.ones((2, 3)), client=["a", "b"])
    with pytest.raises(UserError, match=r"^DATA: the model trained on a table; expected a .csv or .parquet file"):
        read_rows(tmp_path / "t.npz", of_table)
    vectors = pd.DataFrame(np.arange(8.0).reshape(2, 4), columns=FEATURES)
    of_vectors = ClientModel([Linear((4,), 3)], torch.ones(1), schema, "a")
    wanted = of_vectors.predict(vectors.to_numpy())
    assert of_vectors.predict(vectors.assign(client="a", y=1)).tolist() == wanted.tolist()
    assert of_vectors.predict(vectors.iloc[[1]]).tolist() == wanted[1:].tolist()


def test_the_split_of_training_is_that_of_new_rows(tmp_path: Path) -> None:
    """Under the name that its column had there: its test rows are scored, not all rows."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"client": ["p", "q"] * 20, "y": [0, 1, 1, 0] * 10, "a": rng.random(40)})
    table["part"] = ["train"] * 30 + ["test"] * 10
    table.to_csv(tmp_path / "t.csv", index=False)
    data = TableDataModule(tmp_path / "t.csv", "y", "client", split="part")
    split = read_rows(tmp_path / "t.csv", Schema.of(data.federation), labelled=True).split
    assert split is not None
    assert split.tolist() == [0] * 30 + [2] * 10


def test_labels_are_classes_by_name(tmp_path: Path) -> None:
    words = np.array(["ill", "well", "ill", "well"])
    data = FederatedDataModule.from_arrays(np.eye(4), words, np.zeros(4, dtype=int))
    trained = Schema.of(data.federation)
    frame = pd.DataFrame({**dict.fromkeys("abcd", 1.0), "client": 7, "y": ["well", "ill"]})
    frame.to_csv(tmp_path / "t.csv", index=False)
    rows = read_rows(tmp_path / "t.csv", trained, labelled=True)
    assert rows.samples.labels(torch.arange(2)).tolist() == [1, 0]
    frame.assign(y="dead").to_csv(tmp_path / "t.csv", index=False)
    with pytest.raises(UserError, match=r"dead is none of the classes ill, well"):
        read_rows(tmp_path / "t.csv", trained, labelled=True)


GOOD = {**dict.fromkeys(FEATURES, 1.0), "client": "x", "y": 1}


@pytest.mark.parametrize(
    ("frame", "line"),
    [
        ({name: GOOD[name] for name in (*FEATURES, "y")}, "no clients (client)"),
        ({**GOOD, "more": 2.0}, "x: expected shape [n, 4] as in training, got [2, 5]"),
        ({**GOOD, "f2": "red"}, "column 'f2': expected numbers, got 'red'"),
        ({**GOOD, "client": [None, "x"]}, "missing values: column 'client' in 1 of 2 rows"),
        ({**GOOD, "y": 9}, "y: label 9 at sample 0 is outside the 3 classes"),
        ({**GOOD, "split": "holdout"}, "split: expected the words train, val, test"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_tables_that_do_not_fit(frame: dict[str, Any], line: str, schema: Schema, tmp_path: Path) -> None:
    pd.DataFrame(frame, index=range(2)).to_csv(tmp_path / "t.csv", index=False)
    with pytest.raises(UserError, match=re.escape(line)):
        read_rows(tmp_path / "t.csv", schema, labelled=True)


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"y": None}, "has no labels (y)"),
        ({"client": None}, "no clients (client)"),
        ({"x": np.zeros((0, 4))}, "has no rows"),
        ({"y": np.zeros(3, dtype=int)}, "y: expected labels of 72 samples as x has, got shape (3,)"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_arrays_that_do_not_fit(
    changes: dict[str, Any], line: str, schema: Schema, place: Path, tmp_path: Path
) -> None:
    arrays = {n: a for n, a in {**read_npz(place / "unseen.npz", ARRAYS), **changes}.items() if a is not None}
    np.savez(tmp_path / "d.npz", **arrays)
    with pytest.raises(UserError, match=re.escape(line)):
        read_rows(tmp_path / "d.npz", schema, labelled=True)


def test_images_stay_bytes(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x, client = rng.integers(256, size=(12, 3, 3)).astype(np.uint8), np.arange(12) % 2
    data = FederatedDataModule.from_arrays(x, client, client)
    trained = Schema.of(data.federation)
    np.savez(tmp_path / "d.npz", x=x.astype(np.int64), client=client)
    assert torch.equal(x_of(read_rows(tmp_path / "d.npz", trained)), torch.from_numpy(x[:, None] / np.float32(255)))
    np.savez(tmp_path / "d.npz", x=x + 0.5, client=client)
    with pytest.raises(UserError, match=re.escape("expected images in 0..255")):
        read_rows(tmp_path / "d.npz", trained)
