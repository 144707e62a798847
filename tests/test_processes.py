"""Several processes: the same results as one, by the Trainer and by the command line."""

import json
import os
import runpy
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

from fedem_lightning import UserError
from fedem_lightning.processes import Processes

SCRIPT = """
import sys
import numpy as np, pytorch_lightning as pl, torch
from torch import nn
from fedem_lightning import AFL, APFL, L2SGD, QFFL, ClientSGD, Clustered, DFedEM, FedAvg, FedEM, FederatedDataModule
from fedem_lightning import Agnostic, Dapper, Finetune, HypCluster, Interpolate, Local, Mapper, MOCHA, PFedMe
from fedem_lightning import UserCentric

rng = np.random.default_rng(0)
client = np.repeat(np.arange(7), (9, 30, 4, 17, 8, 25, 12))
x, y = rng.normal(size=(len(client), 4)), rng.integers(3, size=len(client))
data = FederatedDataModule.from_arrays(x, y, client, unseen_fraction=0.3, domain=client % 2)
binary = FederatedDataModule.from_arrays(x, y % 2, client, task="binary")
sgd = ClientSGD(lr=0.3, momentum=0.9, state="keep")
normed = lambda: nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))
found = {}
for name, kind, options in (
    ("fedem", FedEM, {"n_components": 2}),
    ("sampled", FedEM, {"n_components": 2, "participation": 3}),
    ("local", Local, {}),
    ("batch norm", FedAvg, {}),
    ("tuned", FedAvg, {"adaptation": Finetune(1), "scored_clients": 2}),
    ("dapper", FedAvg, {"adaptation": Dapper()}),
    ("interpolated", FedAvg, {"adaptation": Interpolate("own")}),
    ("mapper", Mapper, {}),
    ("hypcluster", HypCluster, {"participation": 3}),
    ("user centric", UserCentric, {"n_streams": 2, "similarity": "common", "refresh_every": 2, "participation": 3}),
    ("by class", UserCentric, {"n_streams": 2, "similarity": "cosine", "label_adjusted": True}),
    ("apfl", APFL, {}),
    ("pfedme", PFedMe, {"penalty": 1.0, "outer_lr": 0.5}),
    ("l2sgd", L2SGD, {"participation": 3}),
    ("afl", AFL, {"weights_lr": 0.1}),
    ("qffl", QFFL, {"participation": 3}),
    ("agnostic", Agnostic, {"participation": 3, "window": 2, "domain_lr": 0.5}),
    ("clustered", Clustered, {"eps1": 1e9, "eps2": 0.0, "min_rounds": 1, "max_depth": 2}),
    ("gossip", DFedEM, {"n_components": 2, "participation": 4}),
    ("mocha", MOCHA, {"penalty": 0.1, "inner_rounds": 2}),
):
    torch.manual_seed(0)
    backbone = normed() if name == "batch norm" else nn.Linear(4, 1 if name == "mocha" else 3)
    model = kind(backbone, 7, batch_size=4, client_optimizer=sgd, **options)
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = pl.Trainer(
        accelerator="cpu", devices=int(sys.argv[1]), strategy="ddp" if sys.argv[1] != "1" else "auto", max_epochs=3,
        precision="64-true", use_distributed_sampler=False, num_sanity_val_steps=0, enable_model_summary=False, **quiet
    )
    trainer.fit(model, binary if name == "mocha" else data)
    trainer.test(model, binary if name == "mocha" else data, verbose=False)
    found[name] = model.state_dict() | {
        "test loss": torch.tensor(model.clients.test_loss.fillna(-1).to_numpy()),
        "sent": torch.tensor(model.statistics.up_bytes),
        "lambda": torch.tensor(model.clients.get("lambda", model.clients.n_test).to_numpy()),
    }
torch.save(found, f"{sys.argv[2]}/rank{trainer.global_rank}.pt")
"""

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}


