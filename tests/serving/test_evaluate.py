"""`python -m fedem_lightning.evaluate`: a run's scores again, to the bit, and what they say of other rows."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from sklearn.metrics import (
    balanced_accuracy_score,
    confusion_matrix,
    mean_absolute_error,
    r2_score,
    roc_auc_score,
)

from fedem_lightning import FedEM, FederatedDataModule, load_clients
from fedem_lightning.data.formats.npz import read_npz
from fedem_lightning.data.own_files import ARRAYS
from fedem_lightning.evaluate import main
from fedem_lightning.serving.clients_on_rows import predictions
from fedem_lightning.serving.model_files import write_clients
from fedem_lightning.serving.rows import read_rows
from helpers.federations import make_model, train
from helpers.runs import snapshot
from helpers.serving import refused


@pytest.fixture(autouse=True)
def _undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Figure, "savefig", lambda figure, path, **options: path.write(b"png"))


def evaluation(folder: Path, *arguments: str | Path) -> dict[str, Any]:
    main([*map(str, arguments), "--out", str(folder)])
    found: dict[str, Any] = json.loads((folder / "evaluation.json").read_text())
    return found


@pytest.mark.parametrize("algorithm", ["fedem", "fedavg", "fedavg_plus", "clustered", "local"])
def test_a_run_has_its_scores_again(
    algorithm: str, run_of: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = run_of(algorithm)
    before, saved = snapshot(run), json.loads((run / "results.json").read_text())
    capsys.readouterr()
    found = evaluation(tmp_path, run)
    assert found["scores"] == {"9 seen": saved["test"], "3 unseen": saved["unseen"]["test"]}
    assert found["equal"]
    out = capsys.readouterr().out
    assert "equal to results.json, to the last bit: seen clients (train, val, test), unseen clients" in out
    assert max(map(len, out.split("all 72 test")[0].splitlines())) <= 80
    assert found["quality"].keys() == {"calibration_error", "balanced_accuracy", "auroc", "sensitivity"}
    assert snapshot(run) == before
    clients = pd.read_csv(tmp_path / "clients.csv")
    assert len(clients) == 12
    assert algorithm != "clustered" or clients.cluster.nunique() > 1


@pytest.mark.parametrize("population", ["seen", "unseen"])
def test_scores_that_differ_are_named(
    population: str, place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the last bit of one of them; the exit code is 1."""
    shutil.copytree(place / "fedem", tmp_path / "run")
    saved = json.loads((tmp_path / "run" / "results.json").read_text())
    part = saved if population == "seen" else saved["unseen"]
    part["val"]["loss"]["mean"] = float(np.nextafter(part["val"]["loss"]["mean"], 9))
    (tmp_path / "run" / "results.json").write_text(json.dumps(saved))
    with pytest.raises(SystemExit) as stop:
        main([str(tmp_path / "run")])
    assert stop.value.code == 1
    assert f"not equal to results.json: {population} clients, val loss, mean" in capsys.readouterr().out


