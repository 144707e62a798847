"""Which process of a run this one is: by a launch, not by a variable that something else has left behind."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lightning_utilities.core.rank_zero import rank_zero_only
from omegaconf import OmegaConf

from fedem_lightning import FedAvg, UserError
from fedem_lightning.run.devices import asked_processes, require_group
from fedem_lightning.run.metrics_file import RoundCSVLogger
from fedem_lightning.startup import process
from fedem_lightning.startup.process import PARENT
from helpers.commands import ENVIRONMENT, TINY, call
from helpers.federations import make_data, make_model, make_trainer
from helpers.runs import leave_undrawn, snapshot

ADDRESS = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
SECOND = {
    "torchrun": {"TORCHELASTIC_RUN_ID": "a", "RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", **ADDRESS},
    "torchrun, another machine": {
        **{"TORCHELASTIC_RUN_ID": "a", "RANK": "1", "LOCAL_RANK": "0", "GROUP_RANK": "1", "WORLD_SIZE": "2"},
        **ADDRESS,
    },
    "srun": {"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_LOCALID": "1", "SLURM_JOB_NAME": "train"},
    "jsrun": {"JSM_NAMESPACE_RANK": "1", "JSM_NAMESPACE_SIZE": "2"},
    "by hand": {"LOCAL_RANK": "1", "NODE_RANK": "0", "WORLD_SIZE": "2", **ADDRESS},
    "another machine, by hand": {"NODE_RANK": "1", "WORLD_SIZE": "2", **ADDRESS},
}
"""The second process of two, as launchers make it."""
ALONE: dict[str, dict[str, str]] = {
    **{name: {name: "1"} for name in ("RANK", "LOCAL_RANK", "NODE_RANK", "SLURM_PROCID", "JSM_NAMESPACE_RANK")},
    "Kubeflow": {"RANK": "1", "WORLD_SIZE": "2", **ADDRESS},
    "salloc": {"SLURM_PROCID": "3", "SLURM_NTASKS": "4", "SLURM_LOCALID": "3", "SLURM_JOB_NAME": "interactive"},
    "an empty one": {"RANK": "", "LOCAL_RANK": "x"},
}
"""A run of its own, whatever it asks for."""


@pytest.fixture(autouse=True)
def _as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    names = {name for part in (*SECOND.values(), *ALONE.values()) for name in part} | {PARENT}
    for name in names & os.environ.keys():
        monkeypatch.delenv(name)
    monkeypatch.setattr(process, "_is_another", False)
    monkeypatch.setattr(process, "end_with_the_first", lambda: None)
    before = vars(rank_zero_only)["rank"]
    yield
    vars(rank_zero_only)["rank"] = before
    for name in names:
        os.environ.pop(name, None)


@pytest.mark.parametrize("variables", SECOND.values(), ids=SECOND)
def test_a_rank_counts_where_as_many_were_started_as_the_run_asks_for(variables: dict[str, str]) -> None:
    for asked, size in ((2, 2), (None, 2), (1, 1), (3, 1)):
        os.environ.update(variables)
        assert process.decide(asked) == size
        assert process.is_worker_rank() == bool(vars(rank_zero_only)["rank"]) == (size == 2)
        kept = {name for name in variables if name in os.environ}
        assert kept == (set(variables) if size == 2 else kept & {"SLURM_LOCALID", "SLURM_JOB_NAME"})


@pytest.mark.parametrize("variables", ALONE.values(), ids=ALONE)
def test_a_rank_without_a_launch_is_none(variables: dict[str, str]) -> None:
    vars(rank_zero_only)["rank"] = 1  # Lightning's guess
    for asked in (1, 2, None):
        os.environ.update(variables)
        assert process.decide(asked) == 1
        assert not process.is_worker_rank()
        assert vars(rank_zero_only)["rank"] == 0
        assert not {"RANK", "LOCAL_RANK", "NODE_RANK"} & os.environ.keys()  # which Lightning would read


def test_what_the_first_process_has_started_is_another_whatever_the_configuration_says() -> None:
    """The first one has counted a long run's arithmetic, and trainer.devices is null."""
    os.environ.update({**SECOND["by hand"], PARENT: str(os.getppid())})
    assert process.decide(1) == 2
    assert process.is_worker_rank()


