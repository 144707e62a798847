"""Runs in Weights & Biases, TensorBoard and MLflow, read back; and what they are called there."""

import importlib.util
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
import pytest
import wandb
import yaml
from hydra import compose, initialize_config_dir
from hydra.errors import MissingConfigException
from hydra.utils import instantiate
from mlflow import MlflowClient
from pytorch_lightning.loggers import CSVLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import fedem_lightning
from fedem_lightning import FedAvg, FedEM, FederatedAlgorithm, UserError
from fedem_lightning.run import mlflow_and_tensorboard, trackers, wandb_runs
from fedem_lightning.run.constants import Constants
from fedem_lightning.run.not_composed import not_composed
from fedem_lightning.run.pictures import is_shown
from fedem_lightning.run.tracker_contents import (
    LONGEST_GROUP,
    LONGEST_TAG,
    best_round,
    flat_config,
    named_scores,
    other_numbers,
    tracked,
)
from fedem_lightning.run.wandb_runs import MOST_ROWS, _shown, files_of, records
from helpers.commands import CONFIG_DIR, TINY, call, finish, start
from helpers.runs import leave_undrawn

pytestmark = pytest.mark.filterwarnings(
    "ignore::sqlalchemy.exc.SADeprecationWarning",  # in MLflow and Optuna
    "ignore::sqlalchemy.exc.MovedIn20Warning",
    "ignore::DeprecationWarning:wandb",
)
RUN = [
    *TINY,
    "trainer.check_val_every_n_epoch=1",
    "callbacks.checkpoint.every_n_rounds=2",
    "dataset.unseen_fraction=0.25",
]
RUN += ["logger=[wandb,tensorboard,mlflow]", "logger.wandb.log_model=true", "logger.mlflow.log_model=all"]


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a key, a server or a run of the surroundings."""
    leave_surroundings(monkeypatch)


def leave_surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WANDB_API_KEY", "NETRC", "MLFLOW_TRACKING_URI", "WANDB_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"WANDB_MODE": "offline", "WANDB_SILENT": "true"}.items():
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


class Read:
    """Files of W&B: history, configuration and summary, over all files of a run."""

    def __init__(self, paths: list[Path]) -> None:
        self.runs: list[Any] = []
        self.history: list[dict[str, Any]] = []
        self.config: dict[str, Any] = {}
        self.summary: dict[str, Any] = {}
        self.exits: list[int] = []
        self.artefacts: list[str] = []
        self.metrics: list[Any] = []
        for path in paths:
            for record in records(path):
                self._add(record)

    def _add(self, record: Any) -> None:
        kind = record.WhichOneof("record_type")
        if kind == "run":
            self.runs.append(record.run)
        elif kind == "history":
            self.history.append(_items(record.history.item))
        elif kind == "config":
            self.config.update(_items(record.config.update))
        elif kind == "summary":
            self.summary.update(_items(record.summary.update))
        elif kind == "exit":
            self.exits.append(record.exit.exit_code)
        elif kind == "artifact":
            self.artefacts.append(record.artifact.type)
        elif kind == "metric":
            self.metrics.append(record.metric)


def _items(items: Any) -> dict[str, Any]:
    return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A run of 4 rounds that failed in the fourth, and continued after the second."""
    place = tmp_path_factory.mktemp("trackers")
    with pytest.MonkeyPatch.context() as patch:
        leave_surroundings(patch)
        patch.setattr("mlflow.tracking._tracking_service.utils._tracking_uri", None)  # an earlier test's default
        patch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{place}/mlflow.db")
        fail_once_in(patch, FedEM, 4)
        assert call(place, patch, *RUN, "run_dir=run") == 1
        assert "RuntimeError: the machine has failed" in (place / "run" / "error.txt").read_text()
        (place / "first.csv").write_bytes((place / "run" / "metrics.csv").read_bytes())
        assert call(place, patch, *RUN, "run_dir=run", "ckpt_path=auto") == 0
        yield place / "run"


@pytest.fixture(scope="module")
def curves(folder: Path) -> pd.DataFrame:
    return pd.read_csv(folder / "metrics.csv")


@pytest.fixture(scope="module")
def sent(folder: Path) -> Read:
    """What the W&B run holds."""
    return Read(files_of(folder, json.loads((folder / "trackers.json").read_text())["wandb"]))


