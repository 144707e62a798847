"""The server's side: an ordinary run whose client updates and scores come from remote clients."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedem_lightning.aggregation import Models, Sent
from fedem_lightning.algorithms.base import FederatedAlgorithm
from fedem_lightning.algorithms.checkpoints import recipe_of
from fedem_lightning.algorithms.growth import Remembered
from fedem_lightning.cohort import cohort_size
from fedem_lightning.data.federation import Federation
from fedem_lightning.data.splits import SPLITS
from fedem_lightning.deploy.state import sent_for_scoring, sent_for_training, sent_with_question, state_of_client
from fedem_lightning.deploy.wire import Link, Parcel, SummingLink, same_form, unpacked, with_prefix
from fedem_lightning.errors import UserError, require
from fedem_lightning.evaluation.scores import Scores
from fedem_lightning.protocol import Algorithm
from fedem_lightning.rejections import EXCEPTION, NO_ANSWER, NOT_FINITE, first_line
from fedem_lightning.uploads import decompressed

NOTHING = Parcel({}, {})
FEWEST, MOST = 3, 1023
"""Numbers of clients whose updates are summed: of two, each learns the other's; 2^32 / 2^22 of them could overflow."""

SENT = {"train": sent_for_training, "score": sent_for_scoring, "answer": sent_with_question}
"""What a client receives with each kind of request."""


def check_sum_suffices(algorithm: Algorithm) -> None:
    """Raises UserError if the method, or its options, need more of clients than the sum of their updates."""
    plain = algorithm.aggregation.is_plain and algorithm.compression is None and algorithm.faults is None
    needs = "the mean of uncompressed updates and nothing else of clients"
    require(plain and not algorithm.reported, f"secure: expected {type(algorithm).__name__} to need {needs}")
    check_number_in_sum(cohort_size(algorithm.participation, algorithm.n_clients))


def check_number_in_sum(n: int) -> None:
    """Raises UserError for a number of clients whose updates cannot be summed, or too few to hide one."""
    why = "of two clients, each learns the other's update" if n < FEWEST else "a larger sum could overflow"
    require(FEWEST <= n <= MOST, f"secure: a sum needs {FEWEST} to {MOST} clients in a round, there are {n}: {why}")


