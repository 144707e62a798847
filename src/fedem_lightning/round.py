"""A communication round: cohort -> blocks -> client updates -> aggregation -> server step -> what it cost.

`FederatedAlgorithm.training_step` runs this once an epoch: an epoch is a round.
"""

import time
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedem_lightning.aggregation import Means, WeightedMean, check_sent
from fedem_lightning.data.federation import Federation
from fedem_lightning.errors import UserError, require
from fedem_lightning.frozen import with_frozen
from fedem_lightning.network import Clocks, Traffic
from fedem_lightning.processes import Processes
from fedem_lightning.randomness import Purpose, generator

if TYPE_CHECKING:
    from fedem_lightning.algorithms.base import FederatedAlgorithm


@dataclass
class Statistics:
    """What the rounds cost so far; saved in checkpoints, so that a resumed run counts on."""

    round_seconds: list[float] = field(default_factory=list)  # of each round, evaluation and logging apart
    training_seconds: float = 0.0  # all rounds and their evaluation
    up_bytes: int = 0  # from clients to the server
    down_bytes: int = 0  # from the server to clients
    air_bytes: int = 0  # put on the air by all: what several clients receive at once counts once
    times: dict[str, float] = field(default_factory=dict)  # simulated, of each network, in its unit
    stragglers: int = 0  # clients left out of a round because they missed its deadline
    rejected_updates: int = 0  # client updates left out because they were not finite
    special_rounds: int = 0  # rounds of their own, see `count_special_round`
    planned_rounds: int = 0  # of the whole run; the learning-rate schedule needs it
    seconds_before: float = 0.0  # from the start of a run to the checkpoint it was resumed from, all in all

    def __post_init__(self) -> None:
        self._begun = self._mark = time.perf_counter()

    def begin(self, start: float) -> None:
        """Says when this process began with the run, by `time.perf_counter`."""
        self._begun = start

    def total_seconds(self) -> float:
        """Since the start of the run, without what lay between a checkpoint and the resume."""
        return self.seconds_before + time.perf_counter() - self._begun

    def count_on(self, saved: dict[str, Any]) -> "Statistics":
        """Those of a checkpoint, in a process that began when this one did."""
        statistics = Statistics(**saved)
        statistics.begin(self._begun)
        return statistics

    def plan(self, rounds: int) -> None:
        """Says how many rounds the run has, and starts the clock."""
        self.planned_rounds = rounds
        self._mark = time.perf_counter()

    def tick(self) -> None:
        """Adds the time since the last call to `training_seconds`."""
        now = time.perf_counter()
        self.training_seconds += now - self._mark
        self._mark = now

    def count(self, traffic: Traffic, times: dict[str, float]) -> None:
        """Adds what a round sent, and how long it took in each network."""
        self.up_bytes += round(traffic.up * traffic.model_bytes)
        self.down_bytes += round(traffic.down * traffic.model_bytes)
        self.air_bytes += round(traffic.on_air * traffic.model_bytes)
        self.times |= {name: self.times.get(name, 0.0) + time for name, time in times.items()}

    def totals(self) -> dict[str, float]:
        """Columns of metrics.csv: everything so far."""
        return {
            "up_megabytes": self.up_bytes / 1e6,
            "down_megabytes": self.down_bytes / 1e6,
            "air_megabytes": self.air_bytes / 1e6,
            "stragglers": self.stragglers,
            "rejected_updates": self.rejected_updates,
            **{f"time_{name}": time for name, time in self.times.items()},
        }

    def state_dict(self) -> dict[str, Any]:
        """Plain numbers, lists and dictionaries."""
        return asdict(self) | {"seconds_before": self.total_seconds()}


class Round(NamedTuple):
    """What the server knows of a round at its end."""

    number: int  # from 0
    federation: Federation
    cohort: Tensor  # the clients that trained, int64, ascending


def sample_cohort(
    clients: Tensor, participation: float | int, seed: int, round_: int, odds: Tensor | None = None
) -> Tensor:
    """The clients of a round, drawn without replacement: a function of (seed, round).

    Args:
        clients: ids of all that take part in training, int64 [T].
        participation: up to 1: a fraction of them (at least one client); from 2 on: a number of them.
        seed, round_: of the draw.
        odds: of each client to be drawn, [T], any scale; None: all alike.

    Returns:
        int64, ascending.

    """
    number = cohort_size(participation, len(clients))
    return draw_clients(clients, number, generator(seed, Purpose.COHORT, round_), odds)


def cohort_size(participation: float | int, n_clients: int) -> int:
    """Clients of a round; UserError if there are not as many."""
    number = share_of(participation, n_clients)
    require(number <= n_clients, f"algorithm.participation: {number} clients a round, but only {n_clients} train")
    return number


def share_of(participation: float | int, n_clients: int) -> int:
    """Up to 1 a fraction of the clients (at least one of them), from 2 on their number."""
    return max(1, round(participation * n_clients)) if participation <= 1 else int(participation)


def draw_clients(clients: Tensor, number: int, rng: np.random.Generator, odds: Tensor | None = None) -> Tensor:
    """`number` of the clients without replacement, ascending."""
    if number >= len(clients):
        return clients
    p = None if odds is None else odds.double().cpu().numpy() / float(odds.sum())
    drawn = rng.choice(len(clients), size=number, replace=False, p=p)
    return clients[torch.from_numpy(drawn).to(clients.device)].sort().values


