"""The server's side: an ordinary run whose client updates and scores come from remote clients."""

import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedem_lightning.aggregation import Models, Sent
from fedem_lightning.algorithms.base import FederatedAlgorithm
from fedem_lightning.algorithms.checkpoints import recipe_of
from fedem_lightning.cohort import cohort_size
from fedem_lightning.data.federation import Federation
from fedem_lightning.data.splits import SPLITS
from fedem_lightning.deploy import replies
from fedem_lightning.deploy.forms import Refused
from fedem_lightning.deploy.state import sent_for_scoring, sent_for_training, sent_with_question, state_of_client
from fedem_lightning.deploy.wire import Link, Parcel, SummingLink
from fedem_lightning.errors import NoUpdateLeft, require
from fedem_lightning.evaluation.scores import Scores
from fedem_lightning.protocol import Algorithm
from fedem_lightning.rejections import EXCEPTION, NO_ANSWER

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
        known: what the clients have said of themselves, by their nodes, in the order of the federation; a client that
            comes back at another address is known by its name.
        run: the name under which the clients keep their state.

    """

    def __init__(self, link: Link, known: Mapping[int, dict[str, Any]], run: str) -> None:
        self.link, self.nodes, self.known, self.run = link, list(known), list(known.values()), run
        self.started = {t for t, facts in enumerate(self.known) if facts["round"] is not None}
        self.places = {facts["name"]: t for t, facts in enumerate(self.known)}
        self.strangers: set[int] = set()  # nodes of no client of this run
        self.said: set[Any] = set()  # whose refusals were said, and of what kind

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

        """
        self.find_moved()
        waiting = clients.tolist()
        for again in (False, True):
            places, requests = self.requests(algorithm, kind, waiting, round_, more, again)
            waiting = []
            for node, reply in self.link.ask(requests) if requests else ():
                if reply is not None and reply.facts == replies.START and not again:
                    self.started.discard(places[node])
                    waiting.append(places[node])
                    continue
                yield places[node], reply

    def name(self, client: int) -> str:
        """A client's name, as messages have it."""
        return str(self.known[client]["name"])[:80]

    def say(self, client: int, what: str, refused: Refused) -> None:
        """Warns of a reply that does not count: once for each client and reason, and not if nothing has come."""
        if refused.reason != NO_ANSWER and (client, refused.reason) not in self.said:
            self.said.add((client, refused.reason))
            warnings.warn(f"client {self.name(client)}: {what} is left out ({refused.reason}: {refused})", stacklevel=2)

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
        """Notes the new addresses of clients that have come back; nobody takes the place of a client that is there."""
        there = set(self.link.connected())
        for node, found in descriptions(self.link, sorted(there - set(self.nodes) - self.strangers), self.run):
            if isinstance(found, Refused):
                self._turn_away(node, "a new client", str(found))
                continue
            t = self.places.get(found["name"])
            if t is None:
                self.strangers.add(node)
            elif self.nodes[t] in there:  # it may be gone, and the link does not know yet
                self._turn_away(node, f"another client {self.name(t)}", "the client of that name is still connected")
            elif any(found[key] != self.known[t][key] for key in ("form", "n_train")):
                self._turn_away(node, f"client {self.name(t)}", "it came back with other samples")
            else:
                self.nodes[t] = node

    def _turn_away(self, node: int, who: str, line: str) -> None:
        if line and (node, line) not in self.said:
            self.said.add((node, line))
            warnings.warn(f"{who} is refused: {line}", stacklevel=3)

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
        errors, answered = list[str](), False
        for t, reply in self.ask(algorithm, "answer", clients, algorithm.statistics.rounds, more):
            try:
                answer = replies.answer_of(reply, like, self.known[t]["n_train"])
            except Refused as refused:
                self.say(t, "its answer to the server's question", refused)
                errors += [f"client {self.name(t)}: {refused}"] * (refused.reason == EXCEPTION)
                continue
            answered = True
            yield torch.tensor([t]), answer
        if errors and not answered:
            raise NoUpdateLeft(errors[0])

    def scores(self, algorithm: FederatedAlgorithm, federation: Federation, clients: Tensor) -> Scores:
        """The scores that clients compute of themselves; NaN for one that gives none, which a warning names."""
        n, measures, columns = len(clients), federation.task.measures, algorithm.scored_columns
        missing = dict.fromkeys(clients.tolist(), NO_ANSWER)
        places = {t: i for i, t in enumerate(missing)}
        found = Scores(
            {split: {m: np.full(n, np.nan) for m in measures} for split in SPLITS},
            {name: np.full(n, np.nan) for name in columns},
            {split: np.full(n, np.nan) for split in SPLITS},
        )
        for t, reply in self.ask(algorithm, "score", clients, algorithm.statistics.rounds):
            try:
                facts = replies.scores_of(reply, measures, columns, self.known[t]["n_train"])
            except Refused as refused:
                missing[t] = f"{refused.reason}: {refused}" if str(refused) else refused.reason
                continue
            del missing[t]
            for split in SPLITS:
                found.sizes[split][places[t]] = facts["sizes"][split]
                for measure in measures:
                    found.measures[split][measure][places[t]] = facts["measures"][split][measure]
            for name, value in facts["columns"].items():
                found.columns[name][places[t]] = value
        self._say_missing(missing, n, algorithm.statistics.rounds)
        return found if missing else found._replace(sizes={s: n.astype(np.int64) for s, n in found.sizes.items()})

    def _say_missing(self, missing: dict[int, str], n_clients: int, round_: int) -> None:
        if not missing:
            return
        n, who = len(missing), ", ".join(f"{self.name(t)} ({why})" for t, why in list(missing.items())[:5])
        what = f"{n} of {n_clients} clients gave no scores and {'is' if n == 1 else 'are'} left out of the means"
        if n == n_clients:
            what = f"none of {n} clients gave scores, so there are no means"
        warnings.warn(f"evaluation after round {round_}: {what}: {who}{', ...' * (n > 5)}", stacklevel=2)


