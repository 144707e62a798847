"""Several processes: the same results as one, by the Trainer and by the command line."""

import json
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from fedem_lightning import (
    MOCHA,
    ClientSGD,
    Dapper,
    Ditto,
    FedAvg,
    FedEM,
    FederatedAlgorithm,
    Finetune,
    MultiKrum,
    Scaling,
    SendNaN,
    UserCentric,
    UserError,
)
from fedem_lightning.aggregate import Update
from fedem_lightning.data import Block
from fedem_lightning.run.callbacks import RoundCheckpoint
from fedem_lightning.state.processes import Processes
from helpers.commands import ENVIRONMENT
from helpers.conformance import ROWS, Noisy, Row
from helpers.federations import make_data, make_model, make_trainer
from helpers.processes import free_port

SIZES = (9, 30, 4, 17, 8, 25, 12)


class OnlyOne(FedEM):
    """All clients but one send NaN: one of two processes has no update."""

    def client_update(self, block: Block, round_: int) -> Update:
        update, wrong = super().client_update(block, round_), block.clients > block.federation.clients()[0]
        for rows in update.models.values():
            rows[wrong] = torch.nan
        return update


FEW = ("FedEM", "FedAvg", "Ditto", "UserCentric", "median", "failing", "tuned")
"""By default; the others are slow."""


def cases(which: str) -> dict[str, tuple[Row, dict[str, Any]]]:
    """Every row of the conformance table, with cohorts where it has any, and what else crosses processes."""
    found: dict[str, tuple[Row, dict[str, Any]]] = {}
    for n, row in enumerate(ROWS):
        name = row.kind.__name__
        found[f"{name} {n}" if name in found else name] = (row, {"participation": 4} if row.samples else {})
    rules: dict[str, tuple[type[FederatedAlgorithm], dict[str, Any]]] = {
        "median": (FedAvg, {"aggregation": "median"}),
        "krum": (FedEM, {"aggregation": MultiKrum(1)}),
        "clipping": (
            UserCentric,
            {"aggregation": "norm_clipping", "similarity": "cosine", "faults": Scaling(0.3, factor=-5.0)},
        ),
        "nan": (FedEM, {"faults": SendNaN(0.3)}),
        "failing": (OnlyOne, {}),
        "failing, as rows": (OnlyOne, {"aggregation": "trimmed_mean"}),
    }
    by_class = {"n_streams": 2, "similarity": "cosine", "label_adjusted": True}
    more: dict[str, tuple[type[FederatedAlgorithm], dict[str, Any]]] = {
        "tuned": (FedAvg, {"adaptation": Finetune(1), "scored_clients": 2}),
        "dapper": (FedAvg, {"adaptation": Dapper()}),
        "streams": (UserCentric, {"n_streams": 2, "participation": 3}),
        "by class": (UserCentric, by_class),
    }
    found |= {name: (Row(kind), options) for name, (kind, options) in (more | rules).items()}
    return found if which == "all" else {name: found[name] for name in FEW}


def several(devices: int) -> dict[str, Any]:
    """The Trainer's options for so many processes."""
    return {"devices": devices, "strategy": "ddp", "use_distributed_sampler": False} if devices > 1 else {"devices": 1}


def results(devices: int, which: str) -> dict[str, dict[str, Tensor]]:
    """What three rounds of each case, and the test after them, leave behind."""
    sgd = ClientSGD(lr=0.3, momentum=0.9, state="keep")
    found = {}
    for name, (row, options) in cases(which).items():
        data = row.data(sizes=SIZES, unseen_fraction=0.3 if row.kind is not MOCHA else 0.0)
        torch.manual_seed(0)
        backbone = Noisy() if name == "tuned" else row.network(data)
        model = row.kind(backbone, 7, batch_size=4, client_optimizer=sgd, **{**row.options, **options})
        trainer = make_trainer(3, num_sanity_val_steps=0, **several(devices))
        trainer.fit(model, data)
        metrics = model.round_metrics.means()
        trainer.test(model, data, verbose=False)
        table = model.clients
        found[name] = model.state_dict() | {
            "metrics": torch.tensor([metrics[key] for key in sorted(metrics)]),
            "test loss": torch.tensor(table.test_loss.fillna(-1).to_numpy()),
            "rejected": torch.tensor(
                [[entry["client"], entry["rounds"]] for entry in model.statistics.rejections.by_client]
            ),
            "sent": torch.tensor([model.statistics.up_bytes, model.statistics.down_bytes]),
            "samples": torch.from_numpy(model.tested.samples.arrays()["values"]),
            "lambda": torch.tensor(table.get("lambda", table.n_test).to_numpy()),
        }
    return found


def kept(devices: int, folder: Path) -> dict[str, Any]:
    """The models that clients keep to themselves, in a checkpoint between scores and after the fit."""
    data = make_data((9, 14, 30, 25, 40))
    sgd = ClientSGD(lr=0.1, momentum=0.9, state="keep")
    model = make_model(Ditto, data, client_optimizer=sgd, participation=3)
    saved = RoundCheckpoint(every_n_rounds=2, keep=9, dirpath=folder / f"checkpoints of {devices}")
    trainer = make_trainer(3, callbacks=[saved], enable_checkpointing=True, **several(devices))
    trainer.fit(model, data)
    between = torch.load(folder / f"checkpoints of {devices}" / "round-000002.ckpt", weights_only=True)["state_dict"]
    return {"between": between, "after": model.state_dict()}


def everything(devices: int, folder: Path, which: str) -> dict[str, Any]:
    return {"results": results(devices, which), "kept": kept(devices, folder)}


