"""Round history: costs, metrics and rejected updates of a run's rounds."""

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedem_lightning.data.federation import Federation
from fedem_lightning.state.network import Traffic
from fedem_lightning.state.processes import Processes

Curves = Mapping[int, Mapping[str, float]]
"""What each round logged, by its number; 0: before the first."""

NOT_FINITE = "not finite"
EXCEPTION = "exception"
NO_ANSWER = "no answer"
INVALID = "invalid reply"

LIMIT = 1_000  # largest number of clients and reasons that are kept by name; beyond, rejections are only counted


class Rejection(NamedTuple):
    """One update that was left out."""

    client: int  # index in the federation
    reason: str
    detail: str = ""  # e.g. the exception's type and first line


@dataclass
class Rejections:
    """All rejections of a run so far, as plain values, so that checkpoints can save them."""

    by_reason: dict[str, int] = field(default_factory=dict)  # number of updates
    by_client: list[dict[str, Any]] = field(default_factory=list)
    """Each with client, reason, rounds (their number), first_round (from 1) and detail (of the first)."""

    @property
    def total(self) -> int:
        """Number of rejected updates."""
        return sum(self.by_reason.values())

    def add(self, round_: int, rejections: list[Rejection]) -> None:
        """Adds those of a round (from 1)."""
        known = {(entry["client"], entry["reason"]): entry for entry in self.by_client} if rejections else {}
        for client, reason, detail in rejections:
            self.by_reason[reason] = self.by_reason.get(reason, 0) + 1
            entry = known.get((client, reason))
            if entry is not None:
                entry["rounds"] += 1
            elif len(self.by_client) < LIMIT:
                entry = {"client": client, "reason": reason, "rounds": 1, "first_round": round_, "detail": detail}
                known[client, reason] = entry
                self.by_client.append(entry)


@dataclass
class Statistics:
    """Costs of the rounds so far; checkpoints save them, so that a resumed run continues the count."""

    round_seconds: list[float] = field(default_factory=list)  # of each round, without evaluation and logging
    training_seconds: float = 0.0  # of all rounds and their evaluation
    up_bytes: int = 0  # sent from clients to the server
    down_bytes: int = 0  # sent from the server to clients
    air_bytes: int = 0  # transmitted bytes of clients and server: a broadcast counts once
    gradients: float = 0.0  # of single samples, that clients have computed in training
    times: dict[str, float] = field(default_factory=dict)  # simulated time in each network, in its unit
    rejections: Rejections = field(default_factory=Rejections)  # client updates that were left out
    special_rounds: int = 0  # see `count_special_round`
    planned_rounds: int = 0  # rounds of the whole run; the learning-rate schedule needs it
    seconds_before: float = 0.0  # from the start of the run to the checkpoint from which it was resumed

    def __post_init__(self) -> None:
        self.begun = self._mark = time.perf_counter()  # when this process began the run

    @property
    def rounds(self) -> int:
        """Number of finished rounds."""
        return len(self.round_seconds)

    def total_seconds(self) -> float:
        """Seconds since the start of the run, without the time between a checkpoint and the resume."""
        return self.seconds_before + time.perf_counter() - self.begun

    def count_on(self, saved: dict[str, Any]) -> None:
        """Takes the statistics of a checkpoint; the time at which this process began the run stays."""
        kept = {name: value for name, value in saved.get("rejections", {}).items() if name != "log"}  # of older ones
        known = {name: value for name, value in saved.items() if name != "stragglers"}  # of older ones, too
        vars(self).update(vars(Statistics(**known | {"rejections": Rejections(**kept)})), begun=self.begun)

    def plan(self, rounds: int) -> None:
        """Sets the number of rounds of the run, and starts the clock."""
        self.planned_rounds = rounds
        self._mark = time.perf_counter()

    def tick(self) -> None:
        """Adds the time since the last call to `training_seconds`."""
        now = time.perf_counter()
        self.training_seconds += now - self._mark
        self._mark = now

    def count(self, traffic: Traffic, times: dict[str, float], gradients: float) -> None:
        """Adds a round's transmitted bytes, its simulated time in each network, and its gradients."""
        self.gradients += gradients
        self.up_bytes += round(traffic.up * traffic.model_bytes)
        self.down_bytes += round(traffic.down * traffic.model_bytes)
        self.air_bytes += round(traffic.on_air * traffic.model_bytes)
        self.times |= {name: self.times.get(name, 0.0) + time for name, time in times.items()}

    def totals(self) -> dict[str, float]:
        """Totals so far, as columns of metrics.csv; `training_seconds` as of the last `tick`."""
        return {
            "training_seconds": self.training_seconds,
            "up_megabytes": self.up_bytes / 1e6,
            "down_megabytes": self.down_bytes / 1e6,
            "air_megabytes": self.air_bytes / 1e6,
            "rejected_updates": self.rejections.total,
            **{f"time_{name}": time for name, time in self.times.items()},
        }

    def state_dict(self) -> dict[str, Any]:
        """The statistics as plain numbers, lists and dictionaries."""
        return asdict(self) | {"seconds_before": self.total_seconds()}