class RemoteClients:
    """The clients behind a link, by their indices in the federation.

    Args:
        link: to their nodes.
        nodes: address of each client's node, [T].
        names: their names, [T]; a client that comes back at another address is known by its name.
        run: the name under which the clients keep their state.
        started: the clients that have state of this run.

    """

    def __init__(self, link: Link, nodes: list[int], names: Sequence[str], run: str, started: set[int]) -> None:
        self.link, self.nodes, self.run, self.started = link, nodes, run, started
        self.places = {name: t for t, name in enumerate(names)}
        self.strangers: set[int] = set()  # nodes of no client of this run

    def check(self, algorithm: Algorithm) -> None:
        """Raises UserError if the link is for sums, and the method, or its options, need more than a sum."""
        if isinstance(self.link, SummingLink):
            check_sum_suffices(algorithm)

    def begin(self, algorithm: FederatedAlgorithm, round_: int) -> "RemoteUpdates":
        """The source of a round's updates."""
        return RemoteUpdates(self, algorithm, round_)

    def ask(
        self, algorithm: FederatedAlgorithm, kind: str, clients: Tensor, round_: int, more: Parcel = NOTHING
    ) -> Iterator[tuple[int, Any]]:
        """Asks clients; yields the index of each and its reply, or None. A client without state gets a start.

        Args:
            algorithm: whose tensors are sent.
            kind: "train", "score" or "answer".
            clients: int64 [C].
            round_: number of the round, from 0.
            more: facts and tensors that each request has, too.

        Raises:
            UserError: a client says that its user has made a mistake.

        """
        self.find_moved()
        waiting = clients.tolist()
        for again in (False, True):
            places, requests = self.requests(algorithm, kind, waiting, round_, more, again)
            waiting = []
            for node, reply in self.link.ask(requests) if requests else ():
                if reply is not None and reply.facts.get("needs_start") and not again:
                    self.started.discard(places[node])
                    waiting.append(places[node])
                    continue
                if reply is not None:
                    self.stop_for_users(places[node], reply.facts)
                yield places[node], reply

    def stop_for_users(self, client: int, facts: dict[str, Any]) -> None:
        """Raises UserError if a client says that its user has made a mistake."""
        if facts.get("is_users"):
            raise UserError(f"client {list(self.places)[client]}: {facts['error']}")

    def requests(
        self,
        algorithm: FederatedAlgorithm,
        kind: str,
        clients: list[int],
        round_: int,
        more: Parcel = NOTHING,
        start: bool = False,
    ) -> tuple[dict[int, int], dict[int, Parcel]]:
        """The clients by their nodes, and the requests to these; see `ask`. With `start` all get a start."""
        facts = {
            "kind": kind,
            "run": self.run,
            "round": round_,
            "planned_rounds": algorithm.statistics.planned_rounds,
            "recipe": recipe_of(algorithm),
            **more.facts,
        }
        places = {self.nodes[t]: t for t in clients}
        return places, {
            node: self._request(algorithm, facts | {"client": t}, more.tensors, start) for node, t in places.items()
        }

    def find_moved(self) -> None:
        """Notes the new addresses of clients that have come back."""
        new = [node for node in self.link.connected() if node not in self.nodes and node not in self.strangers]
        for node, facts in descriptions(self.link, new, self.run) if new else ():
            t = self.places.get(facts["name"])
            if t is None:
                self.strangers.add(node)
            else:
                self.nodes[t] = node

    def _request(self, algorithm: FederatedAlgorithm, facts: dict[str, Any], more: Models, start: bool) -> Parcel:
        client = facts["client"]
        tensors = more | {f"sent.{name}": tensor for name, tensor in SENT[facts["kind"]](algorithm, client).items()}
        if start or client not in self.started:
            tensors |= {f"start.{name}": tensor for name, tensor in state_of_client(algorithm, client).items()}
        return Parcel(facts, tensors)

    def answers(
        self, algorithm: FederatedAlgorithm, question: str, clients: Tensor, given: Models, like: Models
    ) -> Iterator[tuple[Tensor, Models]]:
        """The clients' answers to a question, as they arrive; without those that fail, or that have another form."""
        kind = type(algorithm).__name__
        require(not isinstance(self.link, SummingLink), f"secure: {kind} asks clients for more than their updates")
        more = Parcel({"question": question}, {f"given.{name}": tensor for name, tensor in given.items()})
        for t, reply in self.ask(algorithm, "answer", clients, algorithm.statistics.rounds, more):
            if reply is not None and same_form(found := with_prefix(reply.tensors, "answer."), like):
                yield torch.tensor([t]), found

    def scores(self, algorithm: FederatedAlgorithm, federation: Federation, clients: Tensor) -> Scores:
        """The scores that clients compute of themselves; NaN for one that does not answer."""
        place, n = {t: i for i, t in enumerate(clients.tolist())}, len(clients)
        measures = {split: {m: np.full(n, np.nan) for m in federation.task.measures} for split in SPLITS}
        columns = {name: np.full(n, np.nan) for name in algorithm.scored_columns}
        for client, reply in self.ask(algorithm, "score", clients, algorithm.statistics.rounds):
            if reply is None or "error" in reply.facts:
                continue
            for split, found in reply.facts["measures"].items():
                for measure, value in found.items():
                    measures[split][measure][place[client]] = value
            for name, value in reply.facts["columns"].items():
                columns[name][place[client]] = value
            for split, size in reply.facts["sizes"].items():
                known = federation.splits[split]
                assert isinstance(known, Remembered)  # see `_without_samples`
                known.n_known[client] = size
        return Scores(measures, columns)


