"""Secure aggregation: Flower's SecAgg+ between the server's link and the clients' app, in one process."""

import copy
import io
import json
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason="deploy needs the extra flower")

from flwr.app import Context, Error, Message, RecordDict
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Key, Stage

from fedem_lightning import (
    AFL,
    QFFL,
    ClientSGD,
    FedAvg,
    FedEM,
    FederatedDataModule,
    FedPer,
    HypCluster,
    SignFlip,
    TopK,
    UserCentric,
    UserError,
)
from fedem_lightning.deploy import flower_client
from fedem_lightning.deploy.data import save_client
from fedem_lightning.deploy.flower_secure import SecureLink, _facts
from fedem_lightning.deploy.joining import RemoteDataModule
from helpers.federations import make_data, make_model, make_trainer, parameters, train
from helpers.flower import in_a_task  # noqa: F401 - a fixture of every test here


class Grid:
    """Every node's ClientApp in this process."""

    def __init__(self, data: FederatedDataModule, folder: Path) -> None:
        self.contexts = {}
        self.dead, self.log = dict[int, str](), list[tuple[int, Message]]()  # the stage in which a node is gone
        for t in range(data.n_clients):
            save_client(data.federation, t, folder / f"{t}.npz")
            config = {"data": str(folder / f"{t}.npz"), "name": str(t), "state": str(folder / str(t))}
            self.contexts[10 + t] = Context(1, 10 + t, {**config, "n_classes": 3}, RecordDict(), {})
        self.waiting = dict[str, Message]()

    def get_node_ids(self) -> list[int]:
        return list(self.contexts)

    def answer(self, message: Message) -> Message:
        node = message.metadata.dst_node_id
        configs: Any = message.content.config_records.get(RECORD_KEY_CONFIGS, {})
        message.metadata.__dict__["_message_id"] = f"{len(self.log)}"
        message = copy.deepcopy(message)  # as if it came over a wire
        if node in self.dead and configs.get(Key.STAGE) == self.dead[node]:
            return Message(Error(code=0, reason="gone"), reply_to=message)
        try:
            reply = flower_client.app(message, self.contexts[node])
        except Exception as error:  # as Flower's SuperNode does
            reply = Message(Error(code=0, reason=f"{type(error)}:<'{error}'>"), reply_to=message)
        reply.metadata.__dict__["_src_node_id"] = node
        self.log.append((node, reply))
        return reply

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        return [self.answer(message) for message in messages]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        for message in messages:
            reply = self.answer(message)
            self.waiting[reply.metadata.reply_to_message_id] = reply
        return list(self.waiting)

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        return [self.waiting.pop(key) for key in list(message_ids) if key in self.waiting]


def federation(tmp_path: Path, **options: Any) -> tuple[FederatedDataModule, Grid, RemoteDataModule]:
    flower_client.node_of.cache_clear()
    data = make_data(**options)
    grid: Any = Grid(data, tmp_path)
    context: Any = SimpleNamespace(run_id=1, node_id=0, node_config={}, run_config={})
    link = SecureLink(grid, 5.0, context)
    return data, grid, RemoteDataModule(link, link.connected())


def trained(kind: Any, data: Any, rounds: int = 3, **options: Any) -> Any:
    model = make_model(kind, data, **{"client_optimizer": ClientSGD(lr=0.3), **options})
    model.remote = data.remote
    make_trainer(rounds).fit(model, data)
    return model


@pytest.mark.parametrize(("kind", "hidden"), [(FedAvg, False), (FedEM, False), (FedPer, True)])
def test_the_mean_is_that_of_the_simulation(kind: Any, hidden: bool, tmp_path: Path) -> None:
    data, _, apart = federation(tmp_path)
    there, here = trained(kind, apart, hidden=hidden), trained(kind, data, hidden=hidden)
    difference = (parameters(there.components) - parameters(here.components)).abs().max()
    assert 0 < float(difference) < 1e-4  # entries are multiples of 16 / 2^22
    assert (
        float((parameters(here.components) - parameters(make_model(kind, data, hidden=hidden).components)).abs().max())
        > 0.05
    )
    assert there.round_metrics.means() == pytest.approx(here.round_metrics.means(), abs=1e-3)


