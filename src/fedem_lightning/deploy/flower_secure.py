"""Secure aggregation: the server learns the mean of the clients' updates, and no single one, by Flower's SecAgg+.

Bell, Bonawitz, Gascon, Lepoint, Raykova: "Secure Single-Server Aggregation with (Poly)Logarithmic Overhead", CCS 2020.
"""

import json
import re
from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.client.mod import secaggplus_mod
from flwr.clientapp.typing import ClientAppCallable
from flwr.common import Code, FitIns, FitRes, Parameters, Status, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS
from flwr.compat.common import recorddict_compat as compat
from flwr.server import LegacyContext
from flwr.server.strategy import FedAvg
from flwr.server.workflow import SecAggPlusWorkflow
from flwr.server.workflow.constant import MAIN_CONFIGS_RECORD, MAIN_PARAMS_RECORD
from flwr.server.workflow.constant import Key as WorkflowKey
from flwr.serverapp import Grid

from fedem_lightning.deploy.flower import FlowerLink
from fedem_lightning.deploy.wire import Parcel, Summed, with_prefix

LIMIT = 8.0
"""Largest magnitude of an entry of an update; what is larger becomes this."""

THRESHOLD = 2 / 3
"""The share of a round's clients that must answer until its end, so that the server can remove the masks."""

SAID = re.compile(r"<'(\{.*\})'>$", re.DOTALL)
"""Finds the client's own message in the text that Flower makes of its exception."""


class SecureLink(FlowerLink):
    """A link that also asks for sums of updates; the server cannot read single ones.

    Args:
        grid, deadline: see `FlowerLink`.
        context: that the ServerApp was given.

    """

    def __init__(self, grid: Grid, deadline: float, context: Context) -> None:
        super().__init__(grid, deadline)
        self.context = context

    def mean(self, requests: Mapping[int, Parcel], most: int) -> Summed:
        """Sends each node its request; returns the mean of the updates that they send, weighted by their weights.

        Args:
            requests: by node; a node replies with its update in tensors called "models.NAME", and its weight.
            most: no weight is above it.

        """
        there = set(self.connected())
        strategy = OneRound({node: parcel for node, parcel in requests.items() if node in there})
        state = RecordDict(
            {
                MAIN_CONFIGS_RECORD: ConfigRecord({WorkflowKey.CURRENT_ROUND: 1}),
                MAIN_PARAMS_RECORD: ArrayRecord(),
            }
        )
        known = self.context
        context = LegacyContext(
            Context(known.run_id, known.node_id, known.node_config, state, known.run_config), strategy=strategy
        )
        workflow = SecAggPlus(1.0, THRESHOLD, max_weight=float(most), clipping_range=LIMIT, timeout=self.deadline)
        grid = Listening(self.grid)
        workflow(grid, context)  # type: ignore[arg-type]
        found = strategy.results
        facts = {node: _facts(result.metrics.get("facts")) for node, result in found.items()}
        mean = parameters_to_ndarrays(next(iter(found.values())).parameters) if found else []
        return Summed(mean, sum(result.num_examples for result in found.values()), facts, grid.errors)


class SecAggPlus(SecAggPlusWorkflow):
    """Flower's workflow, which also goes on without clients that are gone before they have dealt their keys."""

    def share_keys_stage(self, grid: Grid, context: LegacyContext, state: Any) -> bool:
        """Flower would ask for the keys of clients that nobody has; no mask is shared with them."""
        goes_on = super().share_keys_stage(grid, context, state)
        state.sampled_node_ids = set(state.active_node_ids)
        both = {node: state.nid_to_neighbours[node] & state.active_node_ids for node in state.active_node_ids}
        state.nid_to_neighbours = both
        return goes_on


class Listening:
    """A grid that notes why nodes have failed."""

    def __init__(self, grid: Grid) -> None:
        self.grid, self.errors = grid, dict[int, dict[str, Any]]()

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Sends and receives."""
        replies = list(self.grid.send_and_receive(messages, timeout=timeout))
        for reply in replies:
            if reply.has_error() and (said := SAID.search(reply.error.reason or "")):
                self.errors[reply.metadata.src_node_id] = _facts(said[1])
        return replies


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


def mask(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Flower's SecAgg+ on the client's side, for messages that belong to it; others pass."""
    if RECORD_KEY_CONFIGS in message.content.config_records:
        return secaggplus_mod(message, context, call_next)
    return call_next(message, context)


def is_secure(message: Message) -> bool:
    """Whether a message asks for an update that is masked afterwards."""
    return "fitins.parameters" in message.content.array_records


def request_of(message: Message) -> Parcel:
    """The request in such a message."""
    return Parcel.from_bytes(compat.recorddict_to_fitins(message.content, keep_input=True).parameters.tensors[0])


def reply_record(reply: Parcel) -> RecordDict:
    """A reply whose tensors the caller masks; its weight and the facts are not masked.

    Raises:
        RuntimeError: the client has failed; Flower then goes on without it.

    """
    if "error" in reply.facts or "needs_start" in reply.facts:
        raise RuntimeError(json.dumps({"error": "the client has no state of this run", **reply.facts}))
    models = with_prefix(reply.tensors, "models.")
    arrays = ndarrays_to_parameters([models[name].double().numpy() for name in sorted(models)])
    weight = int(reply.tensors["weights"])
    facts: dict[str, Any] = {"facts": json.dumps(reply.facts)}
    return compat.fitres_to_recorddict(FitRes(Status(Code.OK, ""), arrays, weight, facts), keep_input=False)