def test_results_do_not_depend_on_the_number_of_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    for n in ("1", "2"):
        (tmp_path / n).mkdir()
    with warnings.catch_warnings():  # one process: this one
        warnings.simplefilter("ignore")
        monkeypatch.setattr(sys, "argv", [str(script), "1", str(tmp_path / "1")])
        runpy.run_path(str(script))
    command = [sys.executable, script, "2", tmp_path / "2"]
    subprocess.run(command, check=True, timeout=240, env=ENVIRONMENT, cwd=tmp_path)
    alone, first, second = (
        torch.load(tmp_path / path, weights_only=True) for path in ("1/rank0.pt", "2/rank0.pt", "2/rank1.pt")
    )
    for name, state in alone.items():
        for key, expected in state.items():
            close = {"equal_nan": True, "msg": f"{name}: {key}"}  # unseen clients are on no map
            torch.testing.assert_close(first[name][key], expected, rtol=1e-9, atol=1e-12, **close)
            torch.testing.assert_close(first[name][key], second[name][key], rtol=0, atol=0, **close)


def command_line(*arguments: str) -> list[str]:
    small = ("dataset.n_clients=12", "dataset.test_size=20", "trainer.devices=2")
    return [sys.executable, "-m", "fedem_lightning", *arguments, *small]


def test_a_sweep_over_two_processes(tmp_path: Path) -> None:
    """Each job starts processes of its own, which write nothing."""
    command = command_line("-m", "algorithm=fedem,local", "trainer.max_epochs=2", "run_dir=sweep")
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240, env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr
    folders = sorted(p for p in (tmp_path / "sweep").iterdir() if p.is_dir())
    results = [json.loads((folder / "results.json").read_text()) for folder in folders]
    assert [r["algorithm"] for r in results] == ["fedem", "local"]
    assert all(r["engine"]["processes"] == 2 for r in results)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["sweep"]


def test_mistakes_and_interrupts_end_all_processes(tmp_path: Path) -> None:
    command = command_line("trainer.max_epochs=2", "algorithm.client_optimizer.lr=1e38", "run_dir=diverged")
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240, env=ENVIRONMENT)
    assert done.returncode == 2
    errors = [line for line in done.stderr.splitlines() if line.startswith("error:")]
    assert len(errors) == 1
    assert "diverged" in errors[0]

    command = command_line("trainer.max_epochs=100000", "trainer.check_val_every_n_epoch=100000", "run_dir=stopped")
    running = subprocess.Popen(
        command, cwd=tmp_path, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT, process_group=0
    )
    metrics = tmp_path / "stopped" / "metrics.csv"
    try:
        deadline = time.monotonic() + 120
        while not metrics.exists() and time.monotonic() < deadline:
            time.sleep(0.2)
        os.killpg(running.pid, signal.SIGINT)  # as a terminal does: to all of them
        _, errors = running.communicate(timeout=60)
    finally:
        if running.poll() is None:
            os.killpg(running.pid, signal.SIGKILL)
    assert running.returncode == 1
    assert errors.count(f"continue with ckpt_path=auto run_dir={tmp_path / 'stopped'}") == 1
    assert list((tmp_path / "stopped" / "checkpoints").glob("*.ckpt"))


def test_clients_are_dealt_evenly_and_each_one_once() -> None:
    """The busiest process has at most 4/3 - 1/(3 m) of what the best of all deals would give it (Graham 1969)."""
    clients, work = torch.arange(10, 20), np.array([5, 100, 3, 50, 8, 8, 90, 1, 20, 40])
    for size in (1, 2, 3):
        shares = Processes(0, size).deal(clients, torch.from_numpy(work))
        assert len(shares) == size
        assert torch.equal(torch.cat(shares).sort().values, clients)
        deals = np.arange(size**10)[:, None] // size ** np.arange(10) % size  # who gets whom, [deals, clients]
        best = np.max([(deals == rank) @ work for rank in range(size)], axis=0).min()
        assert max(int(work[share.numpy() - 10].sum()) for share in shares) <= (4 / 3 - 1 / (3 * size)) * best


def test_fewer_clients_than_processes() -> None:
    with pytest.raises(UserError, match="4 processes, but only 3 clients in a round"):
        Processes(0, 4).deal(torch.arange(3), torch.ones(3))
