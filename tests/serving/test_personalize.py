"""`python -m fedem_lightning.personalize`: the models are those of the run's own unseen clients."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from fedem_lightning import load, load_clients
from fedem_lightning.data.datamodule import ARRAYS
from fedem_lightning.data.formats import read_npz
from fedem_lightning.evaluate import main as evaluate
from fedem_lightning.personalize import main
from fedem_lightning.serving.personalizing import only_shots
from fedem_lightning.serving.rows import ClientRows, read_rows


def of_results(path: Path) -> Any:
    return json.loads((path / "results.json").read_text())["unseen"]["test"]


@pytest.mark.parametrize("algorithm", ["fedem", "fedavg", "fedavg_plus", "local", "clustered"])
@pytest.mark.parametrize("kind", ["npz", "csv"])
def test_unseen_clients_have_the_scores_of_their_run(
    algorithm: str, kind: str, place: Path, run_of: Callable[[str], Path], tmp_path: Path
) -> None:
    """To the last bit, whether the rows come from an .npz or from a table."""
    run, data, out = run_of(algorithm), place / f"unseen.{kind}", tmp_path / "new" / "clients.safetensors"
    main([str(run), str(data), "--out", str(out)])
    evaluate([str(out), str(data), "--out", str(tmp_path / "scores")])
    scores = json.loads((tmp_path / "scores" / "evaluation.json").read_text())["scores"]
    assert scores == of_results(run)


def test_rows_without_a_split_are_all_for_training(place: Path, tmp_path: Path) -> None:
    """And one client's rows need no column."""
    table = pd.read_csv(place / "unseen.csv")
    first = table[table.client == table.client[0]].drop(columns=["client", "split"])
    first.to_parquet(tmp_path / "one.parquet")
    main(
        [str(place / "fedem"), str(tmp_path / "one.parquet"), "--client", "x", "--out", str(tmp_path / "c.safetensors")]
    )
    model = load(place / "fedem")
    mine = model.personalize(first.drop(columns="y").to_numpy(), first.y.to_numpy(), "x")
    assert torch.equal(load_clients(tmp_path / "c.safetensors").personal.mixture[0], mine.weights)


# Few samples


def few_shot(out: Path, *arguments: str | Path) -> pd.DataFrame:
    main([*map(str, arguments), "--out", str(out / "few.csv")])
    return pd.read_csv(out / "few.csv", dtype={"k": str})


def test_without_samples_fedavg_serves_the_global_model(
    place: Path, run_of: Callable[[str], Path], tmp_path: Path
) -> None:
    """Worked out here from the component."""
    table = few_shot(tmp_path, run_of("fedavg_plus"), place / "unseen.npz", "--few-shot", "0")
    data = read_npz(place / "unseen.npz", ARRAYS)
    test = data["split"] == 2
    with torch.no_grad():
        outputs = load(run_of("fedavg_plus")).components[0](torch.from_numpy(data["x"][test]))
    right = outputs.argmax(dim=1).numpy() == data["y"][test]
    assert table.accuracy_pooled[0] == pytest.approx(right.mean(), abs=1e-12)


def test_draws_are_nested_and_belong_to_the_client(place: Path) -> None:
    schema = load(place / "fedem").schema
    assert schema is not None
    rows = read_rows(place / "unseen.npz", schema)
    codes = rows.codes()
    drawn = {k: only_shots(rows, k, seed=0) == 0 for k in (0, 1, 2, 5, 10)}
    for less, more in zip((0, 1, 2, 5), (1, 2, 5, 10), strict=True):
        assert not (drawn[less] & ~drawn[more]).any()
        assert (np.bincount(rows.client[drawn[more]]) == more).all()
    places = {tuple(np.flatnonzero(drawn[5][rows.client == k])) for k in range(len(rows.names))}
    assert len(places) > 1  # clients draw apart
    other = only_shots(rows, 5, seed=1) == 0
    assert (other != drawn[5]).any()
    alone = rows.client == 1
    one = ClientRows(rows.samples, np.zeros(alone.sum(), dtype=np.int64), rows.names[1:2], codes[alone])
    assert ((only_shots(one, 5, seed=0) == 0) == drawn[5][alone]).all()
    assert (only_shots(rows, 1, 0)[codes == 2] == 2).all()
