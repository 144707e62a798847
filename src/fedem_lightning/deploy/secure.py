"""Secure aggregation: the server learns the mean of the clients' updates, and no single one, by Flower's SecAgg+.

Bell, Bonawitz, Gascon, Lepoint, Raykova: "Secure Single-Server Aggregation with (Poly)Logarithmic Overhead", CCS 2020.
This is the server's side; `masking.py` is the client's.
"""

import contextlib
import json
import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any, cast

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.common import FitIns, FitRes, Parameters, bytes_to_ndarray, parameters_to_ndarrays
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Key, Stage
from flwr.compat.common.recorddict_compat import recorddict_to_fitres
from flwr.server import LegacyContext
from flwr.server.strategy import FedAvg
from flwr.server.workflow import SecAggPlusWorkflow
from flwr.server.workflow.constant import MAIN_CONFIGS_RECORD, MAIN_PARAMS_RECORD
from flwr.server.workflow.constant import Key as WorkflowKey
from flwr.supercore.primitives.asymmetric import bytes_to_public_key
from flwr.supercore.task_identity import TaskIdentity

from fedem_lightning.deploy.masking import LIMIT, MODULUS, STEPS, content_in, packed_content, threshold_of, use_masks
from fedem_lightning.deploy.wire import Link, Parcel, Summed, failed
from fedem_lightning.rejections import first_line

use_masks(SecAggPlusWorkflow.unmask_stage)


class SecureLink:
    """A link that also asks for sums of updates; the server cannot read single ones.

    Args:
        link: over which the messages go.

    """

    def __init__(self, link: Link) -> None:
        self.link = link
        if TaskIdentity._run_id is None:  # Flower's messages ask for it; outside of Flower's processes nobody sets it
            TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 0

    def connected(self) -> list[int]:
        """The addresses of the nodes that are there now."""
        return self.link.connected()

    def ask(self, requests: Mapping[int, Parcel]) -> Iterator[tuple[int, Parcel | None]]:
        """Sends each node its request, see `Link`."""
        return self.link.ask(requests)

    def mean(self, requests: Mapping[int, Parcel], most: int) -> Summed:
        """Sends each node its request; returns the mean of the updates that they send, weighted by their weights.

        Args:
            requests: by node; a node replies with its update in tensors called "models.NAME", and its weight.
            most: no weight is above it.

        """
        there = set(self.connected())
        strategy = OneRound({node: parcel for node, parcel in requests.items() if node in there})
        start = {MAIN_CONFIGS_RECORD: ConfigRecord({WorkflowKey.CURRENT_ROUND: 1}), MAIN_PARAMS_RECORD: ArrayRecord()}
        context = LegacyContext(Context(1, 0, {}, RecordDict(start), {}), strategy=strategy)  # type: ignore[arg-type]
        workflow = SecAggPlus(
            1.0,
            threshold_of(len(strategy.requests)),
            max_weight=float(most),
            clipping_range=LIMIT,
            quantization_range=STEPS,
            modulus_range=MODULUS,
        )
        grid = ParcelGrid(self.link)
        try:
            with _quiet():
                workflow(grid, context)  # type: ignore[arg-type]
        except Exception as error:  # what clients send is added before Flower looks at it
            lost = {"error": f"the sum cannot be computed: {first_line(error)}"}
            return Summed([], 0, {}, dict.fromkeys(strategy.requests, lost) | grid.errors)
        found = strategy.results
        facts = {node: _facts(result.metrics.get("facts")) for node, result in found.items()}
        mean = parameters_to_ndarrays(next(iter(found.values())).parameters) if found else []
        return Summed(mean, sum(result.num_examples for result in found.values()), facts, grid.errors)