def run_round(algorithm: "FederatedAlgorithm", federation: Federation) -> dict[str, float]:
    """One round of any algorithm; returns what the round has to log."""
    start = time.perf_counter()
    round_, statistics = algorithm.current_epoch, algorithm.statistics
    if round_ == 0:
        algorithm.initialize(federation)
    drawn = algorithm.cohort(federation, round_)
    clocks = Clocks(algorithm.networks, drawn, algorithm.local_work(federation, drawn, round_), algorithm.seed, round_)
    cohort = drawn[clocks.in_time.to(drawn.device)]
    means = train_clients(algorithm, federation, cohort, round_)
    algorithm.server_update(means, Round(round_, federation, cohort))
    traffic = with_frozen(algorithm, drawn, traffic_of(algorithm, drawn, cohort))
    statistics.count(traffic, clocks.times(traffic))
    statistics.stragglers += len(drawn) - len(cohort)
    statistics.round_seconds.append(time.perf_counter() - start)
    return {
        "round": round_ + 1,
        "lr": algorithm.lr_at(round_),
        "cohort": len(cohort),
        "seconds": statistics.round_seconds[-1],
        **statistics.totals(),
        **algorithm.round_metrics.means(),
    }


def train_clients(algorithm: "FederatedAlgorithm", federation: Federation, cohort: Tensor, round_: int) -> Means | None:
    """The cohort's updates, dealt to the Trainer's processes, and the mean of what they send (None: nothing).

    Raises:
        UserError: no client's update was finite.

    """
    processes = Processes.of(algorithm.trainer)
    shares = processes.deal(cohort, federation.splits["train"].counts(cohort))
    mine = shares[processes.rank]
    algorithm.observer.begin("clients", len(mine))
    mean, algorithm.round_metrics = WeightedMean(algorithm.n_groups), RoundMetrics()
    for block in algorithm.blocks(federation, mine):
        sent = algorithm.client_update(block, round_)
        check_sent(algorithm, sent)
        if sent is not None:
            mean.add(sent)
    mean.reduce(processes)
    algorithm.round_metrics.reduce(processes, algorithm.device)
    processes.exchange_rows(algorithm.client_state(), shares)
    rejected = mean.rejected + algorithm.round_metrics.rejected
    algorithm.statistics.rejected_updates += rejected
    if rejected == len(cohort):
        raise UserError(
            f"training diverged: in round {round_ + 1} no client's update was finite; "
            f"lower algorithm.client_optimizer.lr (now {algorithm.client_optimizer.lr:g})"
        )
    return mean.compute()


def count_special_round(algorithm: "FederatedAlgorithm", federation: Federation, down: float, up: float) -> None:
    """Counts a round in which all clients that train take part at once, whatever the cohort and the deadline.

    Everybody hears the same `down` models, computes the gradients of its training samples, and sends `up` models.
    """
    clients, statistics = federation.clients(), algorithm.statistics
    statistics.special_rounds += 1
    work = federation.splits["train"].counts(clients)
    clocks = Clocks(algorithm.networks, clients, work, algorithm.seed, -statistics.special_rounds, limited=False)
    traffic = Traffic(
        up=up * len(clients),
        down=down * len(clients),
        uploads=up,
        streams=down,
        on_air=up * len(clients) + down,
        heard=None,
        model_bytes=algorithm.message_bytes,
    )
    traffic = with_frozen(algorithm, clients, traffic)
    statistics.count(traffic, clocks.times(traffic))


def traffic_of(algorithm: "FederatedAlgorithm", drawn: Tensor, cohort: Tensor) -> Traffic:
    """What a round has sent; who missed the deadline sends nothing, but hears the server.

    Args:
        algorithm: after the round; what it says of its messages is that of the round.
        drawn, cohort: clients drawn, and those of them that trained, int64.

    """
    (down, up), uploads = algorithm.messages, algorithm.uploads
    received = down * len(drawn if algorithm.streams else cohort)
    streams = min(algorithm.streams, received)  # a server sends nothing that nobody hears
    heard = algorithm.stream_of(drawn)
    return Traffic(
        up=up * len(cohort),
        down=received,
        uploads=uploads,
        streams=streams,
        on_air=uploads * len(cohort) + streams,
        heard=None if heard is None else heard.cpu(),
        model_bytes=algorithm.message_bytes,
    )


class RoundObserver:
    """Hears how far the work is; does nothing by itself."""

    def begin(self, stage: str, total: int) -> None:
        """A stage begins: "clients" train, "scoring" of samples, ...; there are `total` of them in this process."""

    def advance(self, amount: float) -> None:
        """So much more of the stage is done; a part of a client counts as that part."""


class RoundMetrics:
    """Means over the samples of a round, gathered block by block, and how many updates clients rejected themselves."""

    def __init__(self) -> None:
        self.rejected = 0
        self._sums: dict[str, float] = {}
        self._counts: dict[str, int] = {}

    def add(self, name: str, values: Tensor) -> None:
        """Adds values of any shape to the mean called `name`."""
        self._sums[name] = self._sums.get(name, 0.0) + float(values.double().sum())
        self._counts[name] = self._counts.get(name, 0) + values.numel()

    def reduce(self, processes: Processes, device: torch.device) -> None:
        """Adds what the other processes have gathered, under the same names."""
        gathered = [self.rejected, *self._sums.values(), *self._counts.values()]
        total = torch.tensor(gathered, dtype=torch.float64, device=device)
        processes.sum([total])
        rejected, *numbers = total.tolist()
        self.rejected = int(rejected)
        self._sums = dict(zip(self._sums, numbers, strict=False))
        self._counts = {name: int(n) for name, n in zip(self._counts, numbers[len(self._sums) :], strict=True)}

    def means(self) -> dict[str, float]:
        """The means, by name."""
        return {name: total / self._counts[name] for name, total in self._sums.items()}
