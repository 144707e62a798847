"""`dataset=table`: federations from .csv and .parquet files."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from fedem_lightning import TableDataModule, UserError
from fedem_lightning.data.tables import read_table
from fedem_lightning.data.tasks import BinaryClassification, Classification, Regression
from helpers.federations import split_of, stored
from helpers.runs import run_small

N = 60
RNG = np.random.default_rng(0)
FRAME = pd.DataFrame(
    {
        "hospital": np.array(["north", "south", "west"])[np.arange(N) % 3],
        "age": RNG.integers(20, 90, N),
        "pressure": RNG.normal(130, 20, N).round(2),
        "sex": RNG.choice(["f", "m"], N),
        "ward": RNG.integers(1, 4, N),
        "y": RNG.choice(["ill", "well"], N),
    }
)


def saved(folder: Path, frame: pd.DataFrame = FRAME, name: str = "mine.csv") -> Path:
    path = folder / name
    if path.suffix == ".parquet":
        frame.to_parquet(path)
    else:
        frame.to_csv(path, index=False)
    return path


def table(folder: Path, frame: pd.DataFrame = FRAME, name: str = "mine.csv", **options: Any) -> TableDataModule:
    return TableDataModule(saved(folder, frame, name), **{"label": "y", "client": "hospital", **options})


def test_a_column_of_splits_is_no_feature(tmp_path: Path) -> None:
    """A forgotten dataset.split would make features of it, and split the samples anew."""
    frame = FRAME.assign(part=np.array(["train", "test"])[(np.arange(N) % 4 == 3).astype(int)])
    with pytest.raises(UserError, match=r"^column 'part' looks like a split: split=part splits by it; features="):
        table(tmp_path, frame)
    assert len(table(tmp_path, frame, split="part").federation.splits["val"]) == 0
    assert "part=test" in table(tmp_path, frame, features=["age", "part"]).federation.features.names


@pytest.mark.parametrize("name", ["mine.CSV", "mine.parquet"])
def test_all_kinds_of_files_give_the_same_federation(name: str, tmp_path: Path) -> None:
    data, csv = table(tmp_path, name=name), table(tmp_path, name="other.csv")
    assert data.federation.features == csv.federation.features
    assert torch.equal(stored(data.federation).x, stored(csv.federation).x)
    assert data.federation.digest() == csv.federation.digest()


def test_what_other_programs_write(tmp_path: Path) -> None:
    """A byte order mark, quotes, spaces after commas, Windows' line ends, an empty line at the end."""
    (tmp_path / "mine.csv").write_bytes('\ufeff"a, b", c\r\n1, x\r\n"2",y\r\n\r\n'.encode())
    frame = read_table(tmp_path / "mine.csv")
    assert frame.to_dict("list") == {"a, b": [1, 2], "c": ["x", "y"]}


def test_an_index_of_pandas_is_a_column_if_it_has_a_name(tmp_path: Path) -> None:
    FRAME.set_index("hospital").to_parquet(tmp_path / "named.parquet")
    assert sorted(map(str, read_table(tmp_path / "named.parquet"))) == sorted(map(str, FRAME))
    FRAME.set_index(pd.Index(RNG.permutation(N))).to_parquet(tmp_path / "unnamed.parquet")
    assert list(read_table(tmp_path / "unnamed.parquet")) == list(FRAME)


def test_features_by_hand(tmp_path: Path) -> None:
    federation = table(tmp_path, categorical=["ward"], unseen=["west"]).federation
    rows = federation.block(federation.clients(), "train").index.numpy()
    assert set(FRAME.hospital[rows]) == {"north", "south"}
    expected = [(FRAME[c] - FRAME[c][rows].mean()) / FRAME[c][rows].std(ddof=0) for c in ("age", "pressure")]
    expected += [FRAME.sex == "f", FRAME.sex == "m", *(FRAME.ward == w for w in (1, 2, 3))]
    np.testing.assert_allclose(stored(federation).x.numpy(), np.stack(expected, axis=1), rtol=1e-5, atol=1e-6)
    assert stored(federation).x.dtype == torch.float32
    assert federation.notes["features"] == "7 features: 2 numbers standardised, 2 columns one-hot"
    assert federation.features.transform(FRAME).tobytes() == stored(federation).x.numpy().tobytes()
    assert federation.with_part(torch.tensor([0]), 0.5, seed=0).features is federation.features


def test_a_choice_of_features(tmp_path: Path) -> None:
    data = table(tmp_path, features=["ward", "age"])
    assert (data.federation.features.names, data.in_shape) == (["ward", "age"], (2,))
    wrong = FRAME.assign(day="2024-01-01", empty=np.nan)
    assert table(tmp_path, wrong, features=["age"]).in_shape == (1,)  # the others may hold anything


