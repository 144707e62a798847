"""Clients that are away, fail, or reply with garbage are left out, counted and named; the others train on."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason="the Flower app needs the extra flower")

from flwr.app import Array, MetricRecord, RecordDict

from fedem_lightning import APFL, EightBit, FedAvg, FedEM, HypCluster, UserError
from fedem_lightning.flower.messages import state_of_client
from fedem_lightning.settings.errors import NoUpdateLeft
from helpers.federations import make_data, make_model, make_trainer, parameters
from helpers.flower import InProcess

BAD = 2
"""The client that replies with garbage."""


def trained(nodes: InProcess, kind: Any = FedEM, rounds: int = 2, late: tuple[int, ...] = (), **options: Any) -> Any:
    """The server's model; clients that are `late` join, and never answer again."""
    data, nodes.late = nodes.joined(4), set(late)
    model = make_model(kind, data, **options)
    model.remote = data.remote
    make_trainer(rounds).fit(model, data)
    return model


def replaced(key: str, name: str, array: Any) -> Callable[[RecordDict], None]:
    """Puts another array in a record's place."""

    def change(content: RecordDict) -> None:
        record: Any = content[key]
        found = array(record[name].numpy()) if callable(array) else array
        record[name] = found if isinstance(found, Array) else Array(found)

    return change


def dropped(key: str) -> Callable[[RecordDict], None]:
    return lambda content: content.pop(key)  # type: ignore[return-value]


def put(key: str, record: Any) -> Callable[[RecordDict], None]:
    return lambda content: content.update({key: record})


MODEL = "linear.weight"
HUGE = Array("float64", (10**9, 10**9), "numpy.ndarray", b"\x93NUMPY no header")
GARBAGE: dict[str, tuple[Callable[[RecordDict], None], str]] = {
    "shape": (replaced("models", MODEL, lambda rows: rows[..., :-1]), "invalid reply"),
    "bytes": (replaced("models", MODEL, HUGE), "invalid reply"),
    "NaN": (replaced("models", MODEL, lambda rows: rows * np.nan), "not finite"),
    "weight too large": (replaced("weights", "weights", lambda rows: 1000 * rows), "invalid reply"),
    "sum of NaN": (put("sums", MetricRecord({"objective": [float("nan"), 1.0]})), "invalid reply"),
}