class ParcelGrid:
    """What Flower's workflow needs of a grid: its messages go as parcels. It notes why nodes have failed.

    Args:
        link: over which they go.

    """

    def __init__(self, link: Link) -> None:
        self.link, self.errors = link, dict[int, dict[str, Any]]()

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Sends the messages; returns the replies of the nodes that have not failed. The link has the deadline."""
        asked = {message.metadata.dst_node_id: message for message in messages}
        requests = {
            node: Parcel({"kind": "secure", "node": node}, packed_content(message.content))
            for node, message in asked.items()
        }
        replies, forms = dict[int, Message](), dict[int, Any]()
        for node, reply in self.link.ask(requests):
            if reply is None:
                continue
            if "error" in reply.facts:
                self.errors[node] = reply.facts
                continue
            try:
                content = content_in(reply)
                forms[node] = form_of_reply(node, asked[node].content, content)
                replies[node] = Message(content, reply_to=asked[node])
            except Exception as error:  # a reply may hold anything
                self.errors[node] = failed(error).facts
        [(usual, _)] = Counter(forms.values()).most_common(1) or [(None, 0)]
        for node in [node for node, form in forms.items() if form != usual]:
            del replies[node]
            self.errors[node] = failed(ValueError("its update has another form than those of most clients")).facts
        return list(replies.values())


def form_of_reply(node: int, asked: RecordDict, found: RecordDict) -> Any:
    """The shapes of the update in a reply; None where a stage has no update.

    Raises:
        Exception: it is no reply to what was asked, and would fail the sum of all.

    """
    request, reply = (dict(content.config_records[RECORD_KEY_CONFIGS]) for content in (asked, found))
    stage = request.pop(Key.STAGE)
    if stage == Stage.SETUP:
        for key in (Key.PUBLIC_KEY_1, Key.PUBLIC_KEY_2):
            bytes_to_public_key(cast(bytes, reply[key]))
        return None
    if stage == Stage.COLLECT_MASKED_VECTORS:
        recorddict_to_fitres(found, keep_input=True)
        arrays = [bytes_to_ndarray(cast(bytes, part)) for part in cast(list[Any], reply[Key.MASKED_PARAMETERS])]
        return tuple((array.shape, str(array.dtype)) for array in arrays)
    if stage == Stage.SHARE_KEYS:
        expected: Any = sorted(int(other) for other in request if int(other) != node)
        named, secrets = sorted(cast(list[int], reply[Key.DESTINATION_LIST])), reply[Key.CIPHERTEXT_LIST]
    else:
        expected = [*cast(Any, request[Key.ACTIVE_NODE_ID_LIST]), *cast(Any, request[Key.DEAD_NODE_ID_LIST])]
        named, secrets = cast(list[int], reply[Key.NODE_ID_LIST]), reply[Key.SHARE_LIST]
    texts = [part for part in cast(list[Any], secrets) if isinstance(part, bytes)]
    if named != expected or len(texts) != len(expected):
        raise ValueError("its shares of keys are not for the clients that take part")


class SecAggPlus(SecAggPlusWorkflow):
    """Flower's workflow, which also goes on without clients that are gone before they have dealt their keys."""

    def share_keys_stage(self, grid: Any, context: LegacyContext, state: Any) -> bool:
        """Flower would ask for the keys of clients that nobody has; no mask is shared with them."""
        goes_on = super().share_keys_stage(grid, context, state)
        state.sampled_node_ids = set(state.active_node_ids)
        both = {node: state.nid_to_neighbours[node] & state.active_node_ids for node in state.active_node_ids}
        state.nid_to_neighbours = both
        return goes_on


class OneRound(FedAvg):
    """What Flower's workflow asks for: the requests to the clients; it keeps what comes back."""

    def __init__(self, requests: Mapping[int, Parcel]) -> None:
        super().__init__()
        self.requests, self.results = requests, dict[int, FitRes]()

    def configure_fit(self, server_round: int, parameters: Any, client_manager: Any) -> Any:
        """Each node's request, as bytes."""
        return [
            (SimpleNamespace(node_id=node), FitIns(Parameters([parcel.to_bytes()], "parcel"), {}))
            for node, parcel in self.requests.items()
        ]

    def aggregate_fit(self, server_round: int, results: Any, failures: Any) -> Any:
        """The parameters of each result are the mean by now."""
        self.results = {proxy.node_id: result for proxy, result in results}
        return None, {}


def _facts(text: Any) -> dict[str, Any]:
    """What a client has written; nothing if that is no JSON object."""
    try:
        found = json.loads(str(text))
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without Flower's line for each stage."""
    log = logging.getLogger("flwr")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)
