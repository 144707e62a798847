"""`split_by`: splits by time and by group; and what a random split does to a table."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedem_lightning import FederatedDataModule, NpzDataModule, TableDataModule, UserError

N, RNG = 240, np.random.default_rng(0)
SHOP = np.array(["north", "south", "west"])[RNG.integers(3, size=N)]
DAY = pd.Timestamp("2024-01-31") + pd.to_timedelta(RNG.permutation(N), unit="D")
FRAME = pd.DataFrame(
    {
        "shop": SHOP,
        "price": RNG.normal(size=N),
        "opened": DAY.strftime("%Y-%m-%d"),
        "visitor": np.char.add(SHOP, (np.arange(N) % 20).astype(str)),
        "sold": RNG.choice(["no", "yes", "ordered"], N, p=[0.6, 0.3, 0.1]),
    }
)
QUIET = FRAME.drop(columns=["opened", "visitor"])


def table(folder: Path, frame: pd.DataFrame = FRAME, name: str = "mine.csv", **options: Any) -> TableDataModule:
    (frame.to_csv if name.endswith("csv") else frame.to_parquet)(folder / name, index=False)
    return TableDataModule(folder / name, **{"label": "sold", "client": "shop", "features": ["price"], **options})


def codes(data: FederatedDataModule) -> np.ndarray:
    """The split of each row, [n]."""
    found = np.full(N, -1)
    for code, split in enumerate(data.federation.splits.values()):
        found[split.positions(data.federation.clients())[0].numpy()] = code
    return found


@pytest.mark.parametrize("name", ["mine.csv", "mine.parquet"])
def test_the_last_rows_of_each_client_are_for_testing(name: str, tmp_path: Path) -> None:
    frame = FRAME.assign(opened=DAY) if name == "mine.parquet" else FRAME
    data = table(tmp_path, frame, name, split_by="time:opened", features=None, categorical=["visitor"])
    split = codes(data)
    for shop in set(SHOP):
        mine = split[shop == SHOP][np.argsort(DAY[shop == SHOP])]
        assert mine.tolist() == sorted(mine), "train, then val, then test"
        assert [(mine == code).sum() for code in (1, 2)] == [len(mine) // 5] * 2
    assert not any("opened" in feature for feature in data.federation.features.names)
    numbers = FRAME.assign(opened=np.arange(N))
    assert "opened" in table(tmp_path, numbers, split_by="time:opened", features=["opened"]).federation.features.names


def test_rows_of_a_group_stay_together(tmp_path: Path) -> None:
    for frame in (FRAME, FRAME.assign(visitor=np.arange(N) % 20)):  # groups within clients; at several clients
        split = codes(table(tmp_path, frame, split_by="group:visitor"))
        assert pd.Series(split).groupby(frame.visitor).nunique().max() == 1
        assert np.bincount(split).min() > 20
    few = FRAME.assign(visitor=np.char.add(SHOP, (np.arange(N) % 3).astype(str)))
    assert pd.Series(codes(table(tmp_path, few, split_by="group:visitor"))).groupby(SHOP).nunique().tolist() == [3] * 3
    other = codes(table(tmp_path, split_by="group:visitor", seed=1))
    assert (other != codes(table(tmp_path, split_by="group:visitor"))).any()


def test_an_array_of_a_file_splits(tmp_path: Path) -> None:
    x, y = FRAME[["price"]].to_numpy(), np.arange(N) % 3
    wanted = codes(table(tmp_path, FRAME.assign(sold=y), split_by="time:opened"))
    np.savez(tmp_path / "a.npz", x=x, y=y, client=SHOP, opened=DAY.to_numpy())
    assert codes(NpzDataModule(tmp_path / "a.npz", split_by="time:opened")).tolist() == wanted.tolist()
    np.savez(tmp_path / "b.npz", x=x, y=y, client=SHOP, opened=[np.nan, *range(1, N)])
    with pytest.raises(UserError, match=r"^split_by: 1 samples have no time$"):
        NpzDataModule(tmp_path / "b.npz", split_by="time:opened")
    with pytest.raises(UserError, match=r"^split_by: arrays in Python have no columns; give their split$"):
        FederatedDataModule.from_arrays(x, y, SHOP, split_by="time:opened")


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "form": ({"split_by": "month:opened"}, "split_by: expected time:COLUMN or group:COLUMN"),
    "no column": ({"split_by": "time"}, "split_by: expected time:COLUMN or group:COLUMN"),
    "missing column": ({"split_by": "time:open"}, "split_by: no column 'open'; did you mean opened?"),
    "role": ({"split_by": "group:shop"}, "split_by: column 'shop' is the client already"),
    "split": ({"split_by": "time:opened", "split": "part"}, "split_by: the data have their split already"),
    "no times": (
        {"split_by": "time:visitor"},
        "split_by: expected numbers or dates written as 2024-01-31, got such as",
    ),
}


@pytest.mark.filterwarnings("ignore:column:UserWarning")
@pytest.mark.parametrize("name", WRONG)
def test_one_line_says_what_is_wrong(name: str, tmp_path: Path) -> None:
    options, line = WRONG[name]
    frame = FRAME.assign(part=np.array(["train", "test"])[np.arange(N) % 2])
    with pytest.raises(UserError, match=f"^{line}"):
        table(tmp_path, frame, **options)


def test_a_table_says_what_a_random_split_does(tmp_path: Path) -> None:
    time = "column 'opened' looks like a time: a random split trains on rows that are later than those it tests on"
    with pytest.warns(UserWarning, match=time):
        table(tmp_path, FRAME)
    patients = QUIET.assign(patient_id=RNG.integers(30, size=N), week=np.arange(N) // 7)
    with pytest.warns(UserWarning, match="^column") as found:
        table(tmp_path, patients)
    assert [str(one.message).split("split_by=")[1].split()[0] for one in found] == ["group:patient_id", "time:week"]
    with pytest.raises(UserError, match=r"holds values of the kind datetime64; .* split_by=time:opened"):
        table(tmp_path, FRAME.assign(opened=DAY), "dates.parquet", features=["opened"], partition="iid", n_clients=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        table(tmp_path, FRAME, split_by="group:visitor")
        table(tmp_path, QUIET.assign(ward=RNG.integers(9, size=N), town=RNG.integers(40, size=N), key=np.arange(N)))
        lists: dict[str, Any] = {"week": [[i] for i in range(N)], "id": [[0]] * N}
        table(tmp_path, QUIET.assign(**lists), "lists.parquet")
