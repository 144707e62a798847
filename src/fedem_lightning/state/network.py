"""What a round sends, and how long it takes in simulated networks; a deadline leaves slow clients out of a round.

docs/communication.md lists what each method sends.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Annotated, NamedTuple

import torch
from annotated_types import Gt
from pydantic import AllowInfNan
from torch import Tensor

from fedem_lightning.data.randomness import Purpose, fold
from fedem_lightning.settings.errors import require
from fedem_lightning.settings.ranges import NotNegative, Positive
from fedem_lightning.settings.recipes import Recorded


class Transmission(NamedTuple):
    """Numbers of models that one client and the server send in a round.

    With a server each sends a model once, to one receiver or as a broadcast: `uploads` is `up`, and the server
    broadcasts `streams` different models. On a graph a client transmits fewer models than its neighbours receive.
    """

    down: float  # models that a client receives, on average over the clients
    up: float  # models that a client sends, counted once for each receiver, on average
    uploads: float | None = None  # transmissions of a client, a broadcast counts once; None: `up`
    streams: float | None = None  # different models that the server broadcasts; None: `down`

    def traffic(self, n_drawn: int, n_trained: int, model_bytes: int) -> "Traffic":
        """The traffic of a round in which `n_drawn` clients were drawn and `n_trained` of them met the deadline.

        A client that missed the deadline uploads nothing but receives the broadcast.
        """
        uploads = self.up if self.uploads is None else self.uploads
        streams = self.down if self.streams is None else self.streams
        received = self.down * (n_drawn if streams else n_trained)
        streams = min(streams, received)  # a server sends no stream without a receiver
        return Traffic(self.up * n_trained, received, uploads, streams, uploads * n_trained + streams, model_bytes)


class Traffic(NamedTuple):
    """Numbers of models sent in a round; C clients were drawn, and those of the cohort trained."""

    up: float  # by all clients together, to the server or to one another
    down: float  # received by all clients together
    uploads: float  # transmissions of each client of the cohort
    streams: float  # transmissions of the server: different models, a broadcast counts once
    on_air: float  # transmissions of all clients and the server
    model_bytes: int


class Network(Recorded, ABC):
    """A model of computing and transmission times, in one unit, as functions of (seed, round, client).

    Args:
        deadline: clients whose computing takes longer are left out of the round; None: the server waits for all.

    """

    def __init__(self, deadline: Positive | None = None) -> None:
        self.deadline = deadline

    @property
    def private_ok(self) -> bool:
        """Whether clients learn nothing of others' data by it; by a deadline, whether any other client met it."""
        return self.deadline is None

    @abstractmethod
    def compute_times(self, clients: Tensor, work: Tensor, seed: int, round_: int) -> Tensor:
        """Computing time of each of the clients drawn for the round (int64 [C]), float64 [C].

        `work` is the number of single-sample gradients that each computes, [C]; 0 takes no time. Rounds are counted
        from 0; special ones are negative.
        """

    @abstractmethod
    def upload_times(self, clients: Tensor, traffic: Traffic, seed: int) -> Tensor:
        """Time until each of the sending clients [C] has sent its models, float64 [C]."""

    @abstractmethod
    def download_time(self, clients: Tensor, traffic: Traffic, seed: int) -> float:
        """Time that the server needs to send to the clients [C], one stream after the other."""


def in_time(networks: Mapping[str, Network], clients: Tensor, work: Tensor, seed: int, round_: int) -> Tensor:
    """Which of the clients drawn for a round [C] meet its deadline, bool [C], on the CPU, before they train.

    Their `work` [C] is that of one local training. The deadline of at most one network decides for all; if nobody meets
    it, the fastest client does.
    """
    met = torch.ones(len(clients), dtype=torch.bool)
    for network in networks.values() if len(clients) else ():
        if network.deadline is not None:
            times = network.compute_times(clients.cpu(), work.cpu(), seed, round_)
            met &= times <= network.deadline
            met[times.argmin()] |= not met.any()
    return met


def times_of_round(
    networks: Mapping[str, Network],
    clients: Tensor,
    work: Tensor,
    kept: Tensor,
    traffic: Traffic,
    seed: int,
    round_: int,
) -> dict[str, float]:
    """Simulated times of a round of clients [C] with this `work` [C], of whom those in time are `kept`, by network.

    The slowest one computes and sends, then the server sends. If some miss the deadline, nobody sends before it.
    """
    clients, work, times = clients.cpu(), work.cpu(), dict.fromkeys(networks, 0.0)
    for name, network in networks.items() if len(clients) else ():
        start = network.compute_times(clients, work, seed, round_)[kept]
        if network.deadline is not None and not kept.all():
            start = start.clamp(min=network.deadline)
        arrival = start + network.upload_times(clients[kept], traffic, seed)
        times[name] = float(arrival.max()) + network.download_time(clients, traffic, seed)
    return times


def check_networks(networks: Mapping[str, Network] | None) -> dict[str, Network]:
    """The networks of a run, by name; UserError if several have a deadline."""
    result = dict(networks or {})
    limited = [name for name, network in result.items() if network.deadline is not None]
    require(len(limited) <= 1, f"network: expected one deadline at most, got those of {', '.join(limited)}")
    return result


class ShiftedExponentialNetwork(Network):
    """Computing times with P[T_i > t] = exp(-mu (t - T_min)) for t >= T_min, else 1.

    A round takes max_i T_i + rho up + streams, in times of one model down. Networks of one run draw the same uniform
    numbers, so that they differ in their constants only.

    Args:
        rho: T_ul / T_dl, time of a model up relative to down, 0 or more.
        t_min: least computing time, 0 or more.
        mu: 1 / mean delay beyond t_min; None or infinity: no delay.
        shared_uplink: whether clients send one after the other, so that C clients take C times as long; else all at
            once.
        deadline: see `Network`; `t_min` at least.

    """

    def __init__(
        self,
        rho: NotNegative,
        t_min: NotNegative,
        mu: Annotated[float, Gt(0), AllowInfNan()] | None,
        shared_uplink: bool = False,
        deadline: Positive | None = None,
    ) -> None:
        super().__init__(deadline)
        late = f"deadline: nobody computes in less than t_min={t_min:g}, got {deadline}"
        require(deadline is None or deadline >= t_min, late)
        self.rho, self.t_min, self.shared_uplink = rho, t_min, shared_uplink
        self.mean_delay = 0.0 if mu is None else 1 / mu

    def compute_times(self, clients: Tensor, work: Tensor, seed: int, round_: int) -> Tensor:
        """Computing times, drawn in each round, float64 [C]; the amount of work does not matter unless it is 0."""
        uniform = (fold(seed, Purpose.NETWORK, 0, round_, clients).double() + 0.5) / 2**32  # in (0, 1)
        times = self.t_min - self.mean_delay * uniform.log()
        return torch.where(work > 0, times, 0.0)

    def upload_times(self, clients: Tensor, traffic: Traffic, seed: int) -> Tensor:
        """rho for each model, or C times that: [C]."""
        turns = len(clients) if self.shared_uplink else 1
        return torch.full((len(clients),), turns * self.rho * traffic.uploads, dtype=torch.float64)

    def download_time(self, clients: Tensor, traffic: Traffic, seed: int) -> float:
        """1 for each stream."""
        return float(traffic.streams)
