"""Simulated networks: shifted exponential times, and devices from a table."""

from pathlib import Path
from typing import Annotated

import numpy as np
import pandas as pd
import torch
from annotated_types import Gt
from pydantic import AllowInfNan
from torch import Tensor

from fedem_lightning.errors import UserError, require
from fedem_lightning.network.traffic import Network, Traffic, uniform
from fedem_lightning.records.files import regular
from fedem_lightning.settings.ranges import NotNegative, Positive

DRAW, DEVICE = 0, 1  # give a client's delay and its device different keys


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

    Raises:
        UserError: a value is out of its range.

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
        times = self.t_min - self.mean_delay * uniform(seed, DRAW, round_, clients).log()
        return torch.where(work > 0, times, 0.0)

    def upload_times(self, clients: Tensor, traffic: Traffic, seed: int) -> Tensor:
        """rho for each model, or C times that: [C]."""
        turns = len(clients) if self.shared_uplink else 1
        return torch.full((len(clients),), turns * self.rho * traffic.uploads, dtype=torch.float64)

    def download_time(self, clients: Tensor, traffic: Traffic, seed: int) -> float:
        """1 for each stream."""
        return float(traffic.streams)


class DeviceNetwork(Network):
    """Times in seconds, from samples and megabits a second of the clients' devices, which are drawn once by share.

    A client computes for work / samples_per_second, and sends at the rate of its uplink. A stream has the downlink rate
    of the slowest client that receives it.

    Args:
        path: a CSV file with the columns `COLUMNS` and one row for each device; shares need not sum to 1.
        deadline: in seconds, see `Network`.

    Raises:
        UserError: the file is missing, or is no such table.

    """

    COLUMNS = ("device", "share", "up_mbit", "down_mbit", "samples_per_second")

    def __init__(self, path: str | Path | None, deadline: Positive | None = None) -> None:
        super().__init__(deadline)
        table = _read_table(path, self.COLUMNS)
        self.shares, up, down, self.speed = (torch.tensor(table[c].to_numpy(float)) for c in self.COLUMNS[1:])
        self.up, self.down = up * 1e6, down * 1e6  # bits a second

    def devices(self, clients: Tensor, seed: int) -> Tensor:
        """The row of each client's device in the table, int64 [C]: a function of (seed, client)."""
        edges = (self.shares / self.shares.sum()).cumsum(0)[:-1]
        return torch.searchsorted(edges, uniform(seed, DEVICE, clients), right=True)

    def compute_times(self, clients: Tensor, work: Tensor, seed: int, round_: int) -> Tensor:
        """Seconds, float64 [C]."""
        return work.double() / self.speed[self.devices(clients, seed)]

    def upload_times(self, clients: Tensor, traffic: Traffic, seed: int) -> Tensor:
        """Seconds, float64 [C]."""
        return 8 * traffic.model_bytes * traffic.uploads / self.up[self.devices(clients, seed)]

    def download_time(self, clients: Tensor, traffic: Traffic, seed: int) -> float:
        """Seconds: the mean time of a model over the streams' groups of clients, times the number of streams."""
        stream_of = torch.zeros_like(clients) if traffic.stream_of is None else traffic.stream_of
        groups, group = stream_of.unique(return_inverse=True)
        rate = self.down[self.devices(clients, seed)]
        slowest = rate.new_zeros(len(groups)).scatter_reduce(0, group, rate, "amin", include_self=False)
        return float((8 * traffic.model_bytes / slowest).mean()) * traffic.streams


def _read_table(path: str | Path | None, columns: tuple[str, ...]) -> pd.DataFrame:
    """Reads the table of devices; every column after the first must hold positive numbers."""
    file = Path(path or "").expanduser()
    require(file.is_file(), f"path: expected a CSV file of devices, there is no file {path}")
    try:
        table = pd.read_csv(regular(file), skipinitialspace=True, comment="#")
    except (OSError, ValueError) as error:  # pandas' own errors are ValueErrors
        raise UserError(f"path: {path} is no readable CSV file ({type(error).__name__})") from error
    expected = f"path: {path}: expected the columns {', '.join(columns)}"
    require(set(columns) <= set(table.columns), f"{expected}, got {', '.join(map(str, table.columns))}")
    require(len(table) > 0, f"path: {path} has no device")
    for column in columns[1:]:
        numbers = pd.to_numeric(table[column], errors="coerce").to_numpy(float)
        good = bool((np.isfinite(numbers) & (numbers > 0)).all())
        require(good, f"path: {path}: expected positive numbers in column {column}")
        table[column] = numbers
    return table
