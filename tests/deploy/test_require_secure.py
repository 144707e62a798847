"""A client that insists on secure aggregation, and servers that want its update in clear text."""

import contextlib
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("flwr", reason="secure aggregation needs the extra flower")

from flwr.app import ConfigRecord, RecordDict
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Key, Stage

from fedem_lightning import ClientSGD, FedAvg, FederatedDataModule, UserCentric, UserError
from fedem_lightning.deploy import masking
from fedem_lightning.deploy.masking import CONTENT, content_in, packed_content
from fedem_lightning.deploy.node import Node
from fedem_lightning.deploy.secure import SecureLink
from fedem_lightning.deploy.server import RemoteDataModule, run_on
from fedem_lightning.deploy.wire import Parcel
from helpers.federations import make_data, make_model, make_trainer, parameters
from helpers.remote import ByteLink, nodes_of

UPDATE, SHARES = Key.MASKED_PARAMETERS, Key.SHARE_LIST


def insisting(data: FederatedDataModule, folder: Path) -> list[Node]:
    nodes = nodes_of(data, folder)
    for node in nodes:
        node.require_secure = True
    return nodes


class Hostile(ByteLink):
    """The link of a server that changes what it asks for.

    Args:
        nodes: of the clients.
        changes: the settings of a stage, by stage: a function changes them in place.

    """

    def __init__(self, nodes: list[Node], changes: Mapping[str, Callable[[Any], None]]) -> None:
        super().__init__(nodes)
        self.changes = changes

    def ask(self, requests: Mapping[int, Parcel]) -> Iterator[tuple[int, Parcel | None]]:
        return super().ask({node: self.changed(request) for node, request in requests.items()})

    def changed(self, request: Parcel) -> Parcel:
        if CONTENT not in request.tensors:
            return request
        content = content_in(request)
        settings: Any = content.config_records[RECORD_KEY_CONFIGS]
        stage = settings[Key.STAGE]
        self.changes.get(stage, lambda _: None)(settings)
        return Parcel(request.facts, packed_content(content))

    def learned(self, key: str) -> int:
        """The number of the first client's replies with an update, masked or not, or with shares of keys."""
        sent = [content_in(reply) for n, _, reply in self.log if CONTENT in reply.tensors and n == 0]
        return sum(key in content.config_records.get(RECORD_KEY_CONFIGS, {}) for content in sent)


def trained(link: ByteLink, data: FederatedDataModule, **options: Any) -> Any:
    secure = SecureLink(link)
    apart = RemoteDataModule(secure, len(secure.connected()))
    model = make_model(FedAvg, data, client_optimizer=ClientSGD(lr=0.3), **options)
    model.remote = apart.remote
    make_trainer(2).fit(model, apart)
    return model


def test_clients_that_insist_take_part_in_sums(tmp_path: Path) -> None:
    data = make_data()
    here, there = (
        trained(ByteLink(nodes), data) for nodes in (nodes_of(data, tmp_path / "a"), insisting(data, tmp_path / "b"))
    )
    assert (parameters(here.components) - parameters(there.components)).abs().max() < 1e-4
    assert there.statistics.rejections.by_reason == {}


@pytest.mark.parametrize("method", [FedAvg, UserCentric])
@pytest.mark.filterwarnings("ignore:client .. its .* is left out")
def test_a_server_without_masks_is_refused_in_one_line(method: Any, tmp_path: Path) -> None:
    """FedAvg asks for updates; UserCentric first asks for gradients, by the kind "answer"."""
    data = make_data()
    link = ByteLink(insisting(data, tmp_path))
    model = make_model(method, data)
    apart = RemoteDataModule(link, len(link.connected()))
    model.remote = apart.remote
    with pytest.raises(UserError, match=r"^client 0: require_secure: this client sends updates only in a sum") as error:
        make_trainer(2).fit(model, apart)
    assert "\n" not in str(error.value)
    assert not any(reply.tensors for _, _, reply in link.log)


def set_to(**values: Any) -> Callable[[Any], None]:
    return lambda settings: settings.update(ConfigRecord(values))


def asked_next(stage: str) -> Callable[[Any], None]:
    return lambda settings: settings.update({Key.STAGE: stage})


def own_key_alone(settings: Any) -> None:
    """The client is told that nobody else is there: with its own seed alone the server removes all masks."""
    for node in [key for key in settings if key not in ("0", Key.STAGE)]:
        del settings[node]


def nobody_shares(settings: Any) -> None:
    settings[Key.SOURCE_LIST], settings[Key.CIPHERTEXT_LIST] = [], []


def one_shares_often(settings: Any) -> None:
    for key in (Key.SOURCE_LIST, Key.CIPHERTEXT_LIST):
        settings[key] = settings[key][:1] * 3


