"""The product of a deployment: each client's own model, in its folder, and what the server can serve without it."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib.figure import Figure

from fedem_lightning import (
    AFL,
    APFL,
    QFFL,
    ClientSGD,
    Ditto,
    FedAvg,
    FedAvgEnsemble,
    FedBN,
    FedEM,
    FederatedDataModule,
    FedProx,
    Finetune,
    FLoRAL,
    HypCluster,
    PFedMe,
    Scaffold,
    UserCentric,
    UserError,
    load,
    load_clients,
)
from fedem_lightning.algorithms.facts import known_pi
from fedem_lightning.data.own_files import load_client, save_client
from fedem_lightning.deploy.node import Node
from fedem_lightning.deploy.server import RemoteDataModule
from fedem_lightning.evaluate import main as evaluate
from fedem_lightning.export import main as export
from fedem_lightning.personalize import main as personalize
from fedem_lightning.predict import main as predict
from helpers.conformance import Row
from helpers.every_method import EVERY
from helpers.federations import make_data, make_model, stored
from helpers.remote import ByteLink, nodes_of, train_and_test
from helpers.serving import refused

SERVED = {FedAvg, FedAvgEnsemble, FedProx, FedBN, Scaffold, AFL, QFFL, UserCentric}
"""Of the rows' methods, those whose clients predict with what the server has (FedBN: the network has no BatchNorm)."""
KEPT = ClientSGD(lr=0.1, momentum=0.9, state="keep")


@pytest.fixture(autouse=True)
def _undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Figure, "savefig", lambda figure, path, **options: path.write(b"png"))


def trained(model: Any, data: FederatedDataModule, rounds: int = 3) -> Any:
    """The model after training and a test; its Trainer."""
    return model, train_and_test(model, data, rounds)


def saved(trainer: Any, path: Path) -> Path:
    """The checkpoint of a model that was trained and tested."""
    trainer.save_checkpoint(path)
    return path


def of_simulation(model: Any, data: FederatedDataModule, t: int) -> np.ndarray:
    """What client t of the simulation predicts for its training samples."""
    with torch.no_grad():
        block = next(model.local.blocks(data.federation, torch.tensor([t])))
        answer: np.ndarray = data.federation.task.answer(model.scored_models(block).predict(block)).numpy()
    return answer


OTHERS = (FedAvg, APFL, PFedMe)
"""Methods whose clients' folders are like those of the methods that are always tried."""


def samples(data: FederatedDataModule, t: int) -> np.ndarray:
    """The training samples of client t."""
    return stored(data.federation).x[data.federation.block(torch.tensor([t]), "train").index].numpy()


def outcome(of: Callable[[], Any]) -> Any:
    """What a function returns, or the line with which it refuses."""
    try:
        return of()
    except UserError as error:
        return str(error)


@EVERY
def test_a_client_has_the_model_of_the_simulation_and_the_server_refuses_what_it_has_not(
    row: Row, tmp_path: Path
) -> None:
    data = row.data()
    if row.model(data).facts.needs_one_machine:
        pytest.skip("cannot be deployed")
    link = ByteLink(nodes_of(data, tmp_path))
    apart = RemoteDataModule(link, len(link.connected()))
    here, _ = trained(row.model(data, client_optimizer=KEPT), data)
    there, trainer = trained(row.model(apart, client_optimizer=KEPT), apart)
    server = load(saved(trainer, tmp_path / "server.ckpt"))
    own = []
    for t in range(data.n_clients):
        models = load_clients(tmp_path / str(t))
        assert models.names == (data.federation.names[t],)
        own.append(models.model(models.names[0]))
        x = samples(data, t)
        np.testing.assert_allclose(own[t].predict(x), of_simulation(here, data, t), rtol=0, atol=1e-9)
        pi = known_pi(here)
        assert pi is None or np.allclose(own[t].weights, pi[t]) or row.kind in (HypCluster, FLoRAL)  # mixes inside
    assert known_pi(there) is known_pi(server) is None
    for t, mine in enumerate(own):
        name, x = mine.name, samples(data, t)
        for model in (there, server):
            if row.kind in SERVED:
                assert np.array_equal(model.client(name).predict(x), mine.predict(x))
                assert np.array_equal(model.trained_model.clients_models().model(name).predict(x), mine.predict(x))
                continue
            for refusing in (lambda: model.client(name), lambda: model.trained_model.clients_models()):  # noqa: B023 - called at once
                with pytest.raises(UserError, match="clients of a deployed run keep their own models"):
                    refusing()
    x, y = samples(data, 3), np.zeros(len(samples(data, 3)), dtype=np.int64)
    new = [outcome(lambda: model.personalize(x, y).predict(x)) for model in (here, server)]  # noqa: B023
    if isinstance(new[0], str):
        assert new[0] == new[1]
    else:
        np.testing.assert_allclose(new[1], new[0], rtol=0, atol=1e-9)


