"""The apps in this process: the same algorithm file trains the models of the simulation; what fails is left out."""

import json
import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from hydra.utils import get_class
from omegaconf import OmegaConf

from fedem_lightning import ClientSGD, FederatedDataModule, UserError, load_clients
from fedem_lightning.settings.keys import CONFIG_DIR
from helpers.commands import call
from helpers.conformance import Row
from helpers.every_method import EVERY
from helpers.federations import make_trainer
from helpers.flower import WORDS, InProcess, difference, save_client

PAGE = Path(__file__).parents[2] / "docs" / "flower.md"
KEPT = ClientSGD(lr=0.1, momentum=0.9, state="keep")


def trained(row: Row, data: FederatedDataModule, rounds: int = 3) -> Any:
    """The method's model after some rounds, and its clients' table."""
    model, trainer = row.model(data, client_optimizer=KEPT), make_trainer(rounds)
    model.remote = data.remote
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*eta lambda")
        warnings.filterwarnings("ignore", message=".*cannot split")
        trainer.fit(model, data)
        trainer.test(model, data, verbose=False)
    return model


def servers_models(model: Any) -> dict[str, torch.Tensor]:
    """The components, and the models that the server keeps for each client."""
    kept = [name for name, store in model.states.stores().items() if store.held_by == "server"]
    return {n: t for n, t in model.state_dict().items() if n.startswith(("components.", *(f"{k}.rows" for k in kept)))}


@EVERY
def test_clients_train_the_models_of_the_simulation(row: Row, monkeypatch: pytest.MonkeyPatch) -> None:
    data = row.data()
    apart = InProcess(data, monkeypatch).joined(data.n_clients)
    if row.model(data).one_process:
        with pytest.raises(UserError, match="does not run under Flower"):
            trained(row, apart)
        return
    here, there = trained(row, data), trained(row, apart)
    start, moved = servers_models(row.model(data).double()), 0.0
    for (name, a), b in zip(servers_models(here).items(), servers_models(there).values(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12, msg=name)
        moved += float((a - start[name]).abs().sum())
    assert moved > 0.01 or not row.kind.sends_models
    for column in ("train_loss", "val_loss", "test_loss"):
        assert there.clients[column].to_numpy() == pytest.approx(here.clients[column].to_numpy(), nan_ok=True), column
    assert list(there.clients.id) == list(here.clients.id)
    assert there.clients.n_train.tolist() == here.clients.n_train.tolist()
    assert there.clients.n_test.tolist() == here.clients.n_test.tolist()


@pytest.fixture
def simulated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the simulation."""
    assert call(tmp_path, monkeypatch, *WORDS.split(), "run_dir=simulated") == 0
    return tmp_path / "simulated"


def test_an_ordinary_run_by_partitions(simulated: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = simulated.parent / "run"
    InProcess(3, monkeypatch, **{"overrides": WORDS, "run-dir": str(folder)}).run()
    assert difference(folder, simulated) < 1e-6
    here, there = (json.loads((path / "results.json").read_text()) for path in (simulated, folder))
    assert there["learning_rates"] == here["learning_rates"]
    assert (there["dataset"], there["rounds"], there["n_clients"]) == ("synthetic", 2, 3)


def test_an_ordinary_run_of_clients_with_files(
    simulated: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, place = simulated.parent / "run", simulated.parent
    lr = json.loads((simulated / "results.json").read_text())["learning_rates"][0]["rate"]
    words = f"{WORDS} +protocol=last_round algorithm.client_optimizer.lr={lr}"  # as of the synthetic data's rates
    nodes = InProcess(3, monkeypatch, **{"overrides": words, "run-dir": str(folder)})
    for t in range(3):
        save_client(t, place / f"{t}.npz")
        config: Any = {"data": str(place / f"{t}.npz"), "task": "binary", "model": str(place / f"{t}.safetensors")}
        nodes.contexts[102 - t].node_config = config  # the order is that of names
    nodes.run()
    assert difference(folder, simulated) < 1e-6
    assert json.loads((folder / "results.json").read_text())["dataset"] == "flower"
    assert load_clients(place / "1.safetensors").names == ("1",)


@pytest.mark.parametrize(
    ("config", "line"),
    [
        ({"run-dir": ""}, "run-dir: expected the run's folder on the server"),
        ({"overrides": f"{WORDS} ckpt_path=auto"}, "ckpt_path: a run under Flower cannot go on"),
        ({"overrides": WORDS, "clients": 4}, "clients: 3 of 4 were there after 0.1 seconds"),
        ({"overrides": f"{WORDS} dataset.unseen_fraction=0.4"}, "dataset: unseen clients are not there under Flower"),
        ({"overrides": WORDS, "nodes": {"partition-id": 0, "num-partitions": 2}}, "3 clients, the federation 2 nodes"),
        ({"overrides": WORDS, "nodes": {"name": "a"}}, "--node-config: expected data, an .npz file, or partition-id"),
        ({"overrides": WORDS, "nodes": {"data": "none.npz"}}, "none.npz"),
    ],
)
def test_a_mistake_is_one_line(
    config: dict[str, Any], line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = config.pop("nodes", None)
    nodes = InProcess(3, monkeypatch, **{"run-dir": str(tmp_path / "run"), **config})
    for context in nodes.contexts.values() if node else ():
        context.node_config = node
    with pytest.raises(UserError, match=re.escape(line)):
        nodes.run()
    assert not (tmp_path / "run").exists()


@pytest.mark.skipif(not PAGE.is_file(), reason="docs/ is only in a checkout")
def test_the_page_names_the_methods_that_do_not_run_under_flower() -> None:
    section = re.split(r"are\s+refused", PAGE.read_text().split("## What does not run")[1])[0]
    files = (CONFIG_DIR / "algorithm").glob("*.yaml")
    kinds: dict[str, Any] = {p.stem: get_class(OmegaConf.load(p)._target_) for p in files}
    refused = {name for name, kind in kinds.items() if kind.one_process}
    assert set(re.findall(r"`(\w+)`", section)) == refused