def both_halves(settings: Any) -> None:
    """Of each client, the seed of its own mask and the key of the masks that it shares with others."""
    settings[Key.DEAD_NODE_ID_LIST] = settings[Key.ACTIVE_NODE_ID_LIST]


def gives_itself_away(settings: Any) -> None:
    settings[Key.DEAD_NODE_ID_LIST], settings[Key.ACTIVE_NODE_ID_LIST] = [0], [1, 2, 3]


def two_stay(settings: Any) -> None:
    settings[Key.ACTIVE_NODE_ID_LIST], settings[Key.DEAD_NODE_ID_LIST] = [0, 1], [2, 3]


def one_stays_often(settings: Any) -> None:
    settings[Key.ACTIVE_NODE_ID_LIST], settings[Key.DEAD_NODE_ID_LIST] = [0, 1, 1, 1], [2, 3]


@pytest.mark.parametrize(
    ("stage", "change", "line", "kept"),
    [
        (Stage.SETUP, set_to(share_num=2), "sum of 3 to 1023 clients only, got 2", UPDATE),
        (Stage.SETUP, set_to(share_num=1, threshold=1, sample_num=1), "sum of 3 to 1023 clients only, got 1", UPDATE),
        (Stage.SETUP, set_to(share_num=10**9), "sum of 3 to 1023 clients only", UPDATE),
        (Stage.SETUP, set_to(share_num=4.0), "sum of 3 to 1023 clients only", UPDATE),
        (Stage.SETUP, set_to(threshold=1), "3 to 4 of 4 clients to agree", UPDATE),
        (Stage.SETUP, set_to(threshold=2), "3 to 4 of 4 clients to agree", UPDATE),
        (Stage.SETUP, set_to(threshold=5), "3 to 4 of 4 clients to agree", UPDATE),
        (Stage.SETUP, set_to(mod_range=2), "masks modulo 2\\^32 only", UPDATE),  # all masks would be 0
        (Stage.SETUP, set_to(target_range=2**60), "masks modulo 2\\^32 only", UPDATE),
        (Stage.SETUP, set_to(clipping_range=1e30), "masks modulo 2\\^32 only", UPDATE),
        (Stage.SETUP, asked_next(Stage.COLLECT_MASKED_VECTORS), "expect setup stage", UPDATE),
        (Stage.SETUP, asked_next("train"), "not in|expect|train", UPDATE),
        (Stage.SETUP, lambda settings: settings.clear(), "stage", UPDATE),
        (Stage.SHARE_KEYS, asked_next(Stage.COLLECT_MASKED_VECTORS), "expect share_keys stage", UPDATE),
        (Stage.SHARE_KEYS, own_key_alone, "smaller than threshold", UPDATE),
        (Stage.COLLECT_MASKED_VECTORS, nobody_shares, "Not enough available", UPDATE),
        (Stage.COLLECT_MASKED_VECTORS, one_shares_often, "names one of them twice", UPDATE),
        (Stage.UNMASK, both_halves, "names one of them twice", SHARES),
        (Stage.UNMASK, gives_itself_away, "does not give away its own key", SHARES),
        (Stage.UNMASK, two_stay, "smaller than threshold|does not give away", SHARES),
        (Stage.UNMASK, one_stays_often, "names one of them twice", SHARES),
    ],
)
@pytest.mark.filterwarnings("ignore:client .. its update of round 1 is left out")
def test_a_server_that_wants_masks_removed_is_refused(
    stage: str, change: Callable[[Any], None], line: str, kept: str, tmp_path: Path
) -> None:
    data = make_data()
    link = Hostile(insisting(data, tmp_path), {stage: change})
    with contextlib.suppress(UserError):  # the client's line, or that no update is left, or a sum with masks in it
        trained(link, data)
    refusals = [str(reply.facts["error"]) for n, _, reply in link.log if "error" in reply.facts and n == 0]
    assert any(re.search(line, refusal) for refusal in refusals)
    assert link.learned(kept) == 0


@pytest.mark.parametrize(
    "facts",
    [
        {"kind": "answer", "question": "gradient"},
        {"kind": "score"},
        {"kind": "train"},
        {"kind": "train", "summed": 1},
        {"kind": "secure"},
    ],
)
def test_nothing_but_an_update_for_a_sum_is_masked(facts: dict[str, Any], tmp_path: Path) -> None:
    """Of another reply, parts would not be masked."""
    link = Hostile(insisting(make_data(), tmp_path), {})
    found = SecureLink(link).mean(dict.fromkeys(range(4), Parcel(facts, {})), 10)
    assert {error["error"] for error in found.errors.values()} == {
        "secure: this client masks an update for a sum, and nothing else"
    }
    assert len(found.errors) == 4
    assert link.learned(UPDATE) == 0