def test_how_many_processes_a_configuration_asks_for() -> None:
    cases: list[tuple[Any, int, int | None]] = [(None, 1, 1), (2, 1, 2), ("auto", 3, None), (-1, 1, None), ("2", 2, 4)]
    for devices, n_nodes, expected in cases:
        trainer = OmegaConf.create({"trainer": {"devices": devices, "num_nodes": n_nodes}})
        assert asked_processes(trainer) == expected
    for several in ("0,1", [0, 1]):
        assert asked_processes(OmegaConf.create({"trainer": {"devices": several}})) == 2


def test_a_run_for_another_number_of_processes_is_refused() -> None:
    trainer: Any = make_trainer(1)
    require_group(trainer, 1)
    with pytest.raises(UserError, match=r"^trainer.devices: 2 processes were started, and the run is for 1; expected"):
        require_group(trainer, 2)
    trainer.strategy.num_nodes = 2
    trainer = type("Trainer", (), {"num_devices": 1, "num_nodes": 2})()
    with pytest.raises(UserError, match=r"^trainer.num_nodes: expected 1, got 2, because no launcher has started"):
        require_group(trainer, 1)


def test_a_single_run_keeps_its_guards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its rows, its files, and the line that refuses the next one: once a run wrote its results over another's."""
    leave_undrawn(monkeypatch)
    variables = SECOND["srun"]  # the tasks of a job, each a run of its own
    vars(rank_zero_only)["rank"] = 1  # as where Lightning is imported then
    run = [*TINY, "trainer.max_epochs=2", "trainer.accelerator=cpu", "run_dir=run"]
    assert call(tmp_path, monkeypatch, *run, "algorithm=fedem", **variables) == 0
    assert len((tmp_path / "run" / "metrics.csv").read_text().splitlines()) == 4
    assert "round 2/2" in capsys.readouterr().out
    before = snapshot(tmp_path)
    vars(rank_zero_only)["rank"] = 1
    assert call(tmp_path, monkeypatch, *run, "algorithm=fedavg", **variables) == 2
    assert "already holds a run" in capsys.readouterr().err
    assert call(tmp_path, monkeypatch, *run, "algorithm=fedagv", **variables) == 2
    assert capsys.readouterr().err.startswith("error: ")
    assert snapshot(tmp_path) == before


def test_in_python_too(tmp_path: Path) -> None:
    vars(rank_zero_only)["rank"] = 1
    data = make_data()
    options = {"logger": RoundCSVLogger(tmp_path / "metrics.csv"), "log_every_n_steps": 1}
    trainer = make_trainer(2, **options)
    trainer.fit(make_model(FedAvg, data), data)
    assert len((tmp_path / "metrics.csv").read_text().splitlines()) == 3


@pytest.mark.slow
def test_torchrun_starts_one_run(tmp_path: Path) -> None:
    """In two processes if the run asks for them; else the second run is refused, as the folder has one already."""
    run = ["-m", "fedem_lightning", *TINY, "trainer.max_epochs=2", "trainer.accelerator=cpu", "algorithm=fedavg"]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", *run]
    options: Any = {"cwd": tmp_path, "capture_output": True, "text": True, "timeout": 300, "env": ENVIRONMENT}
    done = subprocess.run([*launcher, "trainer.devices=2", "run_dir=two"], **options)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("round 2/2") == 1
    assert json.loads((tmp_path / "two" / "results.json").read_text())["engine"]["processes"] == 2
    assert len((tmp_path / "two" / "metrics.csv").read_text().splitlines()) == 4
    done = subprocess.run([*launcher, "trainer.devices=1", "trainer.max_epochs=2000", "run_dir=one"], **options)
    assert done.returncode != 0
    assert "one: another process (pid " in done.stderr
