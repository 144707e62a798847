"""What a server may ask of a client: nothing outside the client's own folder is written, read or filled."""

import time
from pathlib import Path
from typing import Any

import pytest

from fedem_lightning import FedEM
from fedem_lightning.deploy.node import NEWEST, Node
from fedem_lightning.deploy.server import RemoteDataModule
from fedem_lightning.deploy.wire import Parcel
from helpers.federations import make_data, make_model, make_trainer
from helpers.remote import ByteLink, nodes_of
from helpers.runs import snapshot

KINDS = ("describe", "train", "score", "answer")
STEPS = ("..", ".", "", "x", "~", ".. ", "..\\", "%2e%2e", "\uff0e", "$HOME", "a b", "a\n", "a\0b", "é", "\ud800")
RUNS: list[Any] = [
    *(step for step in STEPS if step != "x"),
    *(f"{a}/{b}" for a in STEPS for b in STEPS if (a, b) != ("", "")),
    *("../" * n + "x" for n in range(1, 9)),
    *("/tmp/x", "/", "//", "/dev/null", "x/../../y", "C:\\x", "\\\\host\\x", "file:///tmp/x", "x\u202e", "a" * 65),
    *(None, 3, True, 1.5, [], ["x"], {"x": 1}, {}),
]
COUNTS: list[Any] = [-1, 10**9, 10**30, 1.5, "1", None, True, [1], float("nan"), float("inf")]


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> tuple[Node, Parcel]:
    """A client of a run, in the folder client/own, and what its server asked it in the first round."""
    folder = tmp_path_factory.mktemp("above")
    link = ByteLink(nodes_of(make_data(), folder / "client"))
    data = RemoteDataModule(link, len(link.connected()), run="x")
    model = make_model(FedEM, data)
    model.remote = data.remote
    make_trainer(1).fit(model, data)
    train = next(request for n, request, _ in link.log if n == 0 and request.facts["kind"] == "train")
    return link.nodes[0], train


def refused(node: Node, request: Parcel, **facts: Any) -> str:
    """The one line with which a node refuses a request that differs in these facts; all files stay as they were."""
    above = node.folder.parents[1]
    before, start = snapshot(above), time.perf_counter()
    reply = node.answer(Parcel(request.facts | facts, request.tensors))
    assert snapshot(above) == before
    assert time.perf_counter() - start < 5
    assert reply.tensors == {}
    assert len(reply.facts["error"].splitlines()) == 1
    return str(reply.facts["error"])


@pytest.mark.parametrize("kind", KINDS)
def test_a_runs_name_is_a_plain_name(kind: str, asked: tuple[Node, Parcel]) -> None:
    node, train = asked
    for run in RUNS:
        line = refused(node, train, kind=kind, run=run, question="gradients")
        assert line.startswith('run: expected a name of 1 to 64 letters, digits, "_" or "-", got '), (run, line)
        assert len(line) < 200


@pytest.mark.parametrize("fact", ["round", "planned_rounds"])
def test_a_number_of_rounds_fills_no_memory(fact: str, asked: tuple[Node, Parcel]) -> None:
    for count in COUNTS:
        assert refused(*asked, **{fact: count}).startswith(f"{fact}: expected a whole number"), count


@pytest.mark.parametrize("part", ["run", "file"])
def test_a_link_leads_no_client_out_of_its_folder(part: str, asked: tuple[Node, Parcel], tmp_path: Path) -> None:
    node, train = asked
    place = Node(node.federation, tmp_path / "client" / "own")
    (tmp_path / "elsewhere").mkdir()
    if part == "run":
        place.folder.mkdir(parents=True)
        (place.folder / "linked").symlink_to(tmp_path / "elsewhere")
    else:
        (place.folder / "linked").mkdir(parents=True)
        (place.folder / "linked" / NEWEST).symlink_to(node.folder / "x" / NEWEST)
    for kind in KINDS:
        assert "leads elsewhere" in refused(place, train, kind=kind, run="linked", question="gradients")
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_plain_names_are_taken(asked: tuple[Node, Parcel], tmp_path: Path) -> None:
    node, train = asked
    place = Node(node.federation, tmp_path / "own")
    for run in ("x", "3", "first-run_2", "0123456789abcdef" * 4):
        assert "error" not in place.answer(Parcel(train.facts | {"run": run}, train.tensors)).facts
        assert (tmp_path / "own" / run / NEWEST).is_file()
