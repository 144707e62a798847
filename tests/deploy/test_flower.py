"""Flower as the transport: records, deadlines, and the app."""

from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("flwr", reason="deploy needs the extra flower")

from flwr.app import Error, Message

from fedem_lightning.data.own_files import save_client
from fedem_lightning.deploy import flower_client
from fedem_lightning.deploy.__main__ import main
from fedem_lightning.deploy.flower_client import folder_of_client, parcel_of, record_of
from fedem_lightning.deploy.flower_server import FlowerLink
from fedem_lightning.deploy.wire import Parcel
from fedem_lightning.errors import UserError
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


def test_the_app_is_a_folder_for_flwr_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["app", str(tmp_path / "app")])
    assert "flwr run" in capsys.readouterr().out
    assert "fedem_lightning.deploy.flower_server:app" in (tmp_path / "app" / "pyproject.toml").read_text()


@pytest.mark.parametrize("name", ["../x", "/tmp/x", "..", "a/../../x", "."])
def test_the_name_in_a_data_file_chooses_no_folder_elsewhere(name: str) -> None:
    with pytest.raises(UserError, match=r"name: .*state="):
        folder_of_client(name)


def test_a_clients_folder_has_its_name() -> None:
    assert [folder_of_client(name) for name in ("clinic 3", "play/ROLE")] == [
        Path("fedem_state/clinic 3"),
        Path("fedem_state/play/ROLE"),
    ]