@pytest.mark.parametrize("kind", GARBAGE)
@pytest.mark.filterwarnings("ignore:client 2")
def test_garbage_is_left_out_and_the_others_train_on(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    change, reason = GARBAGE[kind]
    nodes = InProcess(make_data(), monkeypatch)
    nodes.spoil[BAD, "train"] = change
    model = trained(nodes)
    assert model.statistics.rejections.by_reason == {reason: 2}
    assert [entry["client"] for entry in model.statistics.rejections.by_client] == [BAD]
    others = trained(InProcess(make_data(), monkeypatch), late=(BAD,))
    assert torch.equal(parameters(model.components), parameters(others.components))


def test_a_warning_names_the_client_and_what_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = InProcess(make_data(), monkeypatch)
    nodes.spoil[BAD, "train"] = GARBAGE["shape"][0]
    said = r"client 2: its update of round 1 is left out \(invalid reply: linear.weight: expected torch.float64 \[1, 3"
    with pytest.warns(UserWarning, match=said):
        trained(nodes, rounds=1)


@pytest.mark.parametrize("name", ["cluster", "models"])
@pytest.mark.filterwarnings("ignore:client 2")
def test_a_component_that_is_not_there_is_left_out(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = InProcess(make_data(), monkeypatch)
    key, entry = ("reported", "cluster") if name == "cluster" else ("group", "group")
    change = replaced(key, entry, lambda rows: rows + 7)
    nodes.spoil[BAD, "train"] = change
    model = trained(nodes, HypCluster, initialization="random")
    assert model.statistics.rejections.by_reason == {"invalid reply": 2}


@pytest.mark.filterwarnings("ignore:client 2")
def test_clients_that_are_away_or_fail_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = InProcess(make_data(), monkeypatch)
    data = nodes.joined(4)
    model = make_model(FedEM, data)
    model.remote, nodes.silent, nodes.late = data.remote, {0}, {1}
    nodes.contexts[102].node_config["partition-id"] = 9  # it raises
    with pytest.warns(UserWarning, match=r"client 2: its update of round 1 is left out \(exception: .*partition-id"):
        make_trainer(1).fit(model, data)
    assert model.statistics.rejections.by_reason == {"no answer": 2, "exception": 1}
    nodes.late = {1, 3}
    with pytest.raises(NoUpdateLeft, match=r"training stopped: in round 2 no client's update was left"):
        make_trainer(1).fit(model, data)


@pytest.mark.filterwarnings("ignore:client 1")
def test_a_client_that_has_lost_its_state_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = InProcess(make_data(), monkeypatch)
    data = nodes.joined(4)
    model = make_model(APFL, data)
    model.remote = data.remote
    make_trainer(1).fit(model, data)
    assert "start" in nodes.log[-1][1].content
    del nodes.contexts[101].state["state"]
    make_trainer(3).fit(model, data)
    assert model.statistics.rejections.by_reason == {"exception": 1}
    assert "lost its state" in model.statistics.rejections.by_client[0]["detail"]
    begun = ["start" in request.content for client, request, _ in nodes.log[4:] if client == 1]
    assert begun == [True, False, True, False]


@pytest.mark.parametrize(
    "change",
    [
        dropped("scores"),
        put("scores", MetricRecord({"test/accuracy": 1.0})),
        lambda content: content["scores"].update({"train/size": 1}),
    ],
)
def test_a_client_with_wrong_scores_has_none(change: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = InProcess(make_data(), monkeypatch)
    data = nodes.joined(4)
    model, nodes.spoil[BAD, "evaluate"] = make_model(FedAvg, data), change
    model.remote, trainer = data.remote, make_trainer(1)
    trainer.fit(model, data)
    with pytest.warns(UserWarning, match=r"1 of 4 clients gave no scores, .*: 2 \(invalid reply"):
        trainer.test(model, data, verbose=False)
    assert model.clients.test_accuracy.isna().tolist() == [False, False, True, False]
    assert model.clients.n_test.isna().tolist() == [False, False, True, False]


def changed(**facts: Any) -> Callable[[RecordDict], None]:
    return lambda content: content["client"].update(facts)


def another_task(target: str) -> Callable[[RecordDict], None]:
    def change(content: RecordDict) -> None:
        record: Any = content["client"]
        form = json.loads(record["form"])
        form["task"]["_target_"] = target
        record["form"] = json.dumps(form)

    return change


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (dropped("client"), "node 102 is refused: invalid reply: client: missing"),
        (changed(name="a\nb"), "node 102 is refused: invalid reply: client: expected a name and samples"),
        (changed(n_train=0), "node 102 is refused: invalid reply: client: expected a name and samples"),
        (another_task("os.system"), "node 102 is refused: invalid reply: form: Refused: form: no task"),
        (changed(name="1"), "client 1 is refused: two have this name"),
        (another_task("fedem_lightning.data.tasks.kinds.Regression"), "node 102 is refused: invalid reply: form:"),
    ],
)
def test_a_wrong_description_is_refused(
    change: Any, line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = InProcess(make_data(), monkeypatch)
    nodes.spoil[BAD, "query"] = change
    assert nodes.joined(2).n_clients in (2, 3)
    assert line in capsys.readouterr().out
    with pytest.raises(UserError, match=r"clients: [23] of 4 were there after 0.1 seconds; .* is refused"):
        nodes.joined(4)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"compression": EightBit()}, "compression: Flower's clients send whole updates, leave it out"),
        ({"initialization": "clusters"}, "FedEM needs all clients in one process, so it does not run under Flower"),
    ],
)
def test_what_does_not_run_under_flower_is_one_line(options: Any, line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=line):
        trained(InProcess(make_data(), monkeypatch), **options)


class Secretive(FedAvg):
    """A method whose server keeps buffers, and a number for each client."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.scores = self.per_client(torch.arange(float(self.n_clients)), held_by="server")
        self.register_buffer("found", torch.ones(0, 5))  # sized by the data


def test_a_client_starts_with_its_own_row_of_what_the_server_keeps() -> None:
    model = make_model(Secretive, make_data())
    model.found = torch.ones(7, 5)
    start = state_of_client(model, 2)
    client = make_model(Secretive, make_data(sizes=(5,)))
    client.load_state_dict(start)
    assert client.scores.tolist() == [2]
    assert client.found.shape == (7, 5)
