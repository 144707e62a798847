"""Secure aggregation: Flower's SecAgg+ between the server's link and the clients' nodes, in one process."""

import importlib
import io
import json
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason="secure aggregation needs the extra flower")

from flwr.client.mod import secaggplus_mod
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Key, Stage
from flwr.server.workflow import SecAggPlusWorkflow

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
from fedem_lightning.deploy.masking import CONTENT, MODULUS, content_in, masks, packed_content, use_masks
from fedem_lightning.deploy.node import Node
from fedem_lightning.deploy.secure import SecureLink, _facts
from fedem_lightning.deploy.server import RemoteDataModule
from fedem_lightning.deploy.wire import Parcel
from helpers.federations import make_data, make_model, make_trainer, parameters, train
from helpers.remote import ByteLink, nodes_of
from helpers.remote import alone as only


class Stages(ByteLink):
    """A link in this process, over which a node can be gone from a stage on."""

    def __init__(self, nodes: list[Node]) -> None:
        super().__init__(nodes)
        self.dead = dict[int, str]()

    def ask(self, requests: Mapping[int, Parcel]) -> Iterator[tuple[int, Parcel | None]]:
        there = {n: request for n, request in requests.items() if self.dead.get(n, "alive") != stage_of(request)}
        yield from super().ask(there)


def stage_of(parcel: Parcel) -> Any:
    """The stage of a sum that a request asks for."""
    return settings_in(parcel)[Key.STAGE] if CONTENT in parcel.tensors else None


def settings_in(parcel: Parcel) -> Any:
    return content_in(parcel).config_records[RECORD_KEY_CONFIGS]


def federation(tmp_path: Path, **options: Any) -> tuple[FederatedDataModule, Stages, RemoteDataModule]:
    data = make_data(**options)
    link = Stages(nodes_of(data, tmp_path))
    secure = SecureLink(link)
    return data, link, RemoteDataModule(secure, len(secure.connected()))


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
    """What one client sends is uniform noise without the help of the others: an update alone would be near 2^21."""
    _, link, apart = federation(tmp_path)
    trained(FedEM, apart, rounds=1)
    sent = []
    for _, _, reply in link.log:
        if CONTENT not in reply.tensors:
            continue
        assert set(reply.tensors) == {CONTENT}
        records: Any = content_in(reply)
        assert not any(len(arrays) for arrays in records.array_records.values())
        if "fitres.metrics" in records:
            facts = json.loads(records["fitres.metrics"]["facts"])
            assert set(facts) == {"n_groups", "metrics", "rejected"}
            masked = records[RECORD_KEY_CONFIGS][Key.MASKED_PARAMETERS]
            sent.append(np.concatenate([np.load(io.BytesIO(part)).ravel() for part in masked[1:]]))
    assert len(sent) == 4
    for vector in sent:
        assert len(vector) == 3 * 15  # M = 3 models in one message
        assert vector.std() > 0.2 * 2**32


@pytest.mark.parametrize("stage", [Stage.SETUP, Stage.SHARE_KEYS, Stage.COLLECT_MASKED_VECTORS])
def test_a_client_that_is_gone_is_left_out_of_the_mean(stage: str, tmp_path: Path) -> None:
    data, link, apart = federation(tmp_path)
    link.dead[2] = stage
    there = trained(FedAvg, apart, rounds=1)
    assert there.statistics.rejections.by_reason == {"no answer": 1}
    total, counts = torch.zeros(15), data.federation.splits["train"].counts()
    for t in (0, 1, 3):
        other = train(make_model(FedAvg, alone(data, t), client_optimizer=ClientSGD(lr=0.3)), alone(data, t), 1)
        total = total + counts[t] * parameters(other.components)
    expected = total / counts[[0, 1, 3]].sum()
    assert parameters(there.components) == pytest.approx(expected, abs=1e-4)
    link.dead.clear()
    make_trainer(2).fit(there, apart)
    assert there.statistics.rejections.by_reason == {"no answer": 1}


def alone(data: FederatedDataModule, t: int) -> FederatedDataModule:
    """The federation, of which one client trains."""
    federation = only(data.federation, t)
    federation.keys = torch.tensor([t])
    return FederatedDataModule(federation)


def test_too_few_clients_end_the_run_with_one_line(tmp_path: Path) -> None:
    _, link, apart = federation(tmp_path)
    link.dead |= dict.fromkeys((1, 2, 3), Stage.COLLECT_MASKED_VECTORS)
    with pytest.raises(UserError, match=r"^training stopped: in round 1 no client's update was left"):
        trained(FedAvg, apart, rounds=1)