@pytest.mark.parametrize(
    ("labels", "kind", "y", "classes"),
    [
        (["b", "a", "c"], Classification, [1, 0, 2], ["a", "b", "c"]),
        ([True, False, True], Classification, [1, 0, 1], ["False", "True"]),
        ([0, 1, 2], Classification, [0, 1, 2], None),
        ([-1, 1, 1], Classification, [0, 1, 1], ["-1", "1"]),
        ([10, 2, 10], Classification, [1, 0, 1], ["2", "10"]),
        ([0.5, 1.0, 2.0], Regression, [0.5, 1.0, 2.0], None),
    ],
)
def test_the_task_is_found(labels: list[Any], kind: type, y: list[Any], classes: Any, tmp_path: Path) -> None:
    federation = table(tmp_path, FRAME.assign(y=labels * (N // 3))).federation
    assert isinstance(federation.task, kind)
    assert stored(federation).y[:3].tolist() == y
    assert federation.notes.get("classes") == classes
    n, what = len(set(labels)), {"b": "words", True: "words"}.get(labels[0], "")
    assert federation.notes["task"].startswith(f"{kind.__name__.lower()}, because y has {n} different {what}")


def test_many_whole_numbers_are_a_regression(tmp_path: Path) -> None:
    for n, kind in ((20, Classification), (21, Regression)):
        assert isinstance(table(tmp_path, FRAME.assign(y=np.arange(N) % n)).federation.task, kind)
    said = table(tmp_path, FRAME.assign(y=np.arange(N) % 21), task="classification").federation
    assert said.task == Classification(21)
    assert "task" not in said.notes


@pytest.mark.parametrize(
    ("labels", "options", "task"),
    [
        (np.arange(N) % 2, {"task": "binary"}, BinaryClassification()),
        (np.arange(N) % 2, {"n_classes": 4}, Classification(4)),
        (np.array(["1", "2", "x"])[np.arange(N) % 3], {"task": "classification"}, Classification(3)),
    ],
)
def test_the_task_is_said(labels: np.ndarray, options: dict[str, Any], task: Any, tmp_path: Path) -> None:
    assert table(tmp_path, FRAME.assign(y=labels), **options).federation.task == task


@pytest.mark.parametrize(
    ("column", "names"),
    [
        (np.array([10, 9, 2])[np.arange(N) % 3], ("2", "9", "10")),
        (pd.Categorical(np.array(["x", "y", "z"])[np.arange(N) % 3]), ("x", "y", "z")),
    ],
)
def test_clients_are_named_by_their_column(column: Any, names: tuple[str, ...], tmp_path: Path) -> None:
    for name in ("mine.csv", "mine.parquet"):
        assert table(tmp_path, FRAME.assign(hospital=column), name).federation.names == names


@pytest.mark.parametrize("words", [("train", "val", "test"), (0.0, 1.0, 2.0)])
def test_a_column_may_say_the_split(words: tuple[Any, ...], tmp_path: Path) -> None:
    part = np.arange(N) // 20
    federation = table(tmp_path, FRAME.assign(part=[words[i] for i in part]), split="part").federation
    for code, name in enumerate(("train", "val", "test")):
        assert sorted(split_of(federation, name).index.tolist()) == np.flatnonzero(part == code).tolist()
    assert "part" not in str(federation.features.names)


EMPTY = [np.nan, *range(1, N)]


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        ({}, {"label": None}, "label: expected the name of a column; there are hospital, age, pressure, sex, ward, y"),
        ({}, {"features": ["agee"]}, "features: no column 'agee'; did you mean age?"),
        ({}, {"features": []}, "features: no column is left beside label, client"),
        ({}, {"features": ["age", "age"]}, "features: it names a column twice, got age, age"),
        ({}, {"label": "hospital"}, "client: column 'hospital' is the label already"),
        ({}, {"features": ["age", "y"]}, "features: column 'y' is the label"),
        ({"age": EMPTY, "ward": EMPTY}, {}, "missing values: column 'age' in 1 of 60 rows, 'ward' in 1 of 60 rows;"),
        ({"y": ["1", "?"] * (N // 2)}, {}, "column 'y' holds numbers and other words, .*say task=classification"),
        ({"y": ["a", "b", "c"] * (N // 3)}, {"task": "binary"}, "task: binary needs the labels 0 and 1"),
        ({}, {"task": "regression"}, "column 'y': expected numbers, got"),
        ({}, {"task": "language"}, "task: a table has one label a row, expected classification"),
        ({"y": [*EMPTY[1:], 0.5]}, {"task": "classification"}, "task: a classification needs words or whole numbers"),
        ({"part": [1, 2] * (N // 2)}, {"split": "part"}, "split: no client that trains has a training sample"),
        ({"part": [0, 1, 2] * (N // 3)}, {"split": "part"}, "client south, west has no training sample"),
        ({"train_test_split": [0, 1, 2] * (N // 3)}, {}, "column 'train_test_split' looks like a split"),
    ],
)
def test_wrong_tables_are_one_line(
    change: dict[str, Any], options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=message.replace("?", r"\?")) as caught:
        table(tmp_path, FRAME.assign(**change), **options)
    assert "\n" not in str(caught.value)


def test_a_run_says_what_became_of_the_columns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = saved(tmp_path)
    options = [f"dataset.path={path}", "dataset.label=y", "dataset.client=hospital", "dataset.unseen=[south]"]
    results = run_small(tmp_path / "run", tmp_path, "dataset=table", *options)
    facts = "5 features: 3 numbers standardised, 1 columns one-hot"
    assert results["data"] == {
        "source": str(path),
        "columns": {"label": "y", "client": "hospital"},
        "features": facts,
        "task": "classification, because y has 2 different words",
        "classes": ["ill", "well"],
    }
    assert results["n_unseen_clients"] == 1
    printed = capsys.readouterr().out
    assert facts in printed
    assert "dataset.task: classification, because y has 2 different words" in printed


@pytest.mark.parametrize(
    ("written", "read"),
    [
        (["01", "1"], ["01", "1"]),
        (["10", "9"], ["9", "10"]),
        ([str(2**64), str(2**64 + 1)], [str(2**64), str(2**64 + 1)]),
    ],
)
def test_clients_of_a_csv_are_those_that_were_written(written: list[str], read: list[str], tmp_path: Path) -> None:
    federation = table(tmp_path, FRAME.assign(hospital=np.array(written)[np.arange(N) % 2])).federation
    assert list(federation.names) == read
    assert sum(len(split) for split in federation.splits.values()) == N
