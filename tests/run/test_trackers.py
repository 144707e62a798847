"""Runs in Weights & Biases, read back; what they are called there; other loggers; and sweeps."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import wandb
import yaml
from hydra.errors import MissingConfigException

from fedem_lightning import FedAvg, FedEM, FederatedAlgorithm
from fedem_lightning.run.command_line import not_composed
from helpers.commands import TINY, call
from helpers.wandb_files import WandbRun

pytestmark = pytest.mark.filterwarnings(
    "ignore::sqlalchemy.exc.SADeprecationWarning",  # in Optuna
    "ignore::sqlalchemy.exc.MovedIn20Warning",
    "ignore::DeprecationWarning:wandb",
)
RUN = [
    *TINY,
    "trainer.check_val_every_n_epoch=1",
    "callbacks.checkpoint.every_n_rounds=2",
    "dataset.unseen_fraction=0.25",
    "logger=wandb",
]
CHARTS = ["val/accuracy", "test/loss", "pi/mean_0", "objective", "up_megabytes", "lr"]


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    leave_surroundings(monkeypatch)


def leave_surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a key, a server or a run of the surroundings."""
    for name in ("WANDB_API_KEY", "WANDB_RUN_ID", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"NETRC": "/dev/null", "WANDB_SILENT": "true"}.items():
        monkeypatch.setenv(name, value)


def fail_once_in(monkeypatch: pytest.MonkeyPatch, kind: type, round_: int) -> None:
    """Lets the training fail in this round, but not a second time."""
    step: Any = vars(FederatedAlgorithm)["training_step"]
    failed: list[bool] = []

    def failing(model: Any, *arguments: Any) -> None:
        if model.current_epoch + 1 == round_ and not failed:
            failed.append(True)
            raise RuntimeError("the machine has failed")
        step(model, *arguments)

    monkeypatch.setattr(kind, "training_step", failing)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A run of 4 rounds that failed in the fourth, and continued after the second."""
    place = tmp_path_factory.mktemp("trackers")
    with pytest.MonkeyPatch.context() as patch:
        leave_surroundings(patch)
        fail_once_in(patch, FedEM, 4)
        assert call(place, patch, *RUN, "run_dir=run") == 1
        assert call(place, patch, *RUN, "run_dir=run", "ckpt_path=auto") == 0
        yield place / "run"


@pytest.fixture(scope="module")
def curves(folder: Path) -> pd.DataFrame:
    return pd.read_csv(folder / "metrics.csv")


def of_file(curves: pd.DataFrame, name: str) -> tuple[list[int], Any]:
    """The rounds that have a metric, and its values."""
    cells = curves[["round", name]].dropna()
    return cells["round"].tolist(), pytest.approx(cells[name].tolist())


def test_wandb_continues_its_run_and_has_every_round(folder: Path, curves: pd.DataFrame) -> None:
    sent = WandbRun(folder)
    assert len(sent.runs) == 2
    assert len({run.run_id for run in sent.runs}) == 1
    assert sent.exits == [1, 0]
    for name in CHARTS:  # round 3 comes twice: after the checkpoint of round 2 it was computed again
        cells = {row["trainer/global_step"]: row[name] for row in sent.history if name in row}
        assert ([*cells], [*cells.values()]) == of_file(curves, name)


def test_wandb_has_names_settings_and_summary(folder: Path) -> None:
    sent = WandbRun(folder)
    first, results = sent.runs[0], json.loads((folder / "results.json").read_text())
    assert first.display_name == f"fedem-{results['dataset']}-s0"
    assert sent.config["algorithm.n_components"] == 3
    assert sent.config["data_dir"] == '${oc.env:FEDEM_LIGHTNING_DATA,"~/.cache/fedem-lightning"}'
    assert sent.summary["test/accuracy"] == results["test"]["accuracy"]["weighted"]
    assert sent.summary["test_unseen/loss_mean"] == results["unseen"]["test"]["loss"]["mean"]


def test_every_job_of_a_sweep_has_its_own_run_also_after_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fail_once_in(monkeypatch, FedAvg, 1)
    sweep = ["algorithm=fedavg", "seed=3,4", "logger=wandb", "run_dir=sweep", "trainer.max_epochs=1"]
    assert call(tmp_path, monkeypatch, "-m", *TINY, *sweep) == 1
    assert wandb.run is None
    assert capsys.readouterr().out.count("W&B: no API key found, so this run is kept offline") == 2
    found = [WandbRun(path) for path in sorted(tmp_path.glob("sweep/*seed=*"))]
    assert [run.exits for run in found] == [[1], [0]]
    (first,), (second,) = (run.runs for run in found)
    assert first.run_id != second.run_id
    assert [first.display_name[-3:], second.display_name[-3:]] == ["-s3", "-s4"]


# --- without a run ----------------------------------------------------------------------------------------------------


def test_a_wrong_option_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(tmp_path, monkeypatch, *TINY, "logger=wandb", "+logger.wandb.entitty=me", "run_dir=run") == 2
    assert capsys.readouterr().err.startswith("error: logger.wandb: ")
    assert not (tmp_path / "run").exists()


def test_a_logger_of_ones_own_gets_the_rounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["+logger.mine._target_=pytorch_lightning.loggers.CSVLogger", "+logger.mine.name=mine"]
    assert call(tmp_path, monkeypatch, *TINY, *words, "run_dir=run", "trainer.max_epochs=2") == 0
    found = pd.read_csv(tmp_path / "run" / "mine" / "version_0" / "metrics.csv")
    assert sorted({*found["step"]}) == pd.read_csv(tmp_path / "run" / "metrics.csv")["round"].tolist()


# --- sweeps -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow  # Optuna and its data base take seconds to load
def test_optuna_maximises_validation_accuracy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three trials, the first of which fails."""
    fail_once_in(monkeypatch, FedAvg, 1)
    sweep = ["+tune=learning_rate", "algorithm=fedavg", "run_dir=tuned", "hydra.sweeper.n_trials=3"]
    assert call(tmp_path, monkeypatch, "-m", *TINY, *sweep) == 0
    found = {}
    for path in tmp_path.glob("tuned/*/results.json"):
        results = json.loads(path.read_text())
        config = yaml.safe_load((path.parent / ".hydra" / "config.yaml").read_text())
        found[config["algorithm"]["client_optimizer"]["lr"]] = results
    assert len(found) == 2
    assert all(0.001 <= lr <= 10 for lr in found)
    best = yaml.safe_load((tmp_path / "tuned" / "optimization_results.yaml").read_text())
    scores = {lr: results["val"]["accuracy"]["weighted"] for lr, results in found.items()}
    assert best["best_value"] == max(scores.values())
    assert scores[best["best_params"]["algorithm.client_optimizer.lr"]] == best["best_value"]


def test_without_optuna_a_line_says_what_to_install() -> None:
    error = not_composed(MissingConfigException("", "hydra/sweeper/optuna", ["basic"]), [])
    assert (
        str(error) == 'hydra/sweeper=optuna: not installed; in the clone of fedem-lightning: pip install -e ".[optuna]"'
    )