class RemoteUpdates:
    """The client updates of one round, from remote clients; their private state stays with them."""

    def __init__(self, clients: RemoteClients, algorithm: FederatedAlgorithm, round_: int) -> None:
        self.clients, self.algorithm, self.round_ = clients, algorithm, round_
        self.error: Exception | None = None
        self._measured: list[dict[str, list[float]]] = []  # of each client whose reply counts

    def updates(self, federation: Federation, clients: Tensor) -> Iterator[tuple[Tensor, Sent | None]]:
        """The updates of the clients [C]; a client that fails or does not answer is rejected."""
        if isinstance(self.clients.link, SummingLink):
            yield from self._summed(self.clients.link, federation, clients)
            return
        found = self.clients.ask(self.algorithm, "train", clients, self.round_)
        for t, reply in _in_order(found, clients.tolist()):
            try:
                update = self._taken(torch.tensor([t]), reply)
            except Refused as refused:
                self._reject(t, refused)
                continue
            self.clients.started.add(t)
            yield torch.tensor([t]), update
        self._add_measured()

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
            said = found.facts.get(node, found.errors.get(node))
            try:
                reply = None if said is None else Parcel(said, {})
                self._note(t, replies.facts_of(reply, replies.update_form(remote.known[t]["n_train"])))
                remote.started.add(t)
            except Refused as refused:
                if node in found.facts:  # its update is in the sum, and nobody can take it out
                    remote.say(t, f"what it has measured in round {self.round_ + 1}", refused)
                    continue
                remote.started.discard(t)  # it may have no state
                self._reject(t, refused)
        self._add_measured()
        if not found.facts:
            return
        one = torch.tensor([next(t for node, t in places.items() if node in found.facts)])
        received = algorithm.received_models(one)
        means = zip(sorted(received), found.mean, strict=True)
        models = {name: received[name] + torch.from_numpy(mean).to(received[name]) for name, mean in means}
        yield one, Sent(models, torch.tensor([found.weight]))

    def _reject(self, t: int, refused: Refused) -> None:
        """Leaves a client's update out of the round; if all fail, the run ends with the first one's error."""
        self.algorithm.round_metrics.reject(torch.tensor([t]), refused.reason, str(refused))
        self.clients.say(t, f"its update of round {self.round_ + 1}", refused)
        if refused.reason == EXCEPTION:
            self.error = self.error or NoUpdateLeft(f"client {self.clients.name(t)}: {refused}")

    def _note(self, t: int, facts: dict[str, Any]) -> None:
        """Notes what a client has measured, and has rejected itself."""
        self._measured.append(facts["metrics"])
        for reason, detail in facts["rejected"]:
            self.algorithm.round_metrics.reject(torch.tensor([t]), reason, detail)

    def _add_measured(self) -> None:
        """Adds to the round's means what most clients have measured: none of them alone brings a column."""
        names = Counter(name for metrics in self._measured for name in metrics)
        for name in (name for name, n in names.items() if 2 * n > len(self._measured)):
            for total, count in (metrics[name] for metrics in self._measured if name in metrics):
                self.algorithm.round_metrics.add_sum(name, total, int(count))

    def _taken(self, client: Tensor, reply: Parcel | None) -> Sent | None:
        """A client's update; what it reports and measures is noted. Refused: nothing of it is."""
        algorithm, n_train = self.algorithm, self.clients.known[int(client)]["n_train"]
        facts = replies.facts_of(reply, replies.update_form(n_train))
        assert reply is not None
        before = {name: algorithm.get_buffer(name)[client].clone() for name in algorithm.reported}
        try:
            for name, rows in replies.reported_of(reply, algorithm, client).items():
                algorithm.get_buffer(name)[client] = rows  # which models it received may follow from them
            expected = algorithm.expected_update(client, torch.tensor([n_train]))
            sent = replies.update_of(reply, algorithm, expected)
        except Refused:
            for name, rows in before.items():
                algorithm.get_buffer(name)[client] = rows
            raise
        self._note(int(client), facts)
        return sent

    def put_all_back(self) -> None:
        """Nothing: a client that is asked for a round again starts from its state before the round."""


def _in_order(found: Iterator[tuple[int, Any]], clients: list[int]) -> Iterator[tuple[int, Any]]:
    """Replies in the order of the clients, whoever is quicker: sums in another order differ in their last bits."""
    held = dict[int, Any]()
    for t in clients:
        while t not in held:
            client, reply = next(found, (t, None))
            held[client] = reply
        yield t, held.pop(t)


def descriptions(link: Link, nodes: list[int], run: str) -> Iterator[tuple[int, dict[str, Any] | Refused]]:
    """What nodes say of their clients, or why that does not count, by node."""
    request = Parcel({"kind": "describe", "run": run}, {})
    for node, reply in link.ask(dict.fromkeys(nodes, request)) if nodes else ():
        try:
            yield node, replies.description_of(reply)
        except Refused as refused:
            yield node, refused
