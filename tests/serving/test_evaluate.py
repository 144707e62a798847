"""`python -m fedem_lightning.evaluate`: scores of rows are the run's own, to the bit, and those of other libraries."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import balanced_accuracy_score, confusion_matrix, roc_auc_score

from fedem_lightning import NpzDataModule, load, load_clients
from fedem_lightning.data.datamodule import ARRAYS
from fedem_lightning.data.formats import read_npz
from fedem_lightning.evaluate import main
from fedem_lightning.evaluation.summaries import summarize_table
from fedem_lightning.serving.predicting import predictions
from fedem_lightning.serving.rows import read_rows
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
    found = evaluation(tmp_path / "rows", place / "fedem", place / "seen.npz", "--split", "train")
    assert found["scores"] == saved["train"]


def test_rows_without_a_split_are_all_scored(place: Path, tmp_path: Path) -> None:
    table = pd.read_csv(place / "seen.csv")
    table.drop(columns="split").to_csv(tmp_path / "plain.csv", index=False)
    found = evaluation(tmp_path / "out", place / "fedem", tmp_path / "plain.csv")
    assert found["n_samples"] == len(table)
    assert found["weighted by"] == "the training samples of the run"
    clients = pd.read_csv(tmp_path / "out" / "clients.csv")
    assert clients.n_test.tolist() == [24] * 9
    assert clients.n_train.tolist() == [15] * 9


def test_calibration_confusion_and_scores_of_classes_are_those_worked_out_by_hand(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = evaluation(tmp_path, place / "fedem", place / "seen.npz")
    models = load_clients(place / "fedem")
    data = read_npz(place / "seen.npz", ARRAYS)
    test = data["split"] == 2
    table, y = predictions(models, read_rows(place / "seen.npz", models.schema))[test], data["y"][test]
    confidence, guess = table.filter(like="p_").max(axis=1).to_numpy(), table["class"].to_numpy()
    error = 0.0
    for low in np.arange(15) / 15:
        inside = (confidence > low) & (confidence <= low + 1 / 15)
        if inside.any():
            error += inside.mean() * abs((guess == y)[inside].mean() - confidence[inside].mean())
    p = table.filter(like="p_").to_numpy()
    assert found["quality"] == {
        "calibration_error": pytest.approx(error, abs=1e-6),
        "balanced_accuracy": pytest.approx(balanced_accuracy_score(y, guess), abs=1e-9),
        "auroc": pytest.approx(roc_auc_score(y, p / p.sum(axis=1, keepdims=True), multi_class="ovr"), abs=1e-9),
        "sensitivity": {str(k): pytest.approx((guess == k)[y == k].mean(), abs=1e-9) for k in range(3)},
    }
    assert f"balanced accuracy {100 * balanced_accuracy_score(y, guess):.2f} %, AUROC " in capsys.readouterr().out
    confusion = pd.read_csv(tmp_path / "confusion.csv", index_col=0)
    assert confusion.to_numpy().tolist() == confusion_matrix(y, guess, labels=range(3)).tolist()
    assert confusion.columns.tolist() == ["0", "1", "2"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["clients.csv", "confusion.csv", "evaluation.json"]
