"""What a round sends, and how long it takes in simulated networks."""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from fedem_lightning.errors import require
from fedem_lightning.network.networks import Network


class Transmission(NamedTuple):
    """Numbers of models that one client and the server send in a round, as an algorithm's `transmission` hook says.

    With a server each sends a model once, to one receiver or as a broadcast: `uploads` is `up`, and the server
    broadcasts `streams` different models. On a graph a client transmits fewer models than its neighbours receive.
    """

    down: float  # models that a client receives, on average over the clients
    up: float  # models that a client sends, counted once for each receiver, on average
    uploads: float | None = None  # transmissions of a client, a broadcast counts once; None: `up`
    streams: float | None = None  # different models that the server broadcasts; None: `down`
    stream_of: Tensor | None = None  # the stream that each drawn client receives, int64 [C]; None: all receive all

    def traffic(self, n_drawn: int, n_trained: int, model_bytes: int) -> "Traffic":
        """The traffic of a round in which `n_drawn` clients were drawn and `n_trained` of them met the deadline.

        A client that missed the deadline uploads nothing but receives the broadcast.

        Args:
            n_drawn, n_trained: numbers of clients.
            model_bytes: size of a model.

        """
        uploads = self.up if self.uploads is None else self.uploads
        streams = self.down if self.streams is None else self.streams
        received = self.down * (n_drawn if streams else n_trained)
        streams = min(streams, received)  # a server sends no stream without a receiver
        return Traffic(
            up=self.up * n_trained,
            down=received,
            uploads=uploads,
            streams=streams,
            on_air=uploads * n_trained + streams,
            stream_of=None if self.stream_of is None else self.stream_of.cpu(),
            model_bytes=model_bytes,
        )


class Traffic(NamedTuple):
    """Numbers of models sent in a round; C clients were drawn, and those of the cohort trained."""

    up: float  # by all clients together, to the server or to one another
    down: float  # received by all clients together
    uploads: float  # transmissions of each client of the cohort
    streams: float  # transmissions of the server: different models, a broadcast counts once
    on_air: float  # transmissions of all clients and the server
    stream_of: Tensor | None  # the stream that each drawn client receives, int64 [C]; None: all receive all
    model_bytes: int


class Clocks:
    """Simulated times of one round in all networks of a run, and the clients that finish in time.

    Args:
        networks: by name; the deadline of at most one network decides which clients are in time, for all networks.
        clients, work, seed, round_: see `Network.compute_times`; on any device.
        limited: whether the deadline holds; else the server waits for all clients.

    """

    def __init__(
        self,
        networks: Mapping[str, Network],
        clients: Tensor,
        work: Tensor,
        seed: int,
        round_: int,
        limited: bool = True,
    ) -> None:
        self._networks, self._clients, self._seed = networks, clients.cpu(), seed
        self._times = {n: net.compute_times(self._clients, work.cpu(), seed, round_) for n, net in networks.items()}
        self.in_time = torch.ones(len(clients), dtype=torch.bool)  # [C], on the CPU
        for name, network in networks.items() if limited and len(clients) else ():
            self.in_time &= network.in_time(self._times[name])

    def times(self, traffic: Traffic) -> dict[str, float]:
        """Times of the round, by network; 0 for a round without clients."""
        if not len(self._clients):
            return dict.fromkeys(self._networks, 0.0)
        return {
            name: network.round_time(self._clients, self._times[name], self.in_time, traffic, self._seed)
            for name, network in self._networks.items()
        }


def check_networks(networks: Mapping[str, Network] | None) -> dict[str, Network]:
    """The networks of a run, by name; UserError if several have a deadline."""
    found = dict(networks or {})
    limited = [name for name, network in found.items() if network.deadline is not None]
    require(len(limited) <= 1, f"network: expected one deadline at most, got those of {', '.join(limited)}")
    return found