SPLITS = ("train/", "val/", "test/")
SCORES = ["val/accuracy", "test/loss", "pi/mean_0", "pi/entropy", "objective", "up_megabytes"]


def values_of(curves: pd.DataFrame, name: str) -> tuple[list[int], Any]:
    """The rounds that have a metric, and its values."""
    cells = curves[["round", name]].dropna()
    return cells["round"].tolist(), pytest.approx(cells[name].tolist())


def test_wandb_continues_its_run_and_has_every_round_once(sent: Read, curves: pd.DataFrame, folder: Path) -> None:
    assert len(list(folder.glob("wandb/offline-run-*"))) == len(sent.runs) == 2
    assert sent.runs[0].run_id == sent.runs[1].run_id
    assert sent.exits == [1, 0]
    assert [row["round"] for row in sent.history] == [0, 1, 2, 3, 4]
    for name in SCORES:
        cells = [(row["round"], row[name]) for row in sent.history if name in row]
        assert ([round_ for round_, _ in cells], [value for _, value in cells]) == values_of(curves, name)
    assert not any("epoch" in row or "trainer/global_step" in row for row in sent.history)
    assert {(m.name or m.glob_name, m.step_metric) for m in sent.metrics} == {("round", ""), ("*", "round")}


def test_wandb_has_the_flat_configuration_alone(sent: Read) -> None:
    with initialize_config_dir(str(CONFIG_DIR), version_base="1.3"):
        expected = flat_config(compose("config", [*RUN, "run_dir=run", "ckpt_path=auto"]))
    assert sent.config == expected
    assert sent.config["algorithm.n_components"] == 3
    assert sent.config["trainer.max_epochs"] == 4


def test_wandb_names_the_run(sent: Read) -> None:
    first = sent.runs[0]
    assert first.display_name == f"{first.run_group}-s0"
    assert re.fullmatch("fedem-synthetic-[0-9a-f]{6}", first.run_group)  # a digest of six keys
    assert list(first.tags) == ["fedem", "synthetic", "seed=0"]


def test_wandb_has_the_results_tables_and_figures(sent: Read, curves: pd.DataFrame, folder: Path) -> None:
    results = json.loads((folder / "results.json").read_text())
    best = int(curves["val/accuracy"].to_numpy().argmax())
    assert sent.summary["best/round"] == best  # row 0 is before the first round
    assert sent.summary["best/test/accuracy"] == pytest.approx(curves["test/accuracy"][best])
    assert sent.summary["test/accuracy"] == results["test"]["accuracy"]["weighted"]
    assert sent.summary["test_unseen/loss_worst"] == results["unseen"]["test"]["loss"]["worst"]
    last = sent.history[-1]
    assert {name for name in last if name.startswith("figures/") and name.endswith("_type")} == {
        f"figures/{name}/_type" for name in ("accuracy_over_clients", "mixture_weights")
    }
    clients = pd.read_parquet(folder / "clients.parquet")
    (path,) = folder.glob("wandb/offline-run-*/files/media/table/clients_*.table.json")
    table = json.loads(path.read_text())
    assert table["columns"] == clients.columns.tolist()
    assert [row[0] for row in table["data"]] == clients["id"].tolist()
    assert "clients/nrows" not in sent.history[-2]
    seen = clients[clients.population == "seen"]
    bins = last["clients/test_accuracy/bins"]
    assert sum(last["clients/test_accuracy/values"]) == len(seen)
    assert (bins[0], bins[-1]) == pytest.approx((seen.test_accuracy.min(), seen.test_accuracy.max()))
    assert sent.artefacts.count("model") == 1


