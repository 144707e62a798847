"""Flower as the transport: records, deadlines, the commands, and one federation of processes."""

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason="deploy needs the extra flower")

from flwr.app import Error, Message

from fedem_lightning.deploy import flower_client, server
from fedem_lightning.deploy.__main__ import main
from fedem_lightning.deploy.commands import folder_of
from fedem_lightning.deploy.data import save_client
from fedem_lightning.deploy.flower import FlowerLink, parcel_of, record_of
from fedem_lightning.deploy.wire import Parcel
from helpers.federations import make_data
from helpers.flower import in_a_task  # noqa: F401 - a fixture of every test here


class Grid:
    """Nodes that answer at once, with an error, or never."""

    def __init__(self, kinds: dict[int, str]) -> None:
        self.kinds, self.replies = kinds, dict[str, Message]()

    def get_node_ids(self) -> list[int]:
        return [node for node, kind in self.kinds.items() if kind != "gone"]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        ids = []
        for number, message in enumerate(messages):
            key = str(number)
            message.metadata.__dict__["_message_id"] = key
            kind = self.kinds[message.metadata.dst_node_id]
            if kind == "answers":
                self.replies[key] = Message(message.content, reply_to=message)
            elif kind == "fails":
                self.replies[key] = Message(Error(code=0, reason="no"), reply_to=message)
            ids.append(key)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        return [self.replies.pop(key) for key in message_ids if key in self.replies]


def test_a_parcel_is_the_same_after_a_record() -> None:
    parcel = Parcel({"kind": "train", "x": [1, None]}, {"sent.a.b": torch.randn(2, 3), "n": torch.tensor([4])})
    again = parcel_of(record_of(parcel))
    assert again.facts == parcel.facts
    assert all(torch.equal(again.tensors[name], tensor) for name, tensor in parcel.tensors.items())


def test_a_node_that_is_gone_or_fails_or_is_too_late_has_no_answer() -> None:
    link: Any = FlowerLink(Grid({7: "answers", 8: "fails", 9: "gone", 10: "late"}), deadline=0.5)  # type: ignore[arg-type]
    asked = {node: Parcel({"kind": "train", "node": node}, {}) for node in (7, 8, 9, 10)}
    found = dict(link.ask(asked))
    assert found[7].facts["node"] == 7
    assert {node for node, reply in found.items() if reply is None} == {8, 9, 10}


def test_a_client_app_answers_from_its_own_file(tmp_path: Path) -> None:
    save_client(make_data().federation, 1, tmp_path / "mine.npz")
    context: Any = SimpleNamespace(node_config={"data": str(tmp_path / "mine.npz"), "state": str(tmp_path / "state")})
    request = Message(record_of(Parcel({"kind": "describe", "run": "r"}, {})), dst_node_id=1, message_type="query")
    request.metadata.__dict__["_message_id"] = "1"
    reply = parcel_of(flower_client.answer(request, context).content)
    assert (reply.facts["name"], reply.facts["round"]) == ("1", None)
    context.node_config = {}
    reply = parcel_of(flower_client.answer(request, context).content)
    assert "the node's configuration lacks data" in reply.facts["error"]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["demo", "+experiment=digits", "dataset.n_clients=60"], "60 clients are too many processes for one machine"),
        (["demo", "+experiment=digitz"], "experiment"),
        (["server", "--clients", "2", "--host", "0.0.0.0"], "others could read what clients send"),
        (["server", "--clients", "2", "--ca", "nowhere.pem"], "--ca: nowhere.pem is not there"),
        (["client", "--data", "none.npz", "--server", "127.0.0.1:1"], "none.npz"),
        (["client", "--data", "none.npz", "--server", "example.org:1"], "others could read what the client sends"),
        (["app", "."], ". is there already"),
        (["client"], "--data"),
        ([], "COMMAND"),
    ],
)
def test_a_mistake_is_one_line(
    words: list[str], line: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as end:
        main(words)
    assert end.value.code == 2
    message = capsys.readouterr().err
    assert message.startswith("error: ")
    assert message.count("\n") == 1
    assert line in message


def test_the_app_is_a_folder_for_flwr_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["app", str(tmp_path / "app")])
    assert "flwr run" in capsys.readouterr().out
    assert "fedem_lightning.deploy.flower_server:app" in (tmp_path / "app" / "pyproject.toml").read_text()


def test_the_folder_is_taken_from_the_words() -> None:
    folder, words = folder_of(["+experiment=digits", "run_dir=runs/a"])
    assert folder.name == "a"
    assert words == ["+experiment=digits"]


def test_the_mistake_of_an_earlier_attempt_is_forgotten_and_the_run_keeps_its_name(tmp_path: Path) -> None:
    first = server._notes(tmp_path)
    server._save(tmp_path, first | {"error": "algorithm: no"})
    assert server.error_of(tmp_path) == "algorithm: no"
    assert server._notes(tmp_path) == first
    assert server.error_of(tmp_path) is None


@pytest.mark.slow
def test_processes_train_what_the_simulation_trains(tmp_path: Path) -> None:
    words = ["+experiment=digits", "dataset.n_clients=2", "trainer.max_epochs=2", "trainer.check_val_every_n_epoch=2"]
    for command, name in ((["fedem_lightning"], "here"), (["fedem_lightning.deploy", "demo"], "there")):
        command = [sys.executable, "-m", *command, *words, f"run_dir={tmp_path / name}"]
        subprocess.run(command, check=True, capture_output=True, timeout=400)
    here, there = (
        torch.load(next((tmp_path / name / "checkpoints").glob("*.ckpt")), weights_only=True)["state_dict"]
        for name in ("here", "there")
    )
    for name, tensor in here.items():
        if name.startswith("components."):
            torch.testing.assert_close(there[name], tensor, rtol=0, atol=1e-6)
    assert np.allclose(there["pi"], 1 / 3)
    assert not np.allclose(here["pi"], 1 / 3)
