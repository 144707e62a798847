"""`TableFeatures`: columns of a table as the x of a model, missing values among them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from numpy.testing import assert_allclose

from fedem_lightning import TableDataModule, UserError, load
from fedem_lightning.data import TableFeatures
from fedem_lightning.data.schema import Schema
from fedem_lightning.data.table_features import MAX_CATEGORIES
from helpers.federations import stored
from helpers.runs import run_small

FRAME = pd.DataFrame(
    {
        "age": [30, 50, 40, 90],
        "sex": ["m", "f", "m", "x"],
        "ward": [10, 2, 2, 7],
        "smokes": [True, False, True, True],
        "fixed": [0.1, 0.1, 0.1, 0.7],
    }
)
LEARNT = np.array([True, True, True, False])


def fitted(frame: pd.DataFrame = FRAME, rows: np.ndarray = LEARNT, **options: Any) -> TableFeatures:
    return TableFeatures.fit(frame, rows, list(frame.columns), **options)


def one(values: Any, **options: Any) -> TableFeatures:
    frame = pd.DataFrame({"c": values})
    return TableFeatures.fit(frame, np.arange(len(frame)), ["c"], **options)


def test_by_hand() -> None:
    features = fitted(categorical=["ward"])
    deviation = np.sqrt(200 / 3)
    assert features.names == ["age", "sex=f", "sex=m", "ward=2", "ward=10", "smokes=False", "smokes=True", "fixed"]
    x = features.transform(FRAME)
    assert x.dtype == np.float32
    rows = [
        [-10 / deviation, 0, 1, 0, 1, 0, 1, 0],
        [10 / deviation, 1, 0, 1, 0, 1, 0, 0],
        [0, 0, 1, 1, 0, 0, 1, 0],
        [50 / deviation, 0, 0, 0, 0, 0, 1, np.float64(0.7) - 0.1],  # neither x nor 7 was among the rows to learn from
    ]
    assert_allclose(x, rows, rtol=1e-6, atol=1e-12)
    assert features.summary() == "8 features: 2 numbers standardised, 3 columns one-hot"


def test_other_rows_change_nothing() -> None:
    changed, row = FRAME.copy(), [10**6, "other", -5, False, 1e9]
    changed.loc[3] = pd.Series(row, changed.columns)
    assert fitted(changed, categorical=["ward"]) == fitted(categorical=["ward"])
    moved = FRAME.set_axis([7, 7, 3, 1])  # labels of the index play no part
    assert fitted(moved) == fitted(moved, rows=np.array([0, 1, 2])) == fitted()


def test_the_state_is_plain_and_gives_the_same_bits() -> None:
    rng = np.random.default_rng(0)
    values = np.where(rng.random(50) < 0.3, np.nan, rng.normal(size=50) * 1e3)
    frame = pd.DataFrame({"b": rng.choice(["ä", "=", ""], 50), "a": values, "c": rng.random(50) < 0.5, "d": values[0]})
    features = fitted(frame[["b", "a", "c"]], rows=np.arange(40), missing="median")
    again = TableFeatures.from_state(json.loads(json.dumps(features.state())))
    assert again == features
    assert again.transform(frame).tobytes() == features.transform(frame).tobytes()


def test_a_state_of_before_gives_the_numbers_that_it_says() -> None:
    number = {"kind": "number", "name": "a", "mean": 1.0, "deviation": 4.0, "median": 3.0, "indicator": True}
    state = {"columns": [{"kind": "category", "name": "b", "values": ["x", "missing"]}, number], "missing": "median"}
    features = TableFeatures.from_state(state)
    assert features.names == ["b=x", "b=missing", "a", "a missing"]
    rows = pd.DataFrame({"a": [None, 9.0], "b": ["x", None]})
    assert features.transform(rows).tolist() == [[1, 0, 0.5, 1], [0, 1, 2, 0]]
    assert features.state() == state
    with pytest.raises(UserError, match="features: not the state of a TableFeatures"):
        TableFeatures.from_state({"columns": [{"name": "a"}]})


def test_a_value_counts_and_not_its_type_nor_other_columns() -> None:
    """Numbers of a new file may be floats, categories strings, booleans words."""
    features = fitted(categorical=["ward"])
    x = features.transform(FRAME)
    other = FRAME.astype({"age": float, "ward": float, "sex": "category", "fixed": object})
    for frame in (
        other.assign(smokes=FRAME.smokes.astype(str)),
        other.assign(ward=FRAME.ward.astype(str)),
        FRAME.convert_dtypes(),
        FRAME.assign(note=None)[["note", *reversed(FRAME.columns)]],
    ):
        assert features.transform(frame).tobytes() == x.tobytes()
    assert features.transform(FRAME.iloc[:0]).shape == (0, len(features.names))


@pytest.mark.parametrize(
    ("values", "names"),
    [
        (pd.Categorical(["b", "a"], categories=["z", "b", "a"]), ["c=a", "c=b"]),
        (pd.Categorical([10, 9]), ["c=9", "c=10"]),
        ([True, False], ["c=False", "c=True"]),
        (pd.array([1, 2], dtype="Int64"), ["c"]),
        (pd.array(["10", "9"], dtype="string"), ["c=10", "c=9"]),  # all are strings that look like numbers: as saved
    ],
)
def test_types_of_columns(values: Any, names: list[str]) -> None:
    assert one(values).names == names


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([1.0, np.nan, np.nan], "^missing values: column 'c' in 2 of 3 rows; fill them in"),
        ([1.0, np.inf], "column 'c': 1 of 2 rows are infinite"),
        (
            pd.to_datetime(["2024-01-31", "2024-02-01"]),
            "column 'c' holds values of the kind datetime64",
        ),
        (
            ["2024-01-31", "2023-02-01"],
            "column 'c' holds dates or decimal commas, such as '2024",
        ),
        ([[1], [2]], "column 'c' holds values of the kind mixed; make numbers or words of them, or leave it out"),
        (
            ["1", "2", "?"],
            r"column 'c' holds numbers and other words, such as '\?'; .* or name it in cat",
        ),
        ([f"row {i}" for i in range(MAX_CATEGORIES + 1)], "column 'c': 1001 categories, more than 1000; leave it out"),
    ],
)
def test_what_cannot_be_a_feature_is_one_line(values: Any, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        one(values)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("values", [["2024-01-31", "2023-02-01"], [3, "a"]])
def test_what_is_said_to_be_a_category_is_one(values: list[Any]) -> None:
    assert one(values, categorical=["c"]).names == [f"c={v}" for v in sorted(map(str, values))]


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (FRAME.assign(age=["30", "a", "b", "c"]), "column 'age': expected numbers, got '30'"),
        (FRAME.assign(age=[1.0, 1e300, 1.0, 2.0]), "column 'age': 1 of 4 rows are too far from the others"),
        (FRAME.assign(sex=pd.Series([[1]] * 4)), "column 'sex': expected strings, numbers or booleans"),
        (FRAME.drop(columns="age"), "column 'age': the table has none of this name"),
        (pd.concat([FRAME, FRAME[["age"]]], axis=1), "column 'age': the table has 2 of this name"),
    ],
)
def test_wrong_new_rows_are_one_line(frame: pd.DataFrame, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        fitted().transform(frame)
    assert "\n" not in str(caught.value)


def test_values_that_training_did_not_know_are_named() -> None:
    features = TableFeatures.fit(FRAME, np.arange(len(FRAME)), ["age", "sex", "smokes"])
    (line,) = features.unknown(FRAME.assign(sex=["m", "d", "f", "e"]))
    known = "have values that training did not know (d, e; it knew f, m, x), and count as none of them"
    assert line == f"column 'sex': 2 of 4 rows {known}"


N = 80
RNG = np.random.default_rng(0)
GAPS = pd.DataFrame(
    {
        "c": np.arange(N) % 4,
        "age": np.where(RNG.random(N) < 0.2, np.nan, RNG.normal(50, 9, N).round(1)),
        "sex": pd.Series(RNG.choice(["f", "m"], N)).where(RNG.random(N) > 0.2),
        "ward": np.where(RNG.random(N) < 0.2, np.nan, RNG.integers(1, 4, N)),
        "dose": RNG.normal(size=N),
        "y": RNG.choice(["ill", "well"], N),
    }
)
MANY: dict[str, Any] = {"categorical": ["ward"], "missing": "median"}


def table(folder: Path, frame: pd.DataFrame = GAPS, **options: Any) -> TableDataModule:
    frame.to_csv(folder / "t.csv", index=False)
    return TableDataModule(folder / "t.csv", "y", "c", **options)


def features_of(data: TableDataModule) -> TableFeatures:
    assert data.federation.features is not None
    return data.federation.features


def test_missing_values_are_refused_unless_they_are_filled(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"missing values: column 'age' in .* or missing=median fills and marks"):
        table(tmp_path)
    with pytest.raises(UserError, match=r"missing values: column 'y' in 1 of 80 rows; fill.* columns$"):
        table(tmp_path, GAPS.assign(y=GAPS.y.where(GAPS.index != 3)), missing="median")
    with pytest.raises(UserError, match=r"column 'age': missing in all .* training rows; leave it out with features="):
        table(tmp_path, GAPS.assign(age=np.nan), **MANY)


def test_numbers_get_the_median_and_an_indicator_and_categories_a_value() -> None:
    features = TableFeatures.fit(GAPS, np.arange(50), ["age", "sex", "ward", "dose"], ["ward"], "median")
    wards = [f"ward={value}" for value in (1, 2, 3, "missing")]
    assert features.names == ["age", "age missing", "sex=f", "sex=m", "sex=missing", *wards, "dose"]
    x = pd.DataFrame(features.transform(GAPS), columns=features.names)
    known = GAPS.age[:50].dropna()
    scaled = (GAPS.age.fillna(known.median()) - known.mean()) / known.std(ddof=0)
    assert_allclose(x["age"], scaled, rtol=1e-5, atol=1e-6)
    assert_allclose(x["age missing"], GAPS.age.isna())
    assert_allclose(x["sex=missing"], GAPS.sex.isna())
    assert_allclose(x["ward=2"], GAPS.ward == 2)
    assert_allclose(x[wards].sum(axis=1), 1)


def test_nothing_but_training_rows_of_seen_clients_is_learned_from(tmp_path: Path) -> None:
    data = table(tmp_path, unseen=[3], **MANY)
    federation, changed = data.federation, GAPS.copy()
    train = federation.block(federation.clients(), "train").index.numpy()
    others = np.setdiff1d(np.arange(N), train)
    changed.loc[others, "age"], changed.loc[others, "sex"], changed.loc[others[:9], "dose"] = 1e4, "other", np.nan
    again = table(tmp_path, changed, unseen=[3], **MANY)
    assert features_of(again) == features_of(data)
    assert torch.equal(stored(again.federation).x[train], stored(federation).x[train])
    assert "dose missing" not in features_of(again).names  # no training row lacks it: the median alone


def test_new_rows_are_filled_as_in_training(tmp_path: Path) -> None:
    data = table(tmp_path, **MANY)
    rows = pd.DataFrame({"age": [None, 60.0], "sex": [np.nan, "f"], "ward": [2, None], "dose": [None, 0.5]})
    said = r"column 'dose': 1 of 2 rows have no value, which training did not know; they get the median"
    with pytest.warns(UserWarning, match=said):
        x = Schema.of(data.federation).x_of(rows)
    named = dict(zip(features_of(data).names, x.T.tolist(), strict=True))
    assert named["age missing"] == named["sex=missing"] == [1, 0]
    assert named["ward=missing"] == [0, 1]
    dose: Any = next(column for column in features_of(data).columns if column["name"] == "dose")
    assert named["dose"][0] == pytest.approx((dose["median"] - dose["mean"]) / dose["deviation"])


def test_a_run_keeps_what_takes_the_place_of_missing_values(tmp_path: Path) -> None:
    expected = features_of(table(tmp_path, missing="median"))
    keys = ["dataset=table", f"dataset.path={tmp_path / 't.csv'}", "dataset.label=y", "dataset.client=c"]
    run_small(tmp_path / "run", tmp_path, *keys, "dataset.missing=median", "algorithm=fedem")
    model = load(tmp_path / "run")
    assert model.schema.features == expected
    new = GAPS[:6].drop(columns="c")
    assert model.personalize(new, new["y"], name="new").predict(new).shape == (6, 2)
