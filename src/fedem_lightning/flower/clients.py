"""The server's side of a round: updates and scores that come from Flower's clients."""

import warnings
from collections import Counter
from collections.abc import Iterator, Mapping

import numpy as np
from flwr.app import Message, MessageType
from flwr.serverapp import Grid
from torch import Tensor

from fedem_lightning.aggregate import Update
from fedem_lightning.data.federation import Federation
from fedem_lightning.data.splits import SPLITS
from fedem_lightning.evaluate.scores import Scores, scored_columns
from fedem_lightning.flower.messages import (
    Described,
    Refused,
    content_of,
    request,
    sums_in,
    take_scores,
    tensors_in,
    update_in,
)
from fedem_lightning.module.algorithm import FederatedAlgorithm
from fedem_lightning.module.client_updates import rehearsed
from fedem_lightning.settings.errors import NoUpdateLeft, require
from fedem_lightning.state.history import EXCEPTION, NO_ANSWER


class FlowerClients:
    """The clients of a federation, by their indices; they answer within `deadline` seconds."""

    def __init__(self, grid: Grid, known: Mapping[int, Described], deadline: float) -> None:
        self.grid, self.nodes, self.known, self.deadline = grid, list(known), list(known.values()), deadline
        self.started = set[int]()  # clients that have a state from which they go on
        self._said = set[tuple[int, str]]()  # whose refusals were said, and why

    def check(self, algorithm: FederatedAlgorithm) -> None:
        """Raises UserError if the method, or an option, does not run under Flower."""
        single = f"with these options {type(algorithm).__name__} needs all clients in one process"
        require(not algorithm.one_process, f"algorithm: {single}, so it does not run under Flower")
        require(algorithm.compression is None, "compression: Flower's clients send whole updates, leave it out")

    def begin(self, algorithm: FederatedAlgorithm, round_: int) -> "FlowerUpdates":
        """The source of a round's updates."""
        return FlowerUpdates(self, algorithm, round_)

    def ask(
        self, algorithm: FederatedAlgorithm, data: Federation, kind: str, clients: list[int], round_: int
    ) -> dict[int, Message]:
        """The replies of the clients that answer in time, by client; `kind` is MessageType.TRAIN or EVALUATE."""
        there, training = set(self.grid.get_node_ids()), kind == MessageType.TRAIN
        places = {self.nodes[t]: t for t in clients if self.nodes[t] in there}
        contents = {n: request(algorithm, data, t, round_, training, t not in self.started) for n, t in places.items()}
        messages = [Message(content, node, kind, ttl=self.deadline) for node, content in contents.items()]
        replies = self.grid.send_and_receive(messages, timeout=self.deadline) if messages else ()
        return {places[node]: reply for reply in replies if (node := reply.metadata.src_node_id) in places}

    def failed(self, client: int, what: str, refused: Refused) -> None:
        """Notes that a client's reply does not count; it may have lost its state, and is sent a start the next time."""
        self.started.discard(client)
        if refused.reason != NO_ANSWER and (client, refused.reason) not in self._said:
            self._said.add((client, refused.reason))
            warnings.warn(f"client {self.known[client].name}: {what} is left out ({refused.line})", stacklevel=2)

    def scores(self, algorithm: FederatedAlgorithm, federation: Federation, clients: Tensor) -> Scores:
        """The scores that clients give themselves; NaN for one that gives none, which a warning names."""
        n, measures = len(clients), federation.task.measures
        result = Scores(
            {split: {measure: np.full(n, np.nan) for measure in measures} for split in SPLITS},
            {name: np.full(n, np.nan) for name in scored_columns(algorithm)},
            {split: np.full(n, np.nan) for split in SPLITS},
        )
        round_, missing = algorithm.statistics.rounds, list[str]()
        replies = self.ask(algorithm, federation, MessageType.EVALUATE, clients.tolist(), round_)
        for row, t in enumerate(clients.tolist()):
            try:
                take_scores(content_of(replies.get(t)), result, row, self.known[t].n_train)
            except Refused as refused:
                self.started.discard(t)
                missing.append(f"{self.known[t].name} ({refused.line})")
        if not missing:
            return result._replace(sizes={split: sizes.astype(np.int64) for split, sizes in result.sizes.items()})
        who = ", ".join(missing[:5]) + ", ..." * (len(missing) > 5)
        what = f"{len(missing)} of {n} clients gave no scores, which the means leave out: {who}"
        warnings.warn(f"evaluation after round {round_}: {what}", stacklevel=2)
        return result


class FlowerUpdates:
    """The client updates of one round; the clients' own state stays with them."""

    def __init__(self, clients: FlowerClients, algorithm: FederatedAlgorithm, round_: int) -> None:
        self.clients, self.algorithm, self.round_ = clients, algorithm, round_

    def updates(self, federation: Federation, clients: Tensor) -> Iterator[tuple[Tensor, Update | None]]:
        """The updates of the clients, int64 [C], in their order; one that fails or does not answer is left out."""
        replies = self.clients.ask(self.algorithm, federation, MessageType.TRAIN, clients.tolist(), self.round_)
        measured, raised = [], list[str]()
        for client in clients.split(1):
            t = int(client)
            try:
                update, sums = self._taken(federation, client, replies.get(t))
            except Refused as refused:
                self.algorithm.round_metrics.reject(client, refused.reason, str(refused))
                self.clients.failed(t, f"its update of round {self.round_ + 1}", refused)
                if refused.reason == EXCEPTION:
                    raised.append(f"client {self.clients.known[t].name}: {refused}")
                continue
            self.clients.started.add(t)
            measured.append(sums)
            yield client, update
        if raised and len(raised) == len(clients):
            raise NoUpdateLeft(raised[0])
        self._add(measured)

    def _taken(
        self, data: Federation, client: Tensor, reply: Message | None
    ) -> tuple[Update | None, dict[str, tuple[float, int]]]:
        """A client's update and the sums of its metrics; what it reports is noted. Refused: nothing of it is."""
        algorithm, n_train = self.algorithm, self.clients.known[int(client)].n_train
        content, put_back = content_of(reply), algorithm.states.remember(client, stores=False)
        rows = {name: tensor[client] for name, tensor in algorithm.states.of("both").items()}
        try:
            for name, reported in tensors_in(content, "reported", rows).items():
                if not reported.is_floating_point() and not 0 <= int(reported) < len(algorithm.components):
                    raise Refused(f"{name}: there is no such component")
                algorithm.get_buffer(name)[client] = reported  # which models it has received may follow from them
            sums, form = sums_in(content, n_train), rehearsed(algorithm, data, client, self.round_)
            return None if form is None else update_in(content, form, n_train), sums
        except Refused:
            put_back()
            raise

    def _add(self, measured: list[dict[str, tuple[float, int]]]) -> None:
        """Adds to the round's means what most clients have measured: none of them alone brings a column."""
        names = Counter(name for sums in measured for name in sums)
        for name in (name for name, n in names.items() if 2 * n > len(measured)):
            for total, count in (sums[name] for sums in measured if name in sums):
                self.algorithm.round_metrics.add_sum(name, total, count)
