"""`TableFeatures`: columns of a table as the x of a model."""

import datetime
import json
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedem_lightning import UserError
from fedem_lightning.data import TableFeatures
from fedem_lightning.data.table_features import MAX_CATEGORIES

FRAME = pd.DataFrame(
    {
        "age": [30, 50, 40, 90],
        "sex": ["m", "f", "m", "x"],
        "ward": [10, 2, 2, 7],
        "smokes": [True, False, True, True],
        "fixed": [0.1, 0.1, 0.1, 0.7],
    }
)
ALL = np.arange(4)
LEARNT = np.array([True, True, True, False])


def fitted(frame: pd.DataFrame = FRAME, rows: np.ndarray = LEARNT, **options: Any) -> TableFeatures:
    return TableFeatures.fit(frame, rows, list(frame.columns), **options)


def one(values: Any, **options: Any) -> TableFeatures:
    frame = pd.DataFrame({"c": values})
    return TableFeatures.fit(frame, np.arange(len(frame)), ["c"], **options)


def test_by_hand() -> None:
    features = fitted(categorical=["ward"])
    deviation = np.sqrt(200 / 3)
    expected = ["age", "sex=f", "sex=m", "ward=2", "ward=10", "smokes=False", "smokes=True", "fixed"]
    assert features.names == expected
    x = features.transform(FRAME)
    assert x.dtype == np.float32
    rows = [
        [-10 / deviation, 0, 1, 0, 1, 0, 1, 0],
        [10 / deviation, 1, 0, 1, 0, 1, 0, 0],
        [0, 0, 1, 1, 0, 0, 1, 0],
        [50 / deviation, 0, 0, 0, 0, 0, 1, np.float64(0.7) - 0.1],  # neither x nor 7 was among the rows to learn from
    ]
    np.testing.assert_allclose(x, rows, rtol=1e-6, atol=1e-12)
    assert features.summary() == "8 features: 2 numbers standardised, 3 columns one-hot (6)"


def test_other_rows_change_nothing() -> None:
    changed = FRAME.copy()
    row: Any = [10**6, "other", -5, False, 1e9]
    changed.loc[3] = row
    assert fitted(changed, categorical=["ward"]) == fitted(categorical=["ward"])
    changed.loc[2, "age"] = 41
    assert fitted(changed, categorical=["ward"]) != fitted(categorical=["ward"])


def test_rows_may_be_a_mask_or_positions() -> None:
    moved = FRAME.set_axis([7, 7, 3, 1])  # labels of the index play no part
    assert fitted(moved) == fitted(moved, rows=np.array([0, 1, 2])) == fitted()


def test_the_state_is_plain_and_gives_the_same_bits() -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {"a": rng.normal(size=50) * 1e3, "b": rng.choice(["ä", "=", ""], 50), "c": rng.random(50) < 0.5}
    )
    features = fitted(frame, rows=np.arange(40))
    state = features.state()
    again = TableFeatures.from_state(json.loads(json.dumps(state)))
    assert again == features
    assert again.transform(frame).tobytes() == features.transform(frame).tobytes()

    def check(value: Any) -> None:
        assert type(value) in (dict, list, str, float, int)
        for part in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
            check(part)

    check(state)


@pytest.mark.parametrize(
    "state", [{}, {"columns": [{"name": "a"}]}, {"columns": 3}, {"columns": [{"kind": "x", "name": "a", "values": []}]}]
)
def test_what_is_no_state_is_said(state: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="features: "):
        TableFeatures.from_state(state)


def test_more_columns_in_another_order_change_nothing() -> None:
    features = fitted()
    more = FRAME.assign(note=None)[["note", *reversed(FRAME.columns)]]
    assert features.transform(more).tobytes() == features.transform(FRAME).tobytes()
    assert features.transform(FRAME.iloc[:0]).shape == (0, len(features.names))


def test_a_value_counts_and_not_its_type() -> None:
    """Numbers of a new file may be floats, categories strings, booleans words."""
    features = fitted(categorical=["ward"])
    other = FRAME.astype({"age": float, "ward": float, "sex": "category"}).assign(smokes=FRAME.smokes.astype(str))
    other["fixed"] = other["fixed"].astype(object)
    assert features.transform(other).tobytes() == features.transform(FRAME).tobytes()
    other["ward"] = FRAME.ward.astype(str)
    assert features.transform(other).tobytes() == features.transform(FRAME).tobytes()
    nullable = FRAME.convert_dtypes()
    assert features.transform(nullable).tobytes() == features.transform(FRAME).tobytes()


@pytest.mark.parametrize(
    ("values", "names"),
    [
        (["b", "a"], ["c=a", "c=b"]),
        (pd.Categorical(["b", "a"], categories=["z", "b", "a"]), ["c=a", "c=b"]),
        (pd.Categorical([10, 9]), ["c=9", "c=10"]),
        ([True, False], ["c=False", "c=True"]),
        ([1, 2], ["c"]),
        ([Decimal("1.5"), Decimal("2.5")], ["c"]),
        (pd.array([1, 2], dtype="Int64"), ["c"]),
        (pd.array(["10", "9"], dtype="string"), ["c=10", "c=9"]),  # all are strings that look like numbers: as saved
    ],
)
def test_types_of_columns(values: Any, names: list[str]) -> None:
    assert one(values).names == names


