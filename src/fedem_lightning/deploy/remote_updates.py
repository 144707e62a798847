"""The updates of a round, from clients that are processes of their own: one by one, or as their sum."""

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fedem_lightning.aggregation import Sent
from fedem_lightning.algorithms.base import FederatedAlgorithm
from fedem_lightning.data.federation import Federation
from fedem_lightning.deploy import replies
from fedem_lightning.deploy.forms import Refused
from fedem_lightning.deploy.wire import FEWEST, MOST, Parcel, SummingLink
from fedem_lightning.errors import NoUpdateLeft, require
from fedem_lightning.models.client_store import Owner
from fedem_lightning.rejections import EXCEPTION
from fedem_lightning.uploads import received_models

if TYPE_CHECKING:
    from fedem_lightning.deploy.remote import RemoteClients


def check_number_in_sum(n: int) -> None:
    """Raises UserError for a number of clients whose updates cannot be summed, or too few to hide one."""
    why = "of two clients, each learns the other's update" if n < FEWEST else "a larger sum could overflow"
    require(FEWEST <= n <= MOST, f"secure: a sum needs {FEWEST} to {MOST} clients in a round, there are {n}: {why}")


class RemoteUpdates:
    """The client updates of one round, from remote clients; their private state stays with them."""

    def __init__(self, clients: "RemoteClients", algorithm: FederatedAlgorithm, round_: int) -> None:
        self.clients, self.algorithm, self.round_ = clients, algorithm, round_
        self.error: Exception | None = None
        self._measured: list[dict[str, list[float]]] = []  # of each client whose reply counts

    def updates(self, federation: Federation, clients: Tensor) -> Iterator[tuple[Tensor, Sent | None]]:
        """The updates of the clients [C]; a client that fails or does not answer is rejected."""
        if isinstance(self.clients.link, SummingLink):
            yield from self._summed(self.clients.link, federation, clients)
            return
        for t, reply in self.clients.ask(self.algorithm, "train", clients, self.round_):
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
        received = received_models(algorithm, one)
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
        before = {name: rows[client].clone() for name, rows in algorithm.states.of(Owner.REPORTED).items()}
        try:
            for name, rows in replies.reported_of(reply, algorithm, client).items():
                algorithm.get_buffer(name)[client] = rows  # which models it received may follow from them
            expected = algorithm.unmoved(client, torch.tensor([n_train]))
            sent = replies.update_of(reply, algorithm, expected)
        except Refused:
            for name, rows in before.items():
                algorithm.get_buffer(name)[client] = rows
            raise
        self._note(int(client), facts)
        return sent

    def put_all_back(self) -> None:
        """Nothing: a client that repeats a round starts from its state before the round."""
