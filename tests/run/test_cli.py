"""The command line as a user runs it, in an empty folder; in a process of its own where only that shows something."""

import json
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from omegaconf import OmegaConf
from pytorch_lightning.accelerators import MPSAccelerator

from fedem_lightning.models import client_store
from helpers.commands import TINY, call, finish, start


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A finished run, and what it printed."""
    folder = tmp_path_factory.mktemp("cli")
    code, out, err = finish(start(folder, *TINY, "dataset.unseen_fraction=0.25", "run_dir=first"))
    assert (code, err) == (0, "")
    return folder / "first", out


def test_a_run_leaves_a_whole_folder(finished: tuple[Path, str]) -> None:
    folder, out = finished
    names = {"results.json", "metrics.csv", "clients.parquet", "checkpoints", ".hydra", "test_samples.npz"}
    assert {p.name for p in folder.iterdir()} == names
    assert {p.name for p in (folder / ".hydra").iterdir()} == {"config.yaml", "overrides.yaml"}
    results = json.loads((folder / "results.json").read_text())
    expected = {"algorithm": "fedem", "dataset": "synthetic", "backbone": "linear", "seed": 0, "rounds": 4}
    assert {key: results[key] for key in expected} == expected
    overrides = " ".join([*TINY, "dataset.unseen_fraction=0.25", "run_dir=first"])
    assert (results["experiment"], results["command"]) == (None, f"python -m fedem_lightning {overrides}")
    assert (results["n_clients"], results["n_unseen_clients"]) == (6, 2)
    sums = {"weighted", "pooled", "mean", "bottom_decile", "worst"}
    for scores in (results["train"], results["val"], results["test"], results["unseen"]["test"]):
        assert scores["accuracy"].keys() == scores["loss"].keys() == sums
        assert all(0 <= v <= 1 for v in scores["accuracy"].values())
    assert 0.3 < results["reference"]["bayes_accuracy"] < 1  # on 30 test samples a client
    assert results["recovery"].keys() == {"match", "pi_cosine_distance", "theta_cosine_distance"}
    assert results["seconds"].keys() == {"total", "training", "per_round"}
    assert results["seconds"]["total"] > results["seconds"]["training"] > results["seconds"]["per_round"] > 0
    # 4 rounds, 6 clients, 3 models of 6 weights and a bias in float32, each way; before them each client sends a model
    # and receives one, and the 6 of all
    assert results["communication"] == {
        "up_bytes": (4 * 6 * 3 + 6) * 28,
        "down_bytes": (4 * 6 * 3 + 6 * 7) * 28,
        "air_bytes": (4 * (6 * 3 + 3) + 6 + 7) * 28,  # the server sends each component once, to all
        "time": {},
    }
    assert results["rejected_updates"] == 0
    assert results["environment"]["torch"] == torch.__version__.split("+")[0]
    assert results["engine"] == {
        "name": "vmap",
        "block_size": None,
        "reason": "a small network",
        "processes": 1,
        "precision": "32-true",
    }
    assert out.startswith("loading PyTorch and Lightning ...\n")  # within a second; what follows takes several
    for text in ("Bayes ceiling, test", "worst tenth", "test, 2 unseen clients", "s a round", "B up", "first"):
        assert text in out


def test_metrics_have_one_row_a_round_and_the_table_one_a_client(finished: tuple[Path, str]) -> None:
    folder, _ = finished
    metrics = pd.read_csv(folder / "metrics.csv")
    assert metrics["round"].tolist() == [0, 1, 2, 3, 4]
    assert metrics["val/accuracy"].notna().tolist() == [True, False, True, False, True]
    begun, metrics = metrics.iloc[0], metrics.iloc[1:]
    assert begun["down_megabytes"] >= begun["up_megabytes"] >= 0  # what the start of the components takes
    assert metrics["objective"].notna().all()
    seconds, own = metrics["training_seconds"].to_numpy(), metrics["seconds"].to_numpy()
    assert (np.diff(seconds) >= own[1:]).all()  # what evaluations took counts, too
    training = json.loads((folder / "results.json").read_text())["seconds"]["training"]
    assert own.sum() < seconds[-1] < training
    clients = pd.read_parquet(folder / "clients.parquet")
    assert clients.columns[:5].tolist() == ["id", "population", "n_train", "n_val", "n_test"]
    assert clients.population.value_counts().to_dict() == {"seen": 6, "unseen": 2}
    np.testing.assert_allclose(clients[["pi_0", "pi_1", "pi_2"]].sum(axis=1), 1, rtol=1e-5)
    seen = clients[clients.population == "seen"]
    results = json.loads((folder / "results.json").read_text())
    assert results["n_train_samples"] == seen.n_train.sum()
    weighted = np.average(seen.test_accuracy, weights=seen.n_train)
    assert results["test"]["accuracy"]["weighted"] == pytest.approx(weighted)


def test_the_start_says_who_takes_part_and_what_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As in `+experiment=femnist`, on a Mac: 15 % of the writers, whose momentum stays with them; no GPU."""
    images = np.random.default_rng(0).integers(0, 255, (400, 28, 28), dtype=np.uint8)
    np.savez(tmp_path / "writers.npz", x=images, y=np.arange(400) % 62, client=np.repeat(np.arange(20), 20))
    monkeypatch.setattr(client_store, "MEMORY_LIMIT", 0)
    monkeypatch.setattr(MPSAccelerator, "is_available", staticmethod(lambda: True))
    few = ["+experiment=femnist", "dataset.path=writers.npz", "backbone=mlp", "trainer.max_epochs=0"]
    assert call(tmp_path, monkeypatch, *few) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "trainer.accelerator: cpu, because a Mac's GPU (mps) has no float64, which scores need" in lines
    assert "3 of the data's 20 clients: dataset.n_clients=0.15 (null: all)" in lines
    kept = next(line for line in lines if line.startswith("clients keep their momentum: 65"))
    assert "kB for each of 3 clients, 2.0 MB" in kept
    assert f"in a temporary file of {tempfile.gettempdir()} (TMPDIR); local_training.state=restart" in kept


