"""What server and clients send each other, and what they do not."""

import json
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

from fedem_lightning import FedAvg, FedEM, FedPer, UserError
from fedem_lightning.aggregation import Models
from fedem_lightning.data.own_files import load_client, save_client
from fedem_lightning.deploy.node import Node
from fedem_lightning.deploy.server import RemoteDataModule
from fedem_lightning.deploy.wire import Parcel, with_prefix
from helpers.federations import make_data, make_model, make_trainer
from helpers.remote import ByteLink, nodes_of


def bytes_of(tensors: Models) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())


def log_of(kind: type, folder: Path, rounds: int = 2, **options: object) -> tuple[ByteLink, object]:
    data = make_data(sizes=(11, 12, 13, 20))
    link = ByteLink(nodes_of(data, folder))
    apart = RemoteDataModule(link, len(link.connected()))
    model = make_model(kind, apart, **options)
    model.remote = apart.remote
    trainer = make_trainer(rounds, precision="32-true")
    trainer.fit(model, apart)
    trainer.test(model, apart, verbose=False)
    return link, model


def test_fedem_sends_models_and_sizes_and_nothing_else(tmp_path: Path) -> None:
    link, model = log_of(FedEM, tmp_path)
    trained = [(request, reply) for _, request, reply in link.log if request.facts["kind"] == "train"]
    assert len(trained) == 2 * 4
    names = {f"components.{m}.linear.{part}" for m in range(3) for part in ("weight", "bias")}
    for request, reply in trained:
        assert set(with_prefix(request.tensors, "sent.")) == names
        assert set(reply.tensors) == {"models.linear.weight", "models.linear.bias", "weights"}
        assert reply.tensors["models.linear.weight"].shape == (1, 3, 3, 4)
        assert set(reply.facts) == {"n_groups", "metrics", "rejected"}
        assert set(reply.facts["metrics"]) == {"objective"}
    first, second = trained[:4], trained[4:]
    assert all(with_prefix(request.tensors, "start.") for request, _ in first)  # where a client starts, once
    assert not any(with_prefix(request.tensors, "start.") for request, _ in second)
    assert [int(reply.tensors["weights"]) for _, reply in second] == [7, 8, 9, 12]
    down = sum(bytes_of(with_prefix(request.tensors, "sent.")) for request, _ in trained)
    up = sum(bytes_of(with_prefix(reply.tensors, "models.")) for _, reply in trained)
    assert (down, up) == (model.statistics.down_bytes, model.statistics.up_bytes)  # type: ignore[attr-defined]
    described = [reply.facts for _, request, reply in link.log if request.facts["kind"] == "describe"]
    assert all(set(facts) == {"name", "form", "n_train", "round"} for facts in described)
    scored = [reply for _, request, reply in link.log if request.facts["kind"] == "score"]
    assert all(not reply.tensors and set(reply.facts) == {"measures", "sizes", "columns"} for reply in scored)


def test_pi_stays_with_the_clients(tmp_path: Path) -> None:
    link, model = log_of(FedEM, tmp_path)
    assert torch.equal(model.pi, torch.full((4, 3), 1 / 3))  # type: ignore[attr-defined]
    kept = [node.folder / link.log[-1][1].facts["run"] / "state.safetensors" for node in link.nodes]
    pi = [safetensors.torch.load_file(path)["pi"] for path in kept]
    assert all((rows - 1 / 3).abs().max() > 0.01 for rows in pi)
    replies = [tensor for _, _, reply in link.log for tensor in reply.tensors.values()]
    assert not any(tensor.shape == rows.shape and torch.allclose(tensor, rows) for tensor in replies for rows in pi)
    assert "pi_0" not in model.clients  # type: ignore[attr-defined]


def test_only_the_shared_part_is_sent(tmp_path: Path) -> None:
    link, _ = log_of(FedPer, tmp_path, hidden=True)
    train = [(request, reply) for _, request, reply in link.log if request.facts["kind"] == "train"][-1]
    body = {"layers.0.weight", "layers.0.bias"}
    assert set(with_prefix(train[0].tensors, "sent.components.0.")) == body
    assert set(with_prefix(train[1].tensors, "models.")) == body


def test_a_parcel_is_the_same_after_its_bytes() -> None:
    tensors = {"a": torch.arange(6).view(2, 3), "b.c": torch.tensor(1.5, dtype=torch.float64), "none": torch.zeros(0)}
    parcel = Parcel({"name": "Zürich", "list": [1, None, "x"], "nested": {"y": 0.1}}, tensors)
    again = Parcel.from_bytes(parcel.to_bytes())
    assert again.facts == parcel.facts
    assert all(torch.equal(again.tensors[name], tensor) for name, tensor in tensors.items())


def test_a_clients_file_holds_its_samples_in_their_order(tmp_path: Path) -> None:
    data = make_data()
    save_client(data.federation, 3, tmp_path / "three.npz")
    alone = load_client(tmp_path / "three.npz")
    assert alone.names == ("3",)
    for split in ("train", "val", "test"):
        one, among = alone.block(torch.tensor([0]), split), data.federation.block(torch.tensor([3]), split)
        assert torch.equal(one.x(torch.float64), among.x(torch.float64))
        assert torch.equal(one.y(), among.y())


def test_a_clients_own_file_needs_x_and_y(tmp_path: Path) -> None:
    np.savez(tmp_path / "mine.npz", x=np.ones((10, 4), dtype=np.float32), y=np.arange(10) % 2)
    mine = load_client(tmp_path / "mine.npz", "ward 3", n_classes=3)
    assert mine.names == ("ward 3",)
    assert mine.task.n_outputs == 3
    assert sum(len(split) for split in mine.splits.values()) == 10
    np.savez(tmp_path / "half.npz", x=np.ones((10, 4)))
    with pytest.raises(UserError, match=r"half.npz lacks y; expected x, y, optional split"):
        load_client(tmp_path / "half.npz")


def test_clients_of_other_forms_are_named(tmp_path: Path) -> None:
    nodes = []
    for width, name in ((4, "a"), (5, "b")):
        np.savez(tmp_path / f"{name}.npz", x=np.ones((10, width)), y=np.arange(10) % 2)
        nodes.append(Node(load_client(tmp_path / f"{name}.npz"), tmp_path / name))
    with pytest.raises(UserError, match=r"client b is refused: its samples .* \(in_shape, raw_shape\)"):
        RemoteDataModule(ByteLink(nodes), 2)


def test_the_facts_are_plain(tmp_path: Path) -> None:
    link, _ = log_of(FedAvg, tmp_path, rounds=1)
    assert all(json.loads(json.dumps(parcel.facts)) == parcel.facts for _, *both in link.log for parcel in both)
