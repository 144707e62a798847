"""Simulated times of a round in all networks of a run."""

from collections.abc import Mapping

import torch
from torch import Tensor

from fedem_lightning.errors import require
from fedem_lightning.network.base import Network
from fedem_lightning.network.traffic import Traffic


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
