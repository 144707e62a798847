"""Shifted exponential computing times, and a ratio of up- to downlink.

Mestoukirdi, Zecchin, Gesbert, Li, Gresset: "User-Centric Federated Learning", 2021, arXiv 2110.09869, Section IV-C.
"""

from typing import Annotated

import numpy as np
import torch
from annotated_types import Gt
from pydantic import AllowInfNan
from torch import Tensor

from fedem_lightning.errors import require
from fedem_lightning.network.base import DRAW, Network, uniform
from fedem_lightning.network.traffic import Traffic
from fedem_lightning.settings.ranges import NotNegative, Positive


class ShiftedExponentialNetwork(Network):
    """Computing times with P[T_i > t] = exp(-mu (t - T_min)) for t >= T_min, else 1.

    A round takes max_i T_i + rho T_dl up + T_dl streams. Networks of one run draw the same uniform numbers, so that
    they differ in their constants only.

    Args:
        rho: T_ul / T_dl, time of a model up relative to down, 0 or more.
        t_min: least computing time, 0 or more.
        mu: 1 / mean delay beyond t_min; None or infinity: no delay.
        t_dl: time of one model down; 1 makes it the unit.
        shared_uplink: whether clients send one after the other, so that C clients take C times as long; else all at
            once.
        deadline: see `Network`; `t_min` at least.

    Raises:
        UserError: a value is out of its range.

    """

    def __init__(
        self,
        rho: NotNegative,
        t_min: NotNegative,
        mu: Annotated[float, Gt(0), AllowInfNan()] | None,
        t_dl: NotNegative = 1.0,
        shared_uplink: bool = False,
        deadline: Positive | None = None,
    ) -> None:
        super().__init__(deadline)
        late = f"deadline: nobody computes in less than t_min={t_min:g}, got {deadline}"
        require(deadline is None or deadline >= t_min, late)
        self.rho, self.t_min, self.t_dl, self.shared_uplink = rho, t_min, t_dl, shared_uplink
        self.mean_delay = 0.0 if mu is None else 1 / mu

    def compute_times(self, clients: Tensor, work: Tensor, seed: int, round_: int) -> Tensor:
        """Computing times, drawn in each round, float64 [C]; the amount of work does not matter unless it is 0."""
        times = self.t_min - self.mean_delay * uniform(seed, DRAW, round_, clients).log()
        return torch.where(work > 0, times, 0.0)

    def upload_times(self, clients: Tensor, traffic: Traffic, seed: int) -> Tensor:
        """rho T_dl for each model, or C times that: [C]."""
        turns = len(clients) if self.shared_uplink else 1
        return torch.full((len(clients),), turns * self.rho * self.t_dl * traffic.uploads, dtype=torch.float64)

    def download_time(self, clients: Tensor, traffic: Traffic, seed: int) -> float:
        """T_dl for each stream."""
        return self.t_dl * traffic.streams

    def expected_slowest(self, n_clients: int) -> float:
        """E[max of T_1..T_n] = T_min + H_n / mu, H_n the harmonic number."""
        return self.t_min + self.mean_delay * float((1 / np.arange(1, n_clients + 1)).sum())