def test_no_chart_has_one_point_or_a_constant(sent: Read, folder: Path) -> None:
    """Of a run with four evaluations: what is known once is in the summary, and so is test accuracy, by one name."""
    history: dict[str, list[Any]] = {}
    for row in sent.history:
        for name, value in row.items():
            history.setdefault(name, []).append(value)
    once = {name for name, values in history.items() if len(values) < 4}
    assert all(name.startswith("clients/") for name in once)  # the table, which is no chart
    constant = {"rejected", "rejected_updates", "stragglers", "cohort", "lr"}
    charts = {name: v for name, v in history.items() if not name.startswith(("clients/", "figures/", *SPLITS))}
    assert not [name for name, values in charts.items() if len(set(values)) == 1]
    assert constant <= sent.summary.keys() - history.keys()
    assert {name for name in sent.summary if name.endswith("test/accuracy")} == {"test/accuracy", "best/test/accuracy"}
    pictures = [row["figures/mixture_weights/path"] for row in sent.history[1:]]
    assert len(set(pictures)) == 4
    assert all((next(folder.glob("wandb/*/files")).parent.parent).glob(f"*/files/{path}") for path in pictures)
    events = EventAccumulator(str(folder / "tensorboard"), size_guidance={"scalars": 0, "images": 0})
    events.Reload()
    for name in events.Tags()["scalars"]:
        values = [event.value for event in events.Scalars(name)]
        assert len(values) >= 4
        assert name.startswith(SPLITS) or len(set(values)) > 1
    assert not constant & {*events.Tags()["scalars"]}
    for name in ("mixture_weights", "accuracy_over_clients"):
        assert [event.step for event in events.Images(f"figures/{name}")] == [1, 2, 3, 4]
    client = MlflowClient(f"sqlite:///{folder.parent}/mlflow.db")
    (run,) = client.search_runs([client.get_experiment_by_name("fedem-lightning").experiment_id])
    assert run.data.metrics.keys() == {*events.Tags()["scalars"]}
    assert not run.data.tags.keys() & run.data.metrics.keys()


def test_tensorboard_has_every_round_once(folder: Path, curves: pd.DataFrame) -> None:
    events = EventAccumulator(str(folder / "tensorboard"), size_guidance={"scalars": 0, "images": 0})
    events.Reload()
    for name in SCORES:
        found = events.Scalars(name)
        assert ([event.step for event in found], [event.value for event in found]) == values_of(curves, name)
    assert {"figures/accuracy_over_clients", "figures/mixture_weights"} == set(events.Tags()["images"])
    assert events.Tags()["histograms"] == ["clients/test_accuracy"]
    (text,) = events.Tensors("results/text_summary")
    assert b"| best/val/accuracy | " in text.tensor_proto.string_val[0]
    content = events.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    assert b"algorithm.n_components" in content
    assert b"test/accuracy" in events.SummaryMetadata("_hparams_/experiment").plugin_data.content
    config = yaml.safe_load((folder / "tensorboard" / "hparams.yaml").read_text())
    assert config["algorithm.n_components"] == 3
    assert not any(isinstance(value, dict) for value in config.values())


def test_mlflow_continues_its_run(folder: Path, curves: pd.DataFrame) -> None:
    client = MlflowClient(f"sqlite:///{folder.parent}/mlflow.db")
    (run,) = client.search_runs([client.get_experiment_by_name("fedem-lightning").experiment_id])
    assert run.info.status == "FINISHED"
    assert run.info.run_id == json.loads((folder / "trackers.json").read_text())["mlflow"]
    for name in SCORES:
        history = client.get_metric_history(run.info.run_id, name)
        assert ([point.step for point in history], [point.value for point in history]) == values_of(curves, name)
    assert float(run.data.tags["best/val/accuracy"]) == pytest.approx(curves["val/accuracy"].max(), rel=1e-5)
    assert "test_unseen/accuracy" in run.data.tags
    assert run.data.params["algorithm.n_components"] == "3"
    assert run.data.params["ckpt_path"] == "None"
    assert not any(name.startswith(("backbone/", "data/")) for name in run.data.params)
    assert run.data.tags["mlflow.runName"] == f"{run.data.tags['group']}-s0"
    assert run.data.tags["algorithm"] == "fedem"
    files = {
        file.path for kind in (None, "figures", "checkpoints") for file in client.list_artifacts(run.info.run_id, kind)
    }
    assert {"results.json", "clients.parquet", "figures/accuracy_by_round.png"} <= files
    assert {"checkpoints/round-000002.ckpt", "checkpoints/round-000004.ckpt"} <= files


def test_rounds_computed_again_are_those_sent_first(folder: Path, curves: pd.DataFrame) -> None:
    before = pd.read_csv(folder.parent / "first.csv")
    assert before["round"].tolist() == [0, 1, 2, 3]
    measured = ["seconds", "training_seconds"]
    pd.testing.assert_frame_equal(before.drop(columns=measured), curves.iloc[:4].drop(columns=measured))


