"""`python -m fedem_lightning.evaluate`: scores of rows are the run's own, to the bit, and those of other libraries."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from fedem_lightning import NpzDataModule, load
from fedem_lightning.evaluate.__main__ import main
from fedem_lightning.evaluate.summaries import summarize_table
from helpers.federations import make_trainer


def evaluation(folder: Path, *arguments: str | Path) -> dict[str, Any]:
    main([*map(str, arguments), "--out", str(folder)])
    found: dict[str, Any] = json.loads((folder / "evaluation.json").read_text())
    return found


@pytest.mark.parametrize("algorithm", ["fedem", "fedavg", "fedavg_plus", "clustered", "local"])
def test_a_loaded_run_has_its_scores_again(algorithm: str, place: Path, run_of: Callable[[str], Path]) -> None:
    """In Python, by the Trainer, of all clients and splits, to the last bit."""
    run = run_of(algorithm)
    saved, model = json.loads((run / "results.json").read_text()), load(run)
    data = NpzDataModule(place / "all.npz", unseen_fraction=0.25)
    make_trainer(0, "32-true").test(model, data, verbose=False)
    for population, wanted in (("seen", saved), ("unseen", saved["unseen"])):
        table = model.clients[model.clients["population"] == population]
        for split in ("train", "val", "test"):
            assert summarize_table(table, split) == wanted[split]


def test_rows_of_the_run_have_its_scores(place: Path, tmp_path: Path) -> None:
    """Given as a file: the same clients, the same test samples, the same sums."""
    saved = json.loads((place / "fedem" / "results.json").read_text())
    for name in ("seen.npz", "seen.csv"):
        found = evaluation(tmp_path / name, place / "fedem", place / name)
        assert found["scores"] == saved["test"]
        assert found["weighted by"] == "the training rows of DATA"


def test_rows_without_a_split_are_all_scored(place: Path, tmp_path: Path) -> None:
    table = pd.read_csv(place / "seen.csv")
    table.drop(columns="split").to_csv(tmp_path / "plain.csv", index=False)
    found = evaluation(tmp_path / "out", place / "fedem", tmp_path / "plain.csv")
    assert found["n_samples"] == len(table)
    assert found["weighted by"] == "the training samples of the run"
    clients = pd.read_csv(tmp_path / "out" / "clients.csv")
    assert clients.n_test.tolist() == [24] * 9
    assert clients.n_train.tolist() == [15] * 9
