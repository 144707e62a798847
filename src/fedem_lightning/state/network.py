"""What a round sends, and how long it takes in simulated networks.

docs/communication.md lists what each method sends.
"""

from collections.abc import Mapping
from typing import Annotated, NamedTuple

import torch
from annotated_types import Gt
from pydantic import AllowInfNan
from torch import Tensor

from fedem_lightning.data.randomness import Purpose, fold
from fedem_lightning.settings.check import Checked
from fedem_lightning.settings.ranges import NotNegative


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
        """The traffic of a round in which `n_drawn` clients were drawn and `n_trained` of them answered.

        A client that does not answer uploads nothing but receives the broadcast.
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


class ShiftedExponentialNetwork(Checked):
    """Computing times with P[T_i > t] = exp(-mu (t - T_min)) for t >= T_min, else 1.

    A round takes max_i T_i + rho up + streams, in times of one model down. Networks of one run draw the same uniform
    numbers, so that they differ in their constants only.

    Args:
        rho: T_ul / T_dl, time of a model up relative to down, 0 or more.
        t_min: least computing time, 0 or more.
        mu: 1 / mean delay beyond t_min; None or infinity: no delay.

    """

    def __init__(self, rho: NotNegative, t_min: NotNegative, mu: Annotated[float, Gt(0), AllowInfNan()] | None) -> None:
        self.rho, self.t_min = rho, t_min
        self.mean_delay = 0.0 if mu is None else 1 / mu

    def compute_times(self, clients: Tensor, work: Tensor, seed: int, round_: int) -> Tensor:
        """Computing time of each of the clients drawn for the round (int64 [C]), float64 [C].

        `work` is the number of single-sample gradients that each computes, [C]; 0 takes no time, and no other number
        matters. Rounds are counted from 0; special ones are negative.
        """
        uniform = (fold(seed, Purpose.NETWORK, 0, round_, clients).double() + 0.5) / 2**32  # in (0, 1)
        times = self.t_min - self.mean_delay * uniform.log()
        return torch.where(work > 0, times, 0.0)


def times_of_round(
    networks: Mapping[str, ShiftedExponentialNetwork],
    clients: Tensor,
    work: Tensor,
    traffic: Traffic,
    seed: int,
    round_: int,
) -> dict[str, float]:
    """Simulated times of a round of clients [C] with this `work` [C], by network.

    The slowest one computes and sends its models, then the server sends one stream after the other.
    """
    clients, work, times = clients.cpu(), work.cpu(), dict.fromkeys(networks, 0.0)
    for name, network in networks.items() if len(clients) else ():
        arrival = network.compute_times(clients, work, seed, round_) + network.rho * traffic.uploads
        times[name] = float(arrival.max()) + traffic.streams
    return times
