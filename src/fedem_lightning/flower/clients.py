"""The server's side of a round: updates and scores that come from Flower's clients."""

import warnings
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

    def check(self, algorithm: FederatedAlgorithm) -> None:
        """Raises UserError if the method, or an option, does not run under Flower."""
        single = f"with these options {type(algorithm).__name__} needs all clients in one process"
        require(not algorithm.one_process, f"algorithm: {single}, so it does not run under Flower")
        require(algorithm.compression is None, "compression: Flower's clients send whole updates, leave it out")

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

    def updates(
        self, algorithm: FederatedAlgorithm, federation: Federation, clients: Tensor, round_: int
    ) -> Iterator[tuple[Tensor, Update | None]]:
        """The updates of a round's clients, int64 [C], in their order; one that fails or does not answer is left out.

        A client whose reply does not count may have lost its state, and is sent a start the next time.
        """
        replies, raised = self.ask(algorithm, federation, MessageType.TRAIN, clients.tolist(), round_), list[str]()
        for client in clients.split(1):
            t = int(client)
            try:
                update = self._taken(algorithm, federation, client, replies.get(t), round_)
            except Refused as refused:
                algorithm.round_metrics.reject(client, refused.reason, str(refused))
                self.started.discard(t)
                if refused.reason != NO_ANSWER:
                    what = f"client {self.known[t].name}: its update of round {round_ + 1} is left out ({refused.line})"
                    warnings.warn(what, stacklevel=2)
                if refused.reason == EXCEPTION:
                    raised.append(f"client {self.known[t].name}: {refused}")
                continue
            self.started.add(t)
            yield client, update
        if raised and len(raised) == len(clients):
            raise NoUpdateLeft(raised[0])

    def _taken(
        self, algorithm: FederatedAlgorithm, data: Federation, client: Tensor, reply: Message | None, round_: int
    ) -> Update | None:
        """A client's update; its metrics and what it reports are noted. Refused: nothing of it is."""
        n_train = self.known[int(client)].n_train
        content, put_back = content_of(reply), algorithm.states.remember(client, stores=False)
        rows = {name: tensor[client] for name, tensor in algorithm.states.of("both").items()}
        try:
            for name, reported in tensors_in(content, "reported", rows).items():
                if not reported.is_floating_point() and not 0 <= int(reported) < len(algorithm.components):
                    raise Refused(f"{name}: there is no such component")
                algorithm.get_buffer(name)[client] = reported  # which models it has received may follow from them
            sums, form = sums_in(content, n_train), rehearsed(algorithm, data, client, round_)
            update = None if form is None else update_in(content, form, n_train)
        except Refused:
            put_back()
            raise
        for name, (total, count) in sums.items():
            algorithm.round_metrics.add_sum(name, total, count)
        return update