def test_every_job_of_a_sweep_has_its_own_run_also_after_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_once_in(monkeypatch, FedAvg, 1)
    sweep = ["algorithm=fedavg", "seed=3,4", "logger=wandb", "run_dir=sweep", "trainer.max_epochs=1"]
    assert call(tmp_path, monkeypatch, "-m", *TINY, *sweep) == 1
    assert wandb.run is None
    found = [Read([path]) for path in sorted(tmp_path.glob("sweep/*/wandb/*run-*/*.wandb"))]
    assert [run.exits for run in found] == [[1], [0]]
    (first,), (second,) = (run.runs for run in found)
    assert first.run_id != second.run_id
    assert first.run_group == second.run_group
    assert [first.display_name[-3:], second.display_name[-3:]] == ["-s3", "-s4"]


# --- without a run ----------------------------------------------------------------------------------------------------


class Recorder(CSVLogger):
    """Stands for one of Lightning's loggers."""

    def __init__(self, path: Path, has: int) -> None:
        super().__init__(path)
        self.has, self.rows = has, dict[int, Any]()

    def log_metrics(self, metrics: Any, step: int | None = None) -> None:
        assert step not in self.rows
        self.rows[int(step or 0)] = dict(metrics)


class Tracker(trackers.RoundTracker, Recorder):  # type: ignore[misc]
    def open(self, run: trackers.Tracked) -> int:
        return self.has


@pytest.mark.parametrize(("has", "expected"), [(0, [1, 2, 3, 4]), (1, [2, 3, 4]), (3, [4]), (4, [])])
def test_a_tracker_gets_the_rounds_that_it_lacks(has: int, expected: list[int], tmp_path: Path) -> None:
    """A run continues after round 2, whatever has become of what it has sent: a kill loses what was not written."""
    pd.DataFrame({"round": [1, 2, 3], "lr": [0.1, 0.2, 9.0], "val/loss": [np.nan, 0.5, 9.0]}).to_csv(
        tmp_path / "metrics.csv", index=False
    )
    tracker = Tracker(tmp_path, has)
    trackers.begin([tracker], trackers.Tracked(tmp_path, "group", "name", {}, {}, resumed_rounds=2))
    for round_ in (3, 4):
        tracker.log_metrics({"lr": round_ / 10}, round_)
    assert sorted(tracker.rows) == expected
    assert tracker.rows.get(1, {}) == {}  # a learning rate that nothing has changed yet
    assert tracker.rows.get(2, {"lr": 0.2, "val/loss": 0.5}) == {"lr": 0.2, "val/loss": 0.5}


def composed(*overrides: str) -> Any:
    with initialize_config_dir(str(CONFIG_DIR), version_base="1.3"):
        return compose("config", list(overrides))


def named(*overrides: str, **choices: str) -> trackers.Tracked:
    chosen = {"algorithm": "fedem", "adaptation": "none", "dataset": "synthetic", **choices}
    return tracked(Path("run"), composed(*overrides), chosen, list(overrides))


DIGITS = {"dataset": "digits", "experiment": "digits"}


def test_runs_share_their_group_if_they_differ_in_seed_and_machine_alone() -> None:
    one = named("+experiment=digits", "seed=1", "run_dir=a", "logger=wandb", "trainer.devices=2", **DIGITS)
    two = named("+experiment=digits", "seed=2", "engine=loop", "data_dir=b", **DIGITS)
    assert one.group == two.group == "fedem-digits"
    assert (one.name, two.name) == ("fedem-digits-s1", "fedem-digits-s2")
    assert list(one.tags.items()) == [
        ("experiment", "digits"),
        ("algorithm", "fedem"),
        ("dataset", "digits"),
        ("seed", "1"),
    ]
    other = named("algorithm.n_components=2", "trainer.max_epochs=5")
    assert re.fullmatch("fedem-synthetic-[0-9a-f]{6}", other.group)  # n_components is another key, too
    assert named(algorithm="fedavg", adaptation="finetune").tags["algorithm"] == "fedavg+finetune"
    assert named("trainer.max_epochs=5").group == "fedem-synthetic-max_epochs=5"
    assert named("+experiment=table2", experiment="table2").group == "fedem-synthetic-table2"


def test_long_names_are_cut_and_stay_apart() -> None:
    choices = {"algorithm": "fedem", "dataset": 300 * "d"}
    one, two = (tracked(Path("run"), composed(), choices, [f"+note={300 * 'a'}\n{end}"]) for end in "bc")
    assert max(len(one.group), len(two.group)) <= LONGEST_GROUP
    assert one.group != two.group
    assert len(one.tags["dataset"]) == LONGEST_TAG