def test_a_run_that_has_not_ended_is_scored(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(place / "fedem", tmp_path / "run")
    (tmp_path / "run" / "results.json").unlink()
    assert evaluation(tmp_path / "out", tmp_path / "run")["equal"] is None
    assert "no results.json" in capsys.readouterr().out


def test_another_split(place: Path, tmp_path: Path) -> None:
    saved = json.loads((place / "fedem" / "results.json").read_text())
    found = evaluation(tmp_path, place / "fedem", "--split", "train")
    assert found["scores"] == {"9 seen": saved["train"], "3 unseen": saved["unseen"]["train"]}
    assert found["n_samples"] == 12 * 15
    found = evaluation(tmp_path / "rows", place / "fedem", place / "seen.npz", "--split", "train")
    assert found["scores"] == {"9": saved["train"]}


def test_rows_of_the_run_have_its_scores(place: Path, tmp_path: Path) -> None:
    """Given as a file: the same clients, the same test samples, the same sums."""
    saved = json.loads((place / "fedem" / "results.json").read_text())
    for name in ("seen.npz", "seen.csv"):
        found = evaluation(tmp_path / name, place / "fedem", place / name)
        assert found["scores"] == {"9": saved["test"]}
        assert found["notes"] == ["weighted: by the training rows of DATA"]


def test_rows_without_a_split_are_all_scored(place: Path, tmp_path: Path) -> None:
    table = pd.read_csv(place / "seen.csv")
    table.drop(columns="split").to_csv(tmp_path / "plain.csv", index=False)
    found = evaluation(tmp_path / "out", place / "fedem", tmp_path / "plain.csv")
    assert found["n_samples"] == len(table)
    assert found["notes"] == ["weighted: by the training samples of the run"]
    clients = pd.read_csv(tmp_path / "out" / "clients.csv")
    assert clients.n_test.tolist() == [24] * 9
    assert clients.n_train.tolist() == [15] * 9


def test_calibration_confusion_and_scores_of_classes_are_those_worked_out_by_hand(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = evaluation(tmp_path, place / "fedem", place / "seen.npz")
    models = load_clients(place / "fedem")
    rows = read_rows(place / "seen.npz", models.schema)
    data = read_npz(place / "seen.npz", ARRAYS)
    test = data["split"] == 2
    table, y = predictions(models, rows)[test], data["y"][test]
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
    assert confusion.index.tolist() == [0, 1, 2]
    files = ["clients.csv", "clients.png", "confusion.csv", "confusion.png", "evaluation.json"]
    assert sorted(path.name for path in tmp_path.iterdir()) == files


@pytest.mark.parametrize("n_targets", [1, 2])
def test_a_regression_has_its_errors(n_targets: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x, client = rng.normal(size=(60, 4)), np.arange(60) % 3
    y = x[:, :n_targets] * 2 + 0.1 * rng.normal(size=(60, n_targets))
    y = y[:, 0] if n_targets == 1 else y
    data = FederatedDataModule.from_arrays(x, y, client, task="regression")
    models = train(make_model(FedEM, data), data, 5).trained_model.clients_models()
    write_clients(tmp_path / "c.safetensors", models)
    np.savez(tmp_path / "d.npz", x=x, y=y, client=client)
    found = evaluation(tmp_path / "out", tmp_path / "c.safetensors", tmp_path / "d.npz")
    mean = np.stack([models.model(str(client[i])).predict(x[i : i + 1])[0] for i in range(60)])
    assert found["quality"] == {
        "r2": pytest.approx(r2_score(y, mean), abs=1e-9),
        "mean_absolute_error": pytest.approx(mean_absolute_error(y, mean), abs=1e-9),
    }
    squared = ((mean - y.reshape(60, -1)) ** 2).mean()
    assert found["scores"]["3"]["mse"]["pooled"] == pytest.approx(squared, abs=1e-9)
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["clients.csv", "clients.png", "evaluation.json"]


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["nowhere"], "no such run or file"),
        (["here"], "no checkpoint here"),
        (["fedem", "--out", "held"], "--out: held already holds clients.csv"),
        (["fedem", "--out", "text.txt"], "--out: text.txt is no folder"),
        (["fedem", "--client-column", "a"], "--client-column: only with DATA"),
        (["fedem", "--split", "rest"], "invalid choice: 'rest'"),
        (["c.safetensors"], "DATA: give a file to score; c.safetensors has no data set of its own"),
        (["bare"], "config.yaml: no such file, so the run's data set cannot be built again; give DATA"),
        (["moved"], r"its data set cannot be built again \(path: no file"),
        (["other"], "trained on another federation"),
        (["listed"], "config.yaml is broken: .hydra/config.yaml has no keys; give DATA"),
        (["garbled"], "results.json: not the results of a run"),
        (["fedem", "plain.npz", "--split", "val"], "--split: val, but DATA has no split"),
        (["fedem", "unlabelled.npz"], "has no labels"),
        (["fedem", "unseen.npz"], "3 of 3 clients have no model"),
        (["fedem", "untested.npz"], "--split: DATA has no test rows"),
        (["fedavg_plus", "seen.npz"], "tune their models on their own samples"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_is_one_line_and_leaves_no_file(
    arguments: list[str],
    line: str,
    place: Path,
    run_of: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run_of("fedavg_plus")
    for name in ("fedem", "fedavg_plus", "seen.npz", "unseen.npz"):
        (tmp_path / name).symlink_to(place / name)
    data = read_npz(place / "seen.npz", ARRAYS)
    np.savez(tmp_path / "plain.npz", **{k: v for k, v in data.items() if k != "split"})  # type: ignore[arg-type]
    np.savez(tmp_path / "unlabelled.npz", **{k: v for k, v in data.items() if k != "y"})  # type: ignore[arg-type]
    np.savez(tmp_path / "untested.npz", **{**data, "split": data["split"] * 0})  # type: ignore[arg-type]
    for name in ("here", "held"):
        (tmp_path / name).mkdir()
    for name in ("held/clients.csv", "text.txt", "c.safetensors"):
        (tmp_path / name).write_text("mine")
    for name in ("bare", "moved", "other", "garbled", "listed"):
        shutil.copytree(place / "fedem", tmp_path / name)
    shutil.rmtree(tmp_path / "bare" / ".hydra")
    for name, (old, new) in {
        "moved": ("all.npz", "gone.npz"),
        "other": ("unseen_fraction: 0.25", "unseen_fraction: 0.5"),
    }.items():
        config = tmp_path / name / ".hydra" / "config.yaml"
        assert old in config.read_text()
        config.write_text(config.read_text().replace(old, new))
    (tmp_path / "garbled" / "results.json").write_text("{}")
    (tmp_path / "listed" / ".hydra" / "config.yaml").write_text("[1, 2]\n")
    before = sorted(tmp_path.rglob("*"))
    monkeypatch.chdir(tmp_path)
    assert re.search(line, refused(main, capsys, *arguments))
    assert sorted(tmp_path.rglob("*")) == before


def test_force_writes_over_an_evaluation(place: Path, tmp_path: Path) -> None:
    (tmp_path / "clients.csv").write_text("old")
    evaluation(tmp_path, place / "fedem", place / "seen.npz", "--force")
    assert len(pd.read_csv(tmp_path / "clients.csv")) == 9
