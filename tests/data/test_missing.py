"""Missing values of a table: the median and an indicator, or a category; learned from training rows alone."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from numpy.testing import assert_allclose
from sklearn.impute import SimpleImputer

from fedem_lightning import TableDataModule, UserError, load
from fedem_lightning.data import TableFeatures
from fedem_lightning.data.schema import Schema
from helpers.federations import stored
from helpers.runs import run_small

N = 80
RNG = np.random.default_rng(0)
FRAME = pd.DataFrame(
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


def table(folder: Path, frame: pd.DataFrame = FRAME, **options: Any) -> TableDataModule:
    frame.to_csv(folder / "t.csv", index=False)
    return TableDataModule(folder / "t.csv", "y", "c", **options)


def features_of(data: TableDataModule) -> TableFeatures:
    assert data.federation.features is not None
    return data.federation.features


def test_the_default_refuses_and_names_the_option(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"missing values: column 'age' in .* or missing=median fills and marks"):
        table(tmp_path)
    frame = FRAME.assign(y=FRAME.y.where(FRAME.index != 3))
    with pytest.raises(UserError, match=r"missing values: column 'y' in 1 of 80 rows; fill.* columns$"):
        table(tmp_path, frame, missing="median")


def test_numbers_get_the_median_and_an_indicator_and_categories_a_value() -> None:
    features = TableFeatures.fit(FRAME, np.arange(50), ["age", "sex", "ward", "dose"], ["ward"], "median")
    names = [
        "age",
        "age missing",
        "sex=f",
        "sex=m",
        "sex=missing",
        "ward=1",
        "ward=2",
        "ward=3",
        "ward=missing",
        "dose",
    ]
    assert features.names == names
    x = pd.DataFrame(features.transform(FRAME), columns=names)
    expected = SimpleImputer(strategy="median", add_indicator=True).fit(FRAME[["age"]][:50]).transform(FRAME[["age"]])
    known = FRAME.age[:50].dropna()
    assert_allclose(x["age"], (expected[:, 0] - known.mean()) / known.std(ddof=0), rtol=1e-5, atol=1e-6)
    assert_allclose(x["age missing"], expected[:, 1])
    assert_allclose(x["sex=missing"], FRAME.sex.isna())
    assert_allclose(x["ward=2"], FRAME.ward == 2)
    assert_allclose(x[["ward=1", "ward=2", "ward=3", "ward=missing"]].sum(axis=1), 1)
    again = TableFeatures.from_state(features.state())
    assert again == features
    assert "1 column with missing values filled and marked" in features.summary()


def test_nothing_but_training_rows_of_seen_clients_is_learned_from(tmp_path: Path) -> None:
    data = table(tmp_path, unseen=[3], **MANY)
    federation, changed = data.federation, FRAME.copy()
    train = federation.block(federation.clients(), "train").index.numpy()
    others = np.setdiff1d(np.arange(N), train)
    changed.loc[others, "age"], changed.loc[others, "sex"], changed.loc[others[:9], "dose"] = 1e4, "other", np.nan
    again = table(tmp_path, changed, unseen=[3], **MANY)
    assert features_of(again) == features_of(data)
    assert torch.equal(stored(again.federation).x[train], stored(federation).x[train])
    assert "dose missing" not in features_of(again).names  # no training row lacks it: the median alone


def test_a_column_that_nobody_knows_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"column 'age': missing in all .* training rows; leave it out with features=\[\.\.\.\]"
    ):
        table(tmp_path, FRAME.assign(age=np.nan), **MANY)


def test_new_rows_are_filled_as_in_training(tmp_path: Path) -> None:
    data = table(tmp_path, **MANY)
    schema = Schema.of(data.federation)
    rows = pd.DataFrame({"age": [None, 60.0], "sex": [np.nan, "f"], "ward": [2, None], "dose": [None, 0.5]})
    with pytest.warns(
        UserWarning, match=r"column 'dose': 1 of 2 rows have no value, which training did not know; they"
    ):
        x = schema.x_of(rows)
    named = dict(zip(features_of(data).names, x.T, strict=True))
    assert named["age missing"].tolist() == [1, 0]
    assert named["sex=missing"].tolist() == [1, 0]
    assert named["ward=missing"].tolist() == [0, 1]
    dose: Any = next(column for column in features_of(data).columns if column["name"] == "dose")
    assert named["dose"][0] == pytest.approx((dose["median"] - dose["mean"]) / dose["deviation"])


def test_a_run_keeps_what_takes_the_place_of_missing_values(tmp_path: Path) -> None:
    FRAME.to_csv(tmp_path / "t.csv", index=False)
    keys = ["dataset=table", f"dataset.path={tmp_path / 't.csv'}", "dataset.label=y", "dataset.client=c"]
    run_small(tmp_path / "run", tmp_path, *keys, "dataset.missing=median", "algorithm=fedem")
    model = load(tmp_path / "run")
    assert model.schema.features == features_of(table(tmp_path, missing="median"))
    new = FRAME[:6].drop(columns="c")
    client = model.personalize(new, new["y"], name="new")
    assert client.predict(new).shape == (6, 2)