def test_values_of_the_environment_stay_out_of_the_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDEM_LIGHTNING_DATA", "/home/me/private")
    flat = flat_config(composed("+dataset.token=${oc.env:FEDEM_LIGHTNING_DATA}", "dataset=mnist", "backbone=cnn"))
    assert flat["dataset.token"] == "${oc.env:FEDEM_LIGHTNING_DATA}"
    assert "/home/me/private" not in str(flat)
    assert flat["data_dir"] == '${oc.env:FEDEM_LIGHTNING_DATA,"~/.cache/fedem-lightning"}'
    assert flat["algorithm.client_optimizer.lr"] == composed("dataset=mnist").default_lr


def test_the_best_round_is_that_of_validation() -> None:
    curves = pd.DataFrame(
        {
            "round": [1, 2, 3, 4, 5],
            "val/accuracy": [np.nan, 0.7, 0.8, 0.8, np.nan],
            "val/loss": [np.nan, 0.9, 0.5, 0.4, np.nan],
            "test/accuracy": [np.nan, 0.9, 0.6, 0.65, np.nan],
        }
    )
    assert best_round(curves) == {"best/round": 3, "best/val/accuracy": 0.8, "best/test/accuracy": 0.6}
    regression = pd.DataFrame({"round": [1, 2], "val/mse": [3.0, 4.0], "test/mse": [5.0, 4.0]})
    assert best_round(regression)["best/test/mse"] == 5.0
    assert best_round(curves.drop(columns=["val/accuracy", "val/loss"])) == {}
    assert best_round(curves[["round"]]) == {}


def test_results_have_the_names_of_the_metrics() -> None:
    sums = {"weighted": 0.5, "mean": 0.4, "worst": float("nan")}
    results = {
        **{"test": {"loss": sums}, "train": {}, "val": {}, "unseen": {"test": {"loss": {"weighted": 2.0}}}},
        **{"rounds": 3, "data": {"a": "b", "c": True}, "seconds": {"total": 7.0}},
    }
    assert named_scores(results) == {"test/loss": 0.5, "test/loss_mean": 0.4, "test_unseen/loss": 2.0}
    assert other_numbers(results) == {"results/seconds/total": 7.0}


def test_a_constant_becomes_a_chart_once_it_changes() -> None:
    constants = Constants()
    assert constants.divide({"round": 1, "lr": 0.1, "stragglers": 0, "up_megabytes": 3.0, "test/loss": 0.0}) == (
        {"up_megabytes": 3.0, "test/loss": 0.0},
        {"lr": 0.1, "stragglers": 0},
    )
    assert constants.divide({"round": 2, "lr": 0.1, "stragglers": 2}) == ({"stragglers": 2}, {})
    assert constants.divide({"lr": 0.01, "stragglers": 0}) == ({"lr": 0.01, "stragglers": 0}, {})
    assert constants.divide({"lr": 0.1}) == ({"lr": 0.1}, {})
    assert constants.divide({"pi/mean_0": 1.0, "pi/entropy": 0.0}) == ({}, {})


def test_pictures_have_a_limit() -> None:
    assert [round_ for round_ in range(5, 1001, 5) if is_shown(round_, 1000, 5)] == [*range(10, 1001, 10)]
    assert is_shown(7, None, 1)
    assert is_shown(7, -1, None)
    assert is_shown(999, 999, 2)


def test_the_table_of_clients_has_a_limit() -> None:
    clients = pd.DataFrame({"id": np.arange(3 * MOST_ROWS)})
    shown = _shown(clients)["id"].tolist()
    assert len(shown) == len(set(shown)) == MOST_ROWS
    assert (shown[0], shown[-1]) == (0, 3 * MOST_ROWS - 1)
    assert _shown(clients[:5]) is not None


def without(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == package else find(name))