class Round(NamedTuple):
    """What the server knows about a round at its end."""

    number: int  # from 0
    federation: Federation
    cohort: Tensor  # the clients that trained, int64, ascending


class RoundMetrics:
    """Metrics of a round: means over samples, added block by block, and the updates that are left out."""

    def __init__(self) -> None:
        self.rejections: list[Rejection] = []
        self._sums: dict[str, float | Tensor] = {}  # of values of a GPU tensors [], so that nobody waits for each
        self._counts: dict[str, int] = {}

    def reject(self, clients: Tensor, reason: str = NOT_FINITE, detail: str = "") -> None:
        """Notes that the updates of these clients (int64 [C]) are left out."""
        self.rejections += [Rejection(client, reason, detail) for client in clients.tolist()]

    def add(self, name: str, values: Tensor) -> None:
        """Adds values of any shape to the mean called `name`."""
        self.add_sum(name, values.detach().double().sum(), values.numel())

    def add_sum(self, name: str, total: float | Tensor, count: int) -> None:
        """Adds `count` values, of which only the sum is known, to the mean called `name`."""
        self._sums[name] = self._sums.get(name, 0.0) + total
        self._counts[name] = self._counts.get(name, 0) + count

    def sums(self) -> dict[str, tuple[float, int]]:
        """The sum and the number of values of each mean."""
        return {name: (float(total), self._counts[name]) for name, total in self._sums.items()}

    def reduce(self, processes: Processes, device: torch.device) -> None:
        """Adds the means of the other processes, which have the same names."""
        if processes.size == 1 or not self._sums:
            return
        pairs = torch.tensor(list(self.sums().values()), dtype=torch.float64, device=device)  # [names, 2]
        processes.sum([pairs])
        for name, (total, count) in zip(self._sums, pairs.tolist(), strict=True):
            self._sums[name], self._counts[name] = total, int(count)

    def means(self) -> dict[str, float]:
        """The means, by name."""
        return {name: total / count for name, (total, count) in self.sums().items()}


def first_line(error: BaseException) -> str:
    """The type and the first line of an exception, 200 characters at most."""
    lines = str(error).strip().splitlines()
    text = f"{type(error).__name__}: {' '.join(lines[0].split())}" if lines else type(error).__name__
    return text if len(text) <= 200 else text[:199] + "…"


def summarised(rejections: list[Rejection]) -> str:
    """How many updates were left out for which reason: "2 not finite, 1 exception (ValueError: no)"."""
    parts = []
    for reason in dict.fromkeys(r.reason for r in rejections):
        same = [r for r in rejections if r.reason == reason]
        detail = next((f" ({r.detail})" for r in same if r.detail), "")
        parts.append(f"{len(same)} {reason}{detail}")
    return ", ".join(parts)