def test_what_the_server_calls_a_message_does_not_matter(tmp_path: Path) -> None:
    """Flower's mod passes on messages of other types than "train", whose reply would be clear."""
    [node, *_] = insisting(make_data(), tmp_path)
    content = RecordDict({RECORD_KEY_CONFIGS: ConfigRecord({Key.STAGE: Stage.COLLECT_MASKED_VECTORS})})
    facts = {"kind": "secure", "node": 0, "message_type": "query", "type": "evaluate"}
    reply = node.answer(Parcel(facts, packed_content(content)))
    assert "expect setup stage" in reply.facts["error"]
    for parcel in (
        Parcel(facts, {}),
        Parcel(facts, {CONTENT: torch.zeros(0, dtype=torch.uint8)}),
        Parcel({"kind": "secure"}, {}),
    ):
        reply = node.answer(parcel)
        assert set(reply.facts) == {"error", "is_users"}
        assert not reply.tensors


def asked_of_first(link: Hostile, stage: str) -> Parcel:
    """What the first client was asked in a stage."""
    asked = [request for n, request, _ in link.log if n == 0 and CONTENT in request.tensors]
    return next(r for r in asked if content_in(r).config_records[RECORD_KEY_CONFIGS][Key.STAGE] == stage)


@pytest.mark.parametrize("stage", [Stage.SHARE_KEYS, Stage.COLLECT_MASKED_VECTORS, Stage.UNMASK])
def test_a_stage_that_is_over_is_not_answered_again(stage: str, tmp_path: Path) -> None:
    """The same update under two masks, or the other half of a secret."""
    data = make_data()
    link = Hostile(insisting(data, tmp_path), {})
    trained(link, data)
    reply = link.nodes[0].answer(asked_of_first(link, stage))
    assert "expect setup stage" in reply.facts["error"]
    assert not reply.tensors


def test_an_update_that_flower_leaves_in_the_reply_is_not_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = make_data()
    link = Hostile(insisting(data, tmp_path), {})
    trained(link, data)
    monkeypatch.setattr(masking, "secaggplus_mod", lambda message, context, call_next: call_next(message, context))
    reply = link.nodes[0].answer(asked_of_first(link, Stage.COLLECT_MASKED_VECTORS))
    assert "leaves the update in the reply" in reply.facts["error"]
    assert not reply.tensors


def test_two_requests_at_once_are_answered_one_after_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a server could ask for both halves of a secret before the first answer is noted."""
    inside, most = 0, 0

    def slow(message: Any, context: Any, call_next: Any) -> Any:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        time.sleep(0.2)
        inside -= 1
        return message

    monkeypatch.setattr(masking, "secaggplus_mod", slow)
    [node, *_] = insisting(make_data(), tmp_path)
    content = RecordDict({RECORD_KEY_CONFIGS: ConfigRecord({Key.STAGE: Stage.SHARE_KEYS})})
    request = Parcel({"kind": "secure", "node": 0}, packed_content(content))
    threads = [threading.Thread(target=node.answer, args=(request,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (most, inside) == (1, 0)


def test_a_client_that_restarts_within_a_sum_is_left_out(tmp_path: Path) -> None:
    """The keys are in its memory only; its own update is lost for the round, and counted."""
    data = make_data()
    link = Hostile(insisting(data, tmp_path), {})

    def restart(_: Any) -> None:
        link.nodes[0].context = None

    link.changes = {Stage.COLLECT_MASKED_VECTORS: restart}
    with pytest.warns(UserWarning, match="client 0: its update of round 1 is left out .*expect setup stage"):
        model = trained(link, data)
    assert model.statistics.rejections.by_reason == {"exception": 2}  # one in each round


@pytest.mark.parametrize("n", [1, 2])
def test_fewer_than_three_clients_are_refused_before_anyone_is_waited_for(n: int, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"^secure: a sum needs 3 to 1023 clients in a round, there are {n}: of two"):
        run_on(ByteLink([]), ["+experiment=digits"], tmp_path, n, 60.0, secure=True)


def test_two_of_a_large_federation_are_refused_before_the_first_round(tmp_path: Path) -> None:
    data = make_data()
    link = ByteLink(nodes_of(data, tmp_path))
    with pytest.raises(UserError, match=r"^secure: a sum needs 3 to 1023 clients in a round, there are 2"):
        trained(link, data, participation=2)
    assert {request.facts["kind"] for _, request, _ in link.log} == {"describe"}


@pytest.mark.parametrize("n", range(3, 30))
def test_more_than_two_thirds_must_agree(n: int) -> None:
    """Clients that are told different things give neither both halves of a secret nor the keys of all but two."""
    t = masking.threshold_of(n)
    assert 3 <= t <= n
    assert 2 * t > n
    most_gone = n * (n - t) // t  # each of n clients names at most n - t others as gone, and t must name one
    assert n - most_gone >= 3
