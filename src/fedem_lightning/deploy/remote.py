"""The server's side: an ordinary run whose client updates and scores come from remote clients."""

import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedem_lightning.aggregation import Models
from fedem_lightning.algorithms.base import FederatedAlgorithm
from fedem_lightning.algorithms.checkpoints import recipe_of
from fedem_lightning.cohort import cohort_size
from fedem_lightning.data.federation import Federation
from fedem_lightning.data.splits import SPLITS
from fedem_lightning.deploy import replies
from fedem_lightning.deploy.forms import Refused
from fedem_lightning.deploy.remote_updates import RemoteUpdates, check_number_in_sum
from fedem_lightning.deploy.wire import (
    Link,
    Parcel,
    SummingLink,
    sent_for_scoring,
    sent_for_training,
    sent_with_question,
    state_of_client,
)
from fedem_lightning.errors import NoUpdateLeft, require
from fedem_lightning.evaluation.scores import Scores, scored_columns
from fedem_lightning.models.client_store import Owner
from fedem_lightning.rejections import EXCEPTION, NO_ANSWER

NOTHING = Parcel({}, {})
SENT = {"train": sent_for_training, "score": sent_for_scoring, "answer": sent_with_question}
"""What a client receives with each kind of request."""


def check_sum_suffices(algorithm: FederatedAlgorithm) -> None:
    """Raises UserError if the method, or its options, need more of clients than the sum of their updates."""
    plain = algorithm.aggregation.is_plain and algorithm.compression is None and algorithm.faults is None
    needs = "the mean of uncompressed updates and nothing else of clients"
    require(
        plain and not algorithm.states.of(Owner.REPORTED),
        f"secure: expected {type(algorithm).__name__} to need {needs}",
    )
    check_number_in_sum(cohort_size(algorithm.participation, algorithm.n_clients))


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

    def check(self, algorithm: FederatedAlgorithm) -> None:
        """Raises UserError if the link is for sums, and the method, or its options, need more than a sum."""
        if isinstance(self.link, SummingLink):
            check_sum_suffices(algorithm)

    def begin(self, algorithm: FederatedAlgorithm, round_: int) -> RemoteUpdates:
        """The source of a round's updates."""
        return RemoteUpdates(self, algorithm, round_)

    def ask(
        self, algorithm: FederatedAlgorithm, kind: str, clients: Tensor, round_: int, more: Parcel = NOTHING
    ) -> Iterator[tuple[int, Any]]:
        """Asks clients; yields the index of each and its reply, or None, in the order of `clients`.

        A client without state gets a start. The order is theirs, whoever is quicker: sums in another order differ in
        their last bits.

        Args:
            algorithm: whose tensors are sent.
            kind: "train", "score" or "answer".
            clients: int64 [C].
            round_: number of the round, from 0.
            more: facts and tensors that each request has, too.

        """
        found, held = self._asked(algorithm, kind, clients.tolist(), round_, more), dict[int, Any]()
        for t in clients.tolist():
            while t not in held:
                client, reply = next(found, (t, None))
                held[client] = reply
            yield t, held.pop(t)

    def _asked(
        self, algorithm: FederatedAlgorithm, kind: str, waiting: list[int], round_: int, more: Parcel
    ) -> Iterator[tuple[int, Any]]:
        """See `ask`; in the order in which replies arrive."""
        self.find_moved()
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
        places, found = {self.nodes[t]: t for t in clients}, dict[int, Parcel]()
        for node, t in places.items():
            tensors = more.tensors | {f"sent.{name}": part for name, part in SENT[kind](algorithm, t).items()}
            if start or t not in self.started:
                tensors |= {f"start.{name}": part for name, part in state_of_client(algorithm, t).items()}
            found[node] = Parcel(facts | {"client": t}, tensors)
        return places, found

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

    def answers(
        self, algorithm: FederatedAlgorithm, question: str, clients: Tensor, given: Models, like: Models
    ) -> Iterator[tuple[Tensor, Models]]:
        """The clients' answers to a question, without those that fail, or that have another form."""
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
        n, measures, columns = len(clients), federation.task.measures, scored_columns(algorithm)
        missing = dict.fromkeys(clients.tolist(), NO_ANSWER)
        places = {t: i for i, t in enumerate(missing)}
        found = Scores(
            {split: {m: np.full(n, np.nan) for m in measures} for split in SPLITS},
            {name: np.full(n, np.nan) for name in columns},
            {split: np.full(n, np.nan) for split in SPLITS},
        )
        for t, reply in self.ask(algorithm, "score", clients, algorithm.statistics.rounds):
            try:
                facts = replies.scores_in(reply, measures, columns, self.known[t]["n_train"])
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
        if not missing:
            return found._replace(sizes={s: n.astype(np.int64) for s, n in found.sizes.items()})
        n_gone, who = len(missing), ", ".join(f"{self.name(t)} ({why})" for t, why in list(missing.items())[:5])
        what = f"{n_gone} of {n} clients gave no scores and {'is' if n_gone == 1 else 'are'} left out of the means"
        if n_gone == n:
            what = f"none of {n} clients gave scores, so there are no means"
        evaluation = f"evaluation after round {algorithm.statistics.rounds}"
        warnings.warn(f"{evaluation}: {what}: {who}{', ...' * (n_gone > 5)}", stacklevel=2)
        return found


def descriptions(link: Link, nodes: list[int], run: str) -> Iterator[tuple[int, dict[str, Any] | Refused]]:
    """What nodes say of their clients, or why that does not count, by node."""
    request = Parcel({"kind": "describe", "run": run}, {})
    for node, reply in link.ask(dict.fromkeys(nodes, request)) if nodes else ():
        try:
            yield node, replies.description_of(reply)
        except Refused as refused:
            yield node, refused