@pytest.mark.filterwarnings("ignore:client .. its update of round 1 is left out")
@pytest.mark.parametrize(
    ("kind", "options", "line"),
    [
        (FedAvg, {"compression": TopK()}, "secure: expected FedAvg to need the mean of uncompressed updates"),
        (FedAvg, {"participation": 0.25}, "secure: a sum needs 3 to 1023 clients in a round, there are 1"),
        (FedAvg, {"participation": 2}, "secure: a sum needs 3 to 1023 clients .* 2: of two clients, each learns"),
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
    with pytest.warns(UserWarning, match=r"client 2: its update of round 1 is left out \(not finite"):
        there = trained(FedAvg, apart, rounds=2)
    assert there.statistics.rejections.by_reason == {"not finite": 2}
    assert float(parameters(there.components).abs().max()) < 10


def without(key: str) -> Callable[[Any], None]:
    return lambda settings: settings.pop(key)


def changed_to(key: str, value: Any) -> Callable[[Any], None]:
    return lambda settings: settings.update({key: value})


@pytest.mark.parametrize(
    ("stage", "change"),
    [
        (Stage.SETUP, without(Key.PUBLIC_KEY_1)),
        (Stage.SETUP, changed_to(Key.PUBLIC_KEY_2, b"no key")),
        (Stage.SHARE_KEYS, without(Key.CIPHERTEXT_LIST)),
        (Stage.SHARE_KEYS, changed_to(Key.DESTINATION_LIST, [0, 1, 99])),
        (Stage.SHARE_KEYS, changed_to(Key.CIPHERTEXT_LIST, ["a", "b", "c"])),
        (Stage.COLLECT_MASKED_VECTORS, without(Key.MASKED_PARAMETERS)),
        (Stage.COLLECT_MASKED_VECTORS, changed_to(Key.MASKED_PARAMETERS, [b"no array"])),
        (Stage.COLLECT_MASKED_VECTORS, lambda settings: settings[Key.MASKED_PARAMETERS].pop()),
        (Stage.UNMASK, without(Key.SHARE_LIST)),
        (Stage.UNMASK, changed_to(Key.NODE_ID_LIST, [99] * 4)),
    ],
)
def test_a_wrong_reply_costs_its_client_its_place_and_not_the_round(
    stage: str, change: Callable[[Any], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, link, apart = federation(tmp_path)
    whole = link.nodes[2].answer

    def garbled(request: Parcel) -> Parcel:
        reply = whole(request)
        if stage_of(request) != stage:
            return reply
        content = content_in(reply)
        change(content.config_records[RECORD_KEY_CONFIGS])
        return Parcel(reply.facts, packed_content(content))

    monkeypatch.setattr(link.nodes[2], "answer", garbled)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # one names the client
        there = trained(FedAvg, apart, rounds=1)
    in_sum = stage == Stage.UNMASK
    assert there.statistics.rejections.by_reason == ({} if in_sum else {"exception": 1})
    assert parameters(there.components).isfinite().all()
    moved = parameters(there.components) - parameters(make_model(FedAvg, data).components)
    assert 0.01 < float(moved.abs().max()) < 5


def test_masks_depend_on_all_bits_of_a_seed() -> None:
    """Flower's own masks are the same for all seeds whose words of 32 bits have one exclusive or."""
    flowers = importlib.import_module("flwr.common.secure_aggregation.secaggplus_utils").pseudo_rand_gen
    seeds, shapes = [bytes(32), bytes([1, 0, 0, 0] * 2) + bytes(24)], [(), (1,), (1, 1000, 3), (0, 2)]
    assert np.array_equal(*(flowers(seed, MODULUS, shapes)[2] for seed in seeds))
    first, second = (masks(seed, MODULUS, shapes) for seed in seeds)
    assert [part.shape for part in first] == shapes
    assert (first[2] == second[2]).mean() < 0.01
    assert all(np.array_equal(a, b) for a, b in zip(first, masks(seeds[0], MODULUS, shapes), strict=True))
    assert first[2].min() >= 0
    assert first[2].max() < MODULUS
    assert abs(first[2].mean() / MODULUS - 0.5) < 0.05


def test_both_sides_use_these_masks() -> None:
    for code in (secaggplus_mod, SecAggPlusWorkflow.unmask_stage):
        assert code.__globals__["pseudo_rand_gen"] is masks
    with pytest.raises(UserError, match=r"^secure: this version of Flower makes masks in a way that is not known here"):
        use_masks(make_data)


def test_what_is_no_json_does_not_stop_the_server() -> None:
    assert [_facts(text) for text in ("{", "[1]", None, '{"a": 1}')] == [{}, {}, {}, {"a": 1}]
