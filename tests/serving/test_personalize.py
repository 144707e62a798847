"""`python -m fedem_lightning.personalize`: the models are those of the run's own unseen clients."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from fedem_lightning import (
    load,
    load_clients,
)
from fedem_lightning.evaluate.__main__ import main as evaluate
from fedem_lightning.personalize import main


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
    table = pd.read_csv(place / "unseen.csv")
    first = table[table.client == table.client[0]].drop(columns="split")
    first.to_parquet(tmp_path / "one.parquet")
    main([str(place / "fedem"), str(tmp_path / "one.parquet"), "--out", str(tmp_path / "c.safetensors")])
    model = load(place / "fedem")
    mine = model.personalize(first.drop(columns=["client", "y"]).to_numpy(), first.y.to_numpy(), "x")
    assert torch.equal(load_clients(tmp_path / "c.safetensors").personal.mixture[0], mine.weights)