@pytest.mark.parametrize(
    ("extra", "package"),
    [("tensorboard", "tensorboard"), ("mlflow", "mlflow"), ("mlflow", "sqlalchemy")],
)
def test_a_missing_package_is_named(extra: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without(package, monkeypatch)
    with pytest.raises(UserError) as error:
        getattr(mlflow_and_tensorboard, f"{extra}_logger")(tmp_path)
    expected = f'logger={extra}: {package} is not installed; pip install "fedem-lightning[{extra}]"'
    assert str(error.value) == expected


def test_a_missing_package_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    without("tensorboard", monkeypatch)
    assert call(tmp_path, monkeypatch, *TINY, "logger=tensorboard", "run_dir=run") == 2
    err = capsys.readouterr().err
    assert err.startswith("error: logger=tensorboard: tensorboard is not installed; pip install")
    assert err.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_wrong_options_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^logger.wandb.log_model: expected true, false or all, got 'some'"):
        wandb_runs.wandb_logger(tmp_path, log_model=cast(Any, "some"))
    with pytest.raises(UserError, match=r"^logger.mlflow.log_model: expected true, false or all, got 3"):
        mlflow_and_tensorboard.mlflow_logger(tmp_path, log_model=cast(Any, 3))
    with pytest.raises(UserError, match=r"^logger.mlflow.tracking_uri: nowhere://"):
        mlflow_and_tensorboard.mlflow_logger(tmp_path, "nowhere://here")


# --- sweeps -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow  # Optuna and its data base take seconds to load
def test_optuna_maximises_validation_accuracy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three trials, the first of which fails."""
    leave_undrawn(monkeypatch)
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


def test_components_are_tuned_by_a_grid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the shipped sweep two numbers of components, whole and with a shared body."""
    leave_undrawn(monkeypatch)
    some = ["+tune=components", "n_components=1,2", "backbone=mlp", "backbone.hidden=[3]", "run_dir=tuned"]
    assert call(tmp_path, monkeypatch, "-m", *TINY, *some) == 0
    found = [yaml.safe_load(path.read_text()) for path in tmp_path.glob("tuned/*/.hydra/config.yaml")]
    chosen = {(config["n_components"], config["algorithm"]["shared"]) for config in found}
    assert chosen == {(m, shared) for m in (1, 2) for shared in (None, "body")}
    assert {config["algorithm"]["_target_"] for config in found} == {"fedem_lightning.FedEM"}


def test_without_optuna_a_line_says_what_to_install() -> None:
    error = not_composed(MissingConfigException("", "hydra/sweeper/optuna", ["basic"]), [])
    assert str(error) == 'hydra/sweeper=optuna: not installed; pip install "fedem-lightning[optuna]"'


def test_the_wandb_sweep_is_a_command_of_ours() -> None:
    sweep = yaml.safe_load((Path(fedem_lightning.__file__).parent / "sweeps" / "wandb.yaml").read_text())
    assert sweep["metric"] == {"name": "val/accuracy", "goal": "maximize"}
    given = {name: range_["min"] for name, range_ in sweep["parameters"].items()}
    words = [word.replace("${envvar:METHOD}", "fedavg") for word in sweep["command"]]
    assert words[:4] == ["${env}", "python", "-m", "fedem_lightning"]
    assert words[-1] == "${args_no_hyphens}"
    config = composed(*words[4:-1], *(f"{name}={value}" for name, value in given.items()))
    assert config.algorithm.client_optimizer.lr == 0.001
    assert instantiate(config.algorithm.client_optimizer).lr == 0.001
    assert list(config.logger) == ["wandb"]


@pytest.mark.slow
def test_wandb_has_every_round_once_after_a_kill(tmp_path: Path) -> None:
    """The process is killed without a warning; what W&B had not written yet is sent again."""
    variables = {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "WANDB_API_KEY": "", "HOME": str(tmp_path)}
    words = [*TINY, "logger=wandb", "trainer.max_epochs=30", "callbacks.checkpoint.every_n_rounds=4", "run_dir=run"]
    csv = tmp_path / "run" / "metrics.csv"
    for rows in (6, 15):
        process = start(tmp_path, *words, "ckpt_path=auto", **variables)
        while not csv.exists() or len(csv.read_text().splitlines()) < rows:
            assert process.poll() is None, process.communicate()
        process.kill()
        process.communicate()
    code, _, err = finish(start(tmp_path, *words, "ckpt_path=auto", **variables))
    assert code == 0, err
    files = files_of(tmp_path / "run", json.loads((tmp_path / "run" / "trackers.json").read_text())["wandb"])
    history = Read(files).history
    assert [row["round"] for row in history] == list(range(1, 31))
    assert [row["lr"] for row in history] == pytest.approx(pd.read_csv(csv)["lr"].tolist())