def test_a_column_that_does_not_change_has_deviation_1() -> None:
    assert one([0.1] * 7).columns[0]["deviation"] == 1


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([1.0, np.nan, np.nan], "^missing values: column 'c' in 2 of 3 rows; fill them in"),
        (["a", None], "column 'c' in 1 of 2 rows"),
        ([1.0, np.inf], "column 'c': 1 of 2 rows are infinite"),
        (pd.to_datetime(["2024-01-31", "2024-02-01"]), "column 'c' holds dates; make numbers of them, such as days"),
        ([datetime.date(2024, 1, 1)] * 2, "column 'c' holds dates"),
        (
            ["2024-01-31", "2023-02-01"],
            "column 'c' holds dates, such as 2024-01-31; .*name it in categorical=.*, or",
        ),
        (["31.1.2024 12:00", "1.2.2024"], "column 'c' holds dates"),
        ([[1], [2]], "column 'c' holds values of the type list; save one type, or leave it out with features"),
        ([1, "a"], "column 'c' holds values of the types int, str"),
        (
            ["1", "2", "?"],
            r"column 'c' holds numbers and other words, such as '\?'; correct it, or name it in cat",
        ),
        (["1,5", "2,25"], "column 'c' holds numbers with a decimal comma, such as 1,5; make numbers of them"),
        ([b"a", b"b"], "column 'c' holds values of the type bytes"),
        ([1j, 2j], "column 'c' holds values of the type complex"),
        ([f"row {i}" for i in range(MAX_CATEGORIES + 1)], "column 'c': 1001 categories, more than 1000; leave it out"),
        ([1e308, -1e308], r"column 'c': numbers of up to 1e\+308 are too large to scale"),
    ],
)
def test_what_cannot_be_a_feature_is_one_line(values: Any, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        one(values)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("values", [["2024-01-31", "2023-02-01"], ["1", "2", "?"], [3, "a"], ["1,5", "2,25"]])
def test_what_is_said_to_be_a_category_is_one(values: list[Any]) -> None:
    assert one(values, categorical=["c"]).names == [f"c={v}" for v in sorted(map(str, values))]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"age": ["30", "a", "b", "c"]}, "column 'age': expected numbers, got '30'"),
        ({"age": [1.0, np.nan, 1.0, np.nan]}, "missing values: column 'age' in 2 of 4 rows"),
        ({"age": [1.0, -np.inf, 1.0, 2.0]}, "column 'age': 1 of 4 rows are infinite"),
        ({"age": [1.0, 1e300, 1.0, 2.0]}, "column 'age': 1 of 4 rows are too far from the others"),
        ({"sex": [[1], [2], [3], [4]]}, "column 'sex': expected strings, numbers or booleans"),
        ({"sex": [datetime.date(2024, 1, 1)] * 4}, "column 'sex': expected strings, numbers or booleans, got datetime"),
    ],
)
def test_wrong_values_of_new_rows_are_one_line(change: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        fitted().transform(FRAME.assign(**change))
    assert "\n" not in str(caught.value)


def test_a_missing_column_is_named() -> None:
    with pytest.raises(UserError, match="column 'age': the table has none of this name"):
        fitted().transform(FRAME.drop(columns="age"))
    with pytest.raises(UserError, match="column 'age': the table has 2 of this name"):
        fitted().transform(pd.concat([FRAME, FRAME[["age"]]], axis=1))
    with pytest.raises(UserError, match="expected at least one row"):
        fitted(rows=np.zeros(4, dtype=bool))


def test_missing_values_of_several_columns_are_one_line() -> None:
    gaps: dict[str, Any] = {"age": [1, None, 2, None], "sex": ["m", None, "f", "f"]}
    frame = FRAME.assign(**gaps)
    with pytest.raises(UserError, match="missing values: column 'age' in 2 of 4 rows, 'sex' in 1 of 4 rows;"):
        fitted(frame)


def test_the_summary_counts() -> None:
    assert (
        TableFeatures([{"kind": "number", "name": "a", "mean": 0.0, "deviation": 1.0}]).summary()
        == "1 feature: 1 number standardised"
    )
    assert (
        TableFeatures([{"kind": "category", "name": "a", "values": ["x", "y"]}]).summary()
        == "2 features: 1 column one-hot (2)"
    )


def test_values_that_training_did_not_know_are_named() -> None:
    features = TableFeatures.fit(FRAME, np.arange(len(FRAME)), ["age", "sex"])
    assert features.unknown(FRAME) == []
    frame = FRAME.assign(sex=["m", "d", "f", "e"])
    (line,) = features.unknown(frame)
    known = "have values that training did not know (d, e; it knew f, m, x), and count as none of them"
    assert line == f"column 'sex': 2 of 4 rows {known}"


@pytest.mark.parametrize("form", [[1, 0, 1, 0], ["true", "false", "true", "false"], [True, False, True, False]])
def test_true_and_false_are_read_as_other_programs_write_them(form: list[Any]) -> None:
    frame = pd.DataFrame({"promo": [True, False, False, True]})
    features = TableFeatures.fit(frame, np.arange(4), ["promo"])
    new = pd.DataFrame({"promo": form})
    assert features.unknown(new) == []
    assert features.transform(new).tolist() == [[0.0, 1.0], [1.0, 0.0]] * 2