def federation_in_files(folder: Path) -> tuple[FederatedDataModule, ByteLink]:
    """Clients t with the samples in folder/t.npz and the state in folder/t."""
    data = make_data(names=np.array(["a", "b", "c", "d"]))
    for t in range(4):
        save_client(data.federation, t, folder / f"{t}.npz")
    nodes = [Node(load_client(folder / f"{t}.npz"), folder / str(t)) for t in range(4)]
    return data, ByteLink(nodes)


@pytest.mark.parametrize(
    "kind", [FedEM, Ditto, UserCentric, *(pytest.param(k, marks=pytest.mark.slow) for k in OTHERS)]
)
def test_a_clients_folder_is_predicted_evaluated_and_exported_as_a_run_is(
    kind: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("onnxruntime")
    _, link = federation_in_files(tmp_path)
    apart = RemoteDataModule(link, len(link.connected()), run="run")
    options = {"n_components": 3} if kind is FedEM else {}
    model, _ = trained(make_model(kind, apart, client_optimizer=ClientSGD(lr=0.1), **options), apart)
    table = model.clients.set_index("id")
    for t in (1, 3):
        name, folder, file = "abcd"[t], tmp_path / str(t), tmp_path / f"{t}.npz"
        capsys.readouterr()
        evaluate([str(folder), "--out", str(tmp_path / f"evaluation {t}")])
        assert "equal to what the client reported after round 3 (train, val, test)" in capsys.readouterr().out
        found = pd.read_csv(tmp_path / f"evaluation {t}" / "clients.csv").iloc[0]
        for split in ("train", "val", "test"):
            assert found[f"n_{split}"] == table.loc[name, f"n_{split}"]
            assert found[f"{split}_loss"] == pytest.approx(table.loc[name, f"{split}_loss"], abs=1e-12)
        evaluate([str(folder), str(file), "--out", str(tmp_path / f"of a file {t}")])
        again = json.loads((tmp_path / f"of a file {t}" / "evaluation.json").read_text())["scores"]["1"]
        assert again["loss"]["weighted"] == pytest.approx(table.loc[name, "test_loss"])
        predict([str(folder), str(file), "--out", str(tmp_path / f"{t}.csv")])
        with np.load(file) as arrays:
            expected = load_clients(folder).model(name).predict(arrays["x"])
        np.testing.assert_allclose(pd.read_csv(tmp_path / f"{t}.csv").filter(like="p_"), expected, atol=1e-6)
        export([str(folder), "--client", name, "--format", "onnx", "--out", str(tmp_path / f"onnx {t}")])
        assert (tmp_path / f"onnx {t}" / f"{name}.onnx").is_file()
        assert (
            f"Algorithm {kind.__name__}, 3 communication rounds; run `run`"
            in (tmp_path / f"onnx {t}" / "README.md").read_text()
        )


def test_a_client_that_tunes_its_model_keeps_the_tuned_one(tmp_path: Path) -> None:
    data = make_data()
    link = ByteLink(nodes_of(data, tmp_path))
    apart = RemoteDataModule(link, len(link.connected()))
    options: dict[str, Any] = {"adaptation": Finetune(), "client_optimizer": ClientSGD(lr=0.1)}
    here, _ = trained(make_model(FedAvg, data, **options), data)
    there, _ = trained(make_model(FedAvg, apart, **options), apart)
    for t in range(4):
        own = load_clients(tmp_path / str(t)).model(str(t)).predict(samples(data, t))
        np.testing.assert_allclose(own, of_simulation(here, data, t), rtol=0, atol=1e-9)
    with pytest.raises(UserError, match="keep their own models"):
        there.client("1")


def test_the_model_and_where_the_samples_are_stay_with_the_client(tmp_path: Path) -> None:
    _, link = federation_in_files(tmp_path)
    apart = RemoteDataModule(link, len(link.connected()), run="run")
    trained(make_model(FedEM, apart, n_components=3), apart)
    pi = {t: load_clients(tmp_path / str(t)).model("abcd"[t]).weights for t in range(4)}
    kinds = set()
    for t, request, reply in link.log:
        kind = request.facts["kind"]
        kinds.add(kind)
        if kind == "score":
            assert reply.facts.keys() == {"measures", "sizes", "columns"}
            assert not reply.tensors
        assert not any(tensor.shape == (1, 3) and torch.allclose(tensor, pi[t]) for tensor in reply.tensors.values())
        content = reply.to_bytes()
        assert str(tmp_path).encode() not in content
        assert b"load_client" not in content
    assert kinds == {"describe", "train", "score"}
    assert not (pi[3] == pi[0]).all()


@pytest.fixture
def deployed(tmp_path: Path) -> Path:
    """server.ckpt of a FedEM run, its clients' files and folders, and a run's folder whose checkpoint is the same."""
    _, link = federation_in_files(tmp_path)
    apart = RemoteDataModule(link, len(link.connected()), run="first")
    _, trainer = trained(make_model(FedEM, apart, n_components=3), apart)
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    saved(trainer, tmp_path / "run" / "checkpoints" / "last.ckpt")
    return tmp_path


def test_the_servers_commands_refuse_what_is_with_clients_in_one_line(
    deployed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, file, out = deployed / "run", deployed / "1.npz", deployed / "out"
    lines = [
        refused(export, capsys, run, "--all", "--format", "safetensors", "--out", out),
        refused(export, capsys, run, "--client", "b", "--format", "onnx", "--out", out),
        refused(predict, capsys, run, file, "--client", "b", "--out", deployed / "out.csv"),
        refused(evaluate, capsys, run, file, "--client", "b"),
        refused(evaluate, capsys, run),
    ]
    for line in lines[:-1]:
        assert line.startswith("clients of a deployed run keep their own models: run python -m fedem_lightning.export")
    assert (
        "clients of a deployed run keep their own samples: run python -m fedem_lightning.evaluate FOLDER" in lines[-1]
    )
    assert not out.exists()
    personalize([str(run), str(file), "--client", "new", "--out", str(deployed / "new.safetensors")])
    assert load_clients(deployed / "new.safetensors").names == ("new",)


def test_mistakes_on_a_clients_folder_are_one_line(deployed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, file = deployed / "1", deployed / "1.npz"
    assert "load_clients takes" in refused(
        personalize, capsys, folder, file, "--client", "new", "--out", deployed / "new.safetensors"
    )
    with pytest.raises(UserError, match="which load_clients takes"):
        load(folder)
    inside = ["--client", "b", "--format", "safetensors", "--force", "--out"]
    for place in (folder / "first", folder / "first" / "model.safetensors"):
        assert "is what the command reads" in refused(export, capsys, folder, *inside, place)
    (folder / "second").mkdir()
    (folder / "first" / "model.safetensors").rename(folder / "second" / "model.safetensors")
    (deployed / "2" / "first" / "model.safetensors").rename(folder / "first" / "model.safetensors")
    line = refused(evaluate, capsys, folder)
    assert line.startswith(f"{folder}: models of 2 runs, expected one of them; the newest: {folder}")
    (deployed / "3" / "first" / "model.safetensors").unlink()
    assert "this client has no model yet" in refused(predict, capsys, deployed / "3", file, "--out", deployed / "p.csv")
    file.rename(deployed / "moved.npz")
    assert "the client's samples are not there any more; give DATA" in refused(evaluate, capsys, folder / "second")


def test_scores_that_differ_from_those_reported_are_named(deployed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with np.load(deployed / "1.npz") as file:
        arrays = dict(file)
    np.savez(deployed / "1.npz", **arrays | {"y": (arrays["y"] + 1) % 3})
    with pytest.raises(SystemExit) as stop:
        evaluate([str(deployed / "1")])
    assert stop.value.code == 1
    assert "not equal to what the client reported after round 3: train " in capsys.readouterr().out


@pytest.mark.slow
def test_processes_leave_each_client_its_model_of_the_simulation(tmp_path: Path) -> None:
    words = ["+experiment=digits", "dataset.n_clients=2", "trainer.max_epochs=2"]

    def command(code: int, *parts: str) -> str:
        done = subprocess.run([sys.executable, "-m", *parts], capture_output=True, text=True, timeout=400, cwd=tmp_path)
        assert done.returncode == code, done.stderr
        return done.stdout + done.stderr

    command(0, "fedem_lightning", *words, "run_dir=here")
    command(0, "fedem_lightning.deploy", "demo", *words, "run_dir=there")
    table = pd.read_parquet(tmp_path / "here" / "clients.parquet").set_index("id")
    for t, name in enumerate(table.index):
        folder = f"there/clients/{t:03}"
        model = load_clients(tmp_path / folder).model(name)
        np.testing.assert_allclose(model.weights, table.loc[name, ["pi_0", "pi_1", "pi_2"]].astype(float), atol=1e-6)
    assert "equal to what the client reported after round 2" in command(0, "fedem_lightning.evaluate", folder)
    assert "1 client, ONNX" in command(0, "fedem_lightning.export", "there/clients/000", *["--all", "--format", "onnx"])
    for words in (["export", "there", "--all", "--format", "onnx", "--out", "x"], ["evaluate", "there"]):
        line = command(2, f"fedem_lightning.{words[0]}", *words[1:])
        assert "clients of a deployed run keep their own" in line
        assert line.count("\n") == 1