def test_a_run_evaluates_about_ten_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen, evaluated = [*TINY[:3], "trainer.max_epochs=25", "run_dir=run"], list(range(0, 25, 2))
    assert call(tmp_path, monkeypatch, *chosen) == 0
    metrics = pd.read_csv(tmp_path / "run" / "metrics.csv")
    assert metrics["round"][metrics["test/accuracy_pooled"].notna()].tolist() == evaluated
    assert metrics["round"][metrics["val/accuracy"].notna()].tolist() == evaluated


def test_a_quick_run_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    quick = ["logger=wandb", "+trainer.fast_dev_run=true"]
    assert call(tmp_path, monkeypatch, *TINY, *quick) == 0
    assert "\nfast_dev_run: a round, its evaluation and the test, and no file\n" in capsys.readouterr().out
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("asked", ["0", "1"])
def test_a_traceback_on_request(
    asked: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(tmp_path, monkeypatch, *TINY, "trainer.max_epochs=-1", HYDRA_FULL_ERROR=asked) == 2
    assert ("Traceback" in capsys.readouterr().err) == (asked == "1")


def test_methods_share_data_and_seeds_do_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    short = [*TINY, "trainer.max_epochs=1", "trainer.check_val_every_n_epoch=1"]
    assert call(tmp_path, monkeypatch, "-m", "algorithm=fedem,local", "seed=0,1", "run_dir=sweep", *short) == 0
    found = [json.loads(p.read_text()) for p in tmp_path.glob("sweep/*/results.json")]
    jobs = {(r["algorithm"], r["seed"]): r["federation_digest"] for r in found}
    assert sorted(jobs) == [("fedem", 0), ("fedem", 1), ("local", 0), ("local", 1)]
    for seed in (0, 1):
        assert jobs["fedem", seed] == jobs["local", seed] != jobs["local", 1 - seed]


def test_a_sweeps_folders_have_names_that_a_file_system_takes() -> None:
    config = OmegaConf.create({"name": "seed=0," * 60, "subdir": "7_${folder_name:${name}}"})
    assert len(config.subdir) == 202
    assert config.subdir.startswith("7_seed=0,seed=0")