def test_no_update_can_be_read(tmp_path: Path) -> None:
    """What one client sends is uniform noise without the help of the others: the same update twice looks different."""
    _, grid, apart = federation(tmp_path)
    trained(FedEM, apart, rounds=1)
    sent = []
    for _, reply in grid.log:
        records: Any = reply.content.config_records
        assert not any(len(arrays) for arrays in reply.content.array_records.values() if "fitres.metrics" in records)
        if "fitres.metrics" in records:
            facts = json.loads(records["fitres.metrics"]["facts"])
            assert set(facts) == {"n_groups", "metrics", "rejected"}
            masked = records[RECORD_KEY_CONFIGS][Key.MASKED_PARAMETERS]
            sent.append(np.concatenate([np.load(io.BytesIO(part)).ravel() for part in masked[1:]]))
    assert len(sent) == 4
    for vector in sent:
        assert len(vector) == 3 * 15  # M = 3 models in one message
        assert vector.std() > 0.2 * 2**32  # an update alone would be near 2^21


@pytest.mark.parametrize("stage", [Stage.SETUP, Stage.SHARE_KEYS, Stage.COLLECT_MASKED_VECTORS])
def test_a_client_that_is_gone_is_left_out_of_the_mean(stage: str, tmp_path: Path) -> None:
    data, grid, apart = federation(tmp_path)
    grid.dead[12] = stage
    there = trained(FedAvg, apart, rounds=1)
    assert there.statistics.rejections.by_reason == {"no answer": 1}
    total, counts = torch.zeros(15), data.federation.splits["train"].counts()
    for t in (0, 1, 3):
        other = train(make_model(FedAvg, alone(data, t), client_optimizer=ClientSGD(lr=0.3)), alone(data, t), 1)
        total = total + counts[t] * parameters(other.components)
    expected = total / counts[[0, 1, 3]].sum()
    assert parameters(there.components) == pytest.approx(expected, abs=1e-4)
    grid.dead.clear()
    make_trainer(2).fit(there, apart)
    assert there.statistics.rejections.by_reason == {"no answer": 1}


def alone(data: FederatedDataModule, t: int) -> FederatedDataModule:
    """The federation, of which one client trains."""
    from helpers.remote import alone as only

    federation = only(data.federation, t)
    federation.keys = torch.tensor([t])
    return FederatedDataModule(federation)


def test_too_few_clients_end_the_run_with_one_line(tmp_path: Path) -> None:
    _, grid, apart = federation(tmp_path)
    grid.dead |= dict.fromkeys((11, 12, 13), Stage.COLLECT_MASKED_VECTORS)
    with pytest.raises(UserError, match=r"^training stopped: in round 1 no client's update was left"):
        trained(FedAvg, apart, rounds=1)


@pytest.mark.parametrize(
    ("kind", "options", "line"),
    [
        (FedAvg, {"compression": TopK()}, "secure: expected FedAvg to need the mean of uncompressed updates"),
        (FedAvg, {"participation": 0.25}, "secure: a sum needs 2 to 1023 clients in a round, there are 1"),
        (FedAvg, {"faults": SignFlip(share=0.5)}, "secure: expected FedAvg to need the mean"),
        (UserCentric, {}, "secure: UserCentric asks clients for more than their updates"),
        (FedAvg, {"aggregation": "median"}, "secure: expected FedAvg to need the mean of uncompressed updates"),
        (AFL, {}, "secure: expected AFL to need the mean"),
        (QFFL, {"sampling": "uniform"}, "client 0: secure: QFFL does not send one update for one average"),
        (HypCluster, {"initialization": "random"}, "secure: expected HypCluster to need the mean"),
        (FedEM, {"upload_threshold": 0.5}, "client 0: secure: FedEM .* sends some of its components"),
    ],
)
def test_what_cannot_be_added_is_refused(kind: Any, options: dict[str, Any], line: str, tmp_path: Path) -> None:
    _, _, apart = federation(tmp_path)
    with pytest.raises(UserError, match=f"^{line}"):
        trained(kind, apart, rounds=1, **options)


def test_an_update_that_is_not_finite_does_not_enter_the_sum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounded to whole numbers, NaN would be a number."""
    _, _, apart = federation(tmp_path)
    whole = FedAvg.client_update

    def broken(self: FedAvg, block: Any, round_: int) -> Any:
        sent = whole(self, block, round_)
        if block.keys.tolist() == [2]:
            sent = sent._replace(models={name: rows * torch.nan for name, rows in sent.models.items()})
        return sent

    monkeypatch.setattr(FedAvg, "client_update", broken)
    there = trained(FedAvg, apart, rounds=2)
    assert there.statistics.rejections.by_reason == {"not finite": 2}
    assert float(parameters(there.components).abs().max()) < 10


def test_what_is_no_json_does_not_stop_the_server() -> None:
    assert [_facts(text) for text in ("{", "[1]", None, '{"a": 1}')] == [{}, {}, {}, {"a": 1}]