class RemoteUpdates:
    """The client updates of one round, from remote clients; their private state stays with them."""

    def __init__(self, clients: RemoteClients, algorithm: FederatedAlgorithm, round_: int) -> None:
        self.clients, self.algorithm, self.round_ = clients, algorithm, round_
        self.error: Exception | None = None

    def updates(self, federation: Federation, clients: Tensor) -> Iterator[tuple[Tensor, Sent | None]]:
        """The updates of the clients [C]; a client that fails or does not answer is rejected."""
        if isinstance(self.clients.link, SummingLink):
            yield from self._summed(self.clients.link, federation, clients)
            return
        metrics = self.algorithm.round_metrics
        replies = self.clients.ask(self.algorithm, "train", clients, self.round_)
        for t, reply in _in_order(replies, clients.tolist()):
            client = torch.tensor([t])
            if reply is None:
                metrics.reject(client, NO_ANSWER)
                continue
            try:
                update = self._taken(client, reply)
            except (RuntimeError, LookupError, TypeError, ValueError) as error:  # a reply may hold anything
                metrics.reject(client, EXCEPTION, first_line(error))
                self.error = self.error or error
                continue
            self.clients.started.add(t)
            yield client, update

    def _summed(
        self, link: SummingLink, federation: Federation, clients: Tensor
    ) -> Iterator[tuple[Tensor, Sent | None]]:
        """The mean of the clients' updates, as the update of one of them with the weight of all."""
        algorithm, remote, n = self.algorithm, self.clients, len(clients)
        check_number_in_sum(n)
        remote.find_moved()
        more, start = Parcel({"summed": True}, {}), self.round_ == 0  # no client can say that it needs a start
        places, requests = remote.requests(algorithm, "train", clients.tolist(), self.round_, more, start)
        most = int(federation.splits["train"].counts(clients).max())
        found = link.mean(requests, max(1, most))
        for node, t in places.items():
            if node in found.facts:
                self._note(found.facts[node])
                remote.started.add(t)
            else:
                remote.started.discard(t)  # it may have no state
                self._failed(t, found.errors.get(node))
        if not found.facts:
            return
        one = torch.tensor([next(t for node, t in places.items() if node in found.facts)])
        received = algorithm.received_models(one)
        means = zip(sorted(received), found.mean, strict=True)
        models = {name: received[name] + torch.from_numpy(mean).to(received[name]) for name, mean in means}
        yield one, Sent(models, torch.tensor([found.weight]))

    def _failed(self, t: int, error: dict[str, Any] | None) -> None:
        """Rejects a client that sent no update to a sum."""
        if error is None:
            self.algorithm.round_metrics.reject(torch.tensor([t]), NO_ANSWER)
            return
        self.clients.stop_for_users(t, error)
        reason = NOT_FINITE if error.get("not_finite") else EXCEPTION
        self.algorithm.round_metrics.reject(torch.tensor([t]), reason, str(error.get("error", "")))

    def _note(self, facts: dict[str, Any]) -> None:
        """Adds what a client has measured."""
        for name, (total, count) in facts.get("metrics", {}).items():
            self.algorithm.round_metrics.add_sum(name, float(total), int(count))

    def _taken(self, client: Tensor, reply: Parcel) -> Sent | None:
        """A client's update; what it reports and measures is noted."""
        algorithm, facts = self.algorithm, reply.facts
        if "error" in facts:
            raise RuntimeError(facts["error"])
        for name, rows in with_prefix(reply.tensors, "reported.").items():
            algorithm.get_buffer(name)[client] = rows  # which models it received may follow from them
        received = algorithm.received_models(client) if algorithm.sends_updates else {}
        sent = unpacked(reply.tensors, int(facts["n_groups"]), received)
        if sent is not None and algorithm.compression is not None:
            models = decompressed(algorithm, with_prefix(reply.tensors, "message."), received)
            sent = sent._replace(models=models)
        if sent is not None and algorithm.sends_updates:
            fits = same_form(sent.models, received) and bool((sent.weights >= 0).all())
            if not fits:
                raise ValueError("the update has another form than the models that it answers")
        for reason, detail in facts["rejected"]:
            algorithm.round_metrics.reject(client, str(reason), str(detail))
        self._note(facts)
        return sent

    def put_all_back(self) -> None:
        """Nothing: a client that is asked for a round again starts from its state before the round."""


def _in_order(replies: Iterator[tuple[int, Any]], clients: list[int]) -> Iterator[tuple[int, Any]]:
    """Replies in the order of the clients, whoever is quicker: sums in another order differ in their last bits."""
    held = dict[int, Any]()
    for t in clients:
        while t not in held:
            client, reply = next(replies)
            held[client] = reply
        yield t, held.pop(t)


def descriptions(link: Link, nodes: list[int], run: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """What nodes say of their clients, by node; those that do not answer are left out."""
    requests = {node: Parcel({"kind": "describe", "run": run}, {}) for node in nodes}
    for node, reply in link.ask(requests):
        if reply is not None:
            require("error" not in reply.facts, f"a client: {reply.facts.get('error')}")
            yield node, reply.facts
