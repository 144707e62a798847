"""What a network must say: times of computing and sending, and the deadline of a round."""

from abc import ABC, abstractmethod

from torch import Tensor

from fedem_lightning.network.traffic import Traffic
from fedem_lightning.randomness import Purpose, fold
from fedem_lightning.records.recipes import Recorded
from fedem_lightning.settings.ranges import Positive

DRAW, DEVICE = 0, 1  # give a client's delay and its device different keys


class Network(Recorded, ABC):
    """A model of computing and transmission times, in one unit, as functions of (seed, round, client).

    Args:
        deadline: clients whose computing takes longer are left out of the round; None: the server waits for all.

    Raises:
        UserError: a value is out of its range.

    """

    def __init__(self, deadline: Positive | None = None) -> None:
        self.deadline = deadline

    @property
    def released(self) -> tuple[str, ...]:
        """What clients learn of others' data by it: see `in_time`."""
        return ("whether any other client was in time (network.deadline)",) * (self.deadline is not None)

    @abstractmethod
    def compute_times(self, clients: Tensor, work: Tensor, seed: int, round_: int) -> Tensor:
        """Computing time of each client, float64 [C].

        Args:
            clients: clients drawn for the round, int64 [C].
            work: number of single-sample gradients that each client computes, [C]; 0 takes no time.
            seed, round_: seed of the run, and number of the round from 0 (negative for special rounds).

        """

    @abstractmethod
    def upload_times(self, clients: Tensor, traffic: Traffic, seed: int) -> Tensor:
        """Time until each of the sending clients [C] has sent its models, float64 [C]."""

    @abstractmethod
    def download_time(self, clients: Tensor, traffic: Traffic, seed: int) -> float:
        """Time that the server needs to send to the clients [C], one stream after the other."""

    def in_time(self, times: Tensor) -> Tensor:
        """Clients that finish in time, bool [C], by their computing times [C]; if none does, the fastest client."""
        met = times <= (float("inf") if self.deadline is None else self.deadline)
        met[times.argmin()] |= not met.any()
        return met

    def round_time(self, clients: Tensor, times: Tensor, kept: Tensor, traffic: Traffic, seed: int) -> float:
        """Time of a round: the slowest client computes and sends, then the server sends.

        If some clients miss the deadline, no client begins to send before it.

        Args:
            clients, times, kept: clients drawn, their computing times, and whether they finish in time, [C] each.
            traffic, seed: models sent in the round, and seed of the run.

        """
        start = times[kept]
        if self.deadline is not None and not kept.all():
            start = start.clamp(min=self.deadline)
        arrival = start + self.upload_times(clients[kept], traffic, seed)
        return float(arrival.max()) + self.download_time(clients, traffic, seed)


def uniform(seed: int, *key: Tensor | int) -> Tensor:
    """Uniform numbers in (0, 1), float64."""
    return (fold(seed, Purpose.NETWORK, *key).double() + 0.5) / 2**32
