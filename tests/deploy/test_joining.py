"""Waiting for clients: who joins, who is refused, and why."""

import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from fedem_lightning import UserError
from fedem_lightning.deploy import server as joining
from fedem_lightning.deploy.server import RemoteDataModule
from fedem_lightning.deploy.wire import Parcel
from helpers.federations import make_data
from helpers.garbage import garbled
from helpers.remote import ByteLink, nodes_of


class Coming(ByteLink):
    """A link whose nodes come one after the other, one with each look; `changed` makes replies of honest ones."""

    def __init__(self, nodes: Any, changed: dict[int, Any], at_once: int = 1) -> None:
        super().__init__(nodes)
        self.changed, self.looks = changed, itertools.count(at_once)

    def connected(self) -> list[int]:
        return list(range(len(self.nodes)))[: next(self.looks)]

    def ask(self, requests: Mapping[int, Parcel]) -> Iterator[tuple[int, Parcel | None]]:
        for node, reply in super().ask(requests):
            change = self.changed.get(node)
            yield node, change(reply) if change and requests[node].facts["kind"] == "describe" else reply


def facts(**values: Any) -> Any:
    return lambda reply: reply._replace(facts=reply.facts | values)


def error(text: str) -> Any:
    return lambda reply: Parcel({"error": text, "is_users": True}, {})


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joining, "PAUSE", 0.0)


def other_form(reply: Parcel) -> Parcel:
    return reply._replace(facts=reply.facts | {"form": reply.facts["form"] | {"in_shape": [5], "raw_shape": [5]}})


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (error("data: mine.npz is gone"), "a client is refused: data: mine.npz is gone"),
        (facts(n_train=-1), "a client is refused: n_train: expected a whole number from 0 to 1000000000, got -1"),
        (facts(name="0"), "a second client 0 is refused: the name is taken"),
        (other_form, "client 1 is refused: its samples have another form than most clients' (in_shape, raw_shape)"),
        (facts(form=[]), "a client is refused: form: expected values by name, got a list"),
    ],
)
def test_one_wrong_client_keeps_nobody_waiting(
    change: Any, line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    link = Coming(nodes_of(make_data(), tmp_path), {1: change})
    data = RemoteDataModule(link, 3, patience=60.0, run="run")
    assert data.federation.names == ("0", "2", "3")
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        "client 0 has joined: 5 training samples",
        line,
        "client 2 has joined: 3 training samples",
        "client 3 has joined: 12 training samples",
    ]


def test_the_form_that_most_have_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    link = Coming(nodes_of(make_data(), tmp_path), {0: other_form})
    assert RemoteDataModule(link, 3, patience=60.0).federation.names == ("1", "2", "3")
    assert "client 0 is refused: its samples have another form than most" in capsys.readouterr().out


def test_too_few_clients_are_one_line(tmp_path: Path) -> None:
    link = Coming(nodes_of(make_data(), tmp_path), {1: error("no file")}, at_once=3)
    del link.nodes[3:]
    with pytest.raises(UserError, match=r"^clients: 2 of 3 were there after 0 seconds; a client is refused: no file$"):
        RemoteDataModule(link, 3)


def test_descriptions_of_garbage_join_no_run(tmp_path: Path) -> None:
    link = ByteLink(nodes_of(make_data(), tmp_path))
    ((_, honest),) = link.ask({3: Parcel({"kind": "describe", "run": "run"}, {})})
    assert honest is not None
    cases = list(garbled("describe", honest))
    assert len(cases) > 100
    for text, reply in cases:
        crowd = Coming(link.nodes, {3: lambda _, reply=reply: reply}, at_once=4)
        found = joining.Arrivals(crowd, "run").look()
        assert list(found) == [0, 1, 2], text