class Found(NamedTuple):
    """By one process alone, and by each of two."""

    alone: dict[str, Any]
    first: dict[str, Any]
    second: dict[str, Any]


@pytest.fixture(scope="module", params=["few", pytest.param("all", marks=pytest.mark.slow)])
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Found:
    """This file, run as a script, leaves what each of two processes found, while this one works alone."""
    folder = tmp_path_factory.mktemp("two")
    with subprocess.Popen([sys.executable, __file__, folder, request.param], env=ENVIRONMENT, cwd=folder) as script:
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "client .* failed in round")
                alone = everything(1, folder, request.param)
            assert script.wait(timeout=400) == 0
        finally:
            script.kill()
    return Found(alone, *(torch.load(folder / f"rank{rank}.pt", weights_only=True) for rank in (0, 1)))


def test_results_do_not_depend_on_the_number_of_processes(found: Found) -> None:
    first, second = found.first["results"], found.second["results"]
    for name, state in found.alone["results"].items():
        for key, expected in state.items():
            close: dict[str, Any] = {"equal_nan": True, "msg": f"{name}: {key}"}  # unseen clients are on no map
            torch.testing.assert_close(first[name][key], expected, rtol=1e-9, atol=1e-12, **close)
            torch.testing.assert_close(first[name][key], second[name][key], rtol=0, atol=0, **close)


def test_models_that_clients_keep_are_whole_where_they_are_read(found: Found) -> None:
    """Each process has only its own clients' models while nobody reads the others."""
    for when, expected in found.alone["kept"].items():
        assert expected["own.written"].sum() >= 3
        for state in (found.first["kept"][when], found.second["kept"][when]):
            for key, value in expected.items():
                torch.testing.assert_close(state[key], value, rtol=1e-9, atol=1e-12, msg=f"{when}: {key}")


def test_each_client_stays_with_one_process() -> None:
    data = make_data((9, 14, 30, 25, 40))
    model, federation, two, everyone = make_model(Ditto, data), data.federation, Processes(0, 2), torch.arange(5)
    shares = model.states.divide(two, federation, everyone)
    assert shares is not None
    assert [share.tolist() for share in shares] == [[0, 1, 4], [2, 3]]
    shares = model.states.divide(two, federation, torch.tensor([1, 2, 4]))
    assert shares is not None
    assert [share.tolist() for share in shares] == [[1, 4], [2]]
    assert model.states.divide(Processes(0, 1), federation, everyone) is None
    assert make_model(FedAvg, data).states.divide(two, federation, everyone) is None


def command_line(*arguments: str) -> list[str]:
    small = ("dataset.n_clients=12", "dataset.test_size=20", "trainer.devices=2")
    return [sys.executable, "-m", "fedem_lightning", *arguments, *small]


@pytest.mark.slow
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


RAISES = """from fedem_lightning import FedAvg
class Raises(FedAvg):
    def client_update(self, batch, round_):
        if 1 in batch.clients:
            raise ArithmeticError("why")
        return super().client_update(batch, round_)
"""


@pytest.mark.slow  # of the default tests, one of stops ends two processes
@pytest.mark.parametrize("wrong", ["algorithm.client_optimizer.lr=1e38", "algorithm._target_=raises.Raises"])
def test_mistakes_end_all_processes(wrong: str, tmp_path: Path) -> None:
    (tmp_path / "raises.py").write_text(RAISES)
    command = command_line("algorithm=fedavg", "trainer.max_epochs=2", wrong, "run_dir=wrong")
    environment = {**ENVIRONMENT, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240, env=environment)
    assert done.returncode == 2
    errors = [line for line in done.stderr.splitlines() if line.startswith("error:")]
    assert len(errors) == 1
    assert "diverged" in errors[0] or "failed in the update of round 1: ArithmeticError: why" in errors[0]


def test_clients_are_dealt_evenly_and_each_one_once() -> None:
    """The busiest process has at most 4/3 - 1/(3 m) of what the best of all deals would give it (Graham 1969)."""
    clients, work = torch.arange(10, 20), np.array([5, 100, 3, 50, 8, 8, 90, 1, 20, 40])
    for size in (1, 2, 3):
        shares = Processes(0, size).divide(clients, torch.from_numpy(work))
        assert len(shares) == size
        assert torch.equal(torch.cat(shares).sort().values, clients)
        deals = np.arange(size**10)[:, None] // size ** np.arange(10) % size  # who gets whom, [deals, clients]
        best = np.max([(deals == rank) @ work for rank in range(size)], axis=0).min()
        assert max(int(work[share.numpy() - 10].sum()) for share in shares) <= (4 / 3 - 1 / (3 * size)) * best


def test_fewer_clients_than_processes() -> None:
    with pytest.raises(UserError, match="4 processes, but only 3 clients in a round"):
        Processes(0, 4).divide(torch.arange(3), torch.ones(3))
    shares = Processes(0, 4).divide(torch.arange(3), torch.ones(3), idle=True)
    assert [len(share) for share in shares] == [1, 1, 1, 0]


if __name__ == "__main__":
    # as Lightning's launcher would, but for the ten seconds in which its second process loads packages
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2", "NODE_RANK": "0"}
    child = os.fork()
    os.environ["LOCAL_RANK"] = "0" if child else "1"
    torch.save(everything(2, Path(sys.argv[1]), sys.argv[2]), f"{sys.argv[1]}/rank{os.environ['LOCAL_RANK']}.pt")
    if child:
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
