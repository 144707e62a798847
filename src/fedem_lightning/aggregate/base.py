"""What clients send, and what an aggregation must define: how the server combines the updates of a cohort."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedem_lightning.models.tensors import Models
from fedem_lightning.settings.errors import require
from fedem_lightning.settings.recipes import Recorded
from fedem_lightning.state.processes import Processes


class Update(NamedTuple):
    """What the C clients of a batch send the server, and the models from which they started."""

    models: Models  # [C, M, ...]
    weights: Tensor  # [C], a client's weight in its average, usually its number of samples; or [C, G], in each average
    start: Models  # [C, M, ...], what they received, in the form of `models`: updates are measured from it
    group: Tensor | None = None  # int64 [C]: the average that a client enters; None: there is one, or it enters all
    n_groups: int = 1  # G, the number of averages where `group` is given
    extras: Models = {}  # further tensors that it sends, by name, each [C, K]: averaged with the same weights
    receives: Models | None = None  # all that it receives, [C, ...], if that is more than `start`; for the bytes alone
    stream: Tensor | None = None  # int64 [C]: which of the server's streams it receives; None: one broadcast for all

    @property
    def n_averages(self) -> int:
        """G, the number of averages that the updates enter."""
        return self.weights.shape[1] if self.weights.ndim == 2 else self.n_groups

    def of(self, clients: Tensor) -> "Update":
        """The updates of some of the clients, bool [C]; without a copy if these are all."""
        return self if bool(clients.all()) else self._each(lambda rows: rows[clients])

    def _each(self, change: Callable[[Tensor], Tensor]) -> "Update":
        """The update with each of its tensors changed."""
        parts = (self.models, self.start, self.extras)
        models, start, extras = ({name: change(rows) for name, rows in part.items()} for part in parts)
        group = None if self.group is None else change(self.group)
        return Update(models, change(self.weights), start, group, self.n_groups, extras)

    def form(self) -> "Update":
        """The same update without clients, on the CPU: each tensor [0, ...]."""
        return self._replace(start={})._each(lambda rows: torch.empty(0, *rows.shape[1:], dtype=rows.dtype))


def check_update(sender: object, update: Any) -> None:
    """Raises UserError unless `update`, returned by the `client_update` of `sender`, is an Update or None."""
    kind, given = type(sender).__name__, type(update).__name__
    expected = "expected Update(models, weights, start=received) or None"
    require(update is None or isinstance(update, Update), f"{kind}.client_update returned {given}, {expected}")


class Means(NamedTuple):
    """The averages of G groups."""

    models: Models  # [G M, ...]: group after group, its M models
    nonempty: Tensor  # bool [G M]: whether any client was in this average; if none was, the model is zero
    weight: Tensor  # float64 [G], the sum of the weights
    extras: Models = {}  # the averages of the clients' extras, [G, ...]


def all_finite(models: Models) -> Tensor:
    """Whether each of the C stacked models is free of NaN and infinity: bool [C]."""
    sums = [stack.flatten(1).sum(dim=1) for stack in models.values() if stack.dtype.is_floating_point]
    return torch.stack(sums).isfinite().all(dim=0)  # a sum is finite only if every term is


@dataclass(frozen=True)
class Sampling:
    """How clients take part in the rounds of a run, planned or finished."""

    q: float  # probability that a client is in a cohort
    size: float  # q T, the expected number of clients in a cohort
    rounds: int
    deployed: bool = False  # whether clients are processes of their own


@dataclass(frozen=True)
class RoundContext:
    """What an aggregation may know of a round before the first update."""

    cohort: Tensor  # clients that may send, int64, ascending
    parameters: Collection[str]  # names of the trained parameters, over which an update's length is measured
    start: Callable[[], Models] = dict  # the models from which every client starts, [1, M, ...]
    sampling: Sampling = Sampling(1.0, 1.0, 0)
    key: tuple[int, int] | None = None  # of the noise: seed and round; None: noise from the system's entropy


class Collector(ABC):
    """Takes a round's updates block by block, combines those of all processes, and returns the averages."""

    like: Update | None = None  # the form of the updates; None: none was added

    @abstractmethod
    def add(self, update: Update, clients: Tensor | None = None) -> Tensor:
        """Adds the updates of a batch's clients (int64 [C]); which are finite, bool [C].

        An update with a NaN or an infinity is left out.
        """

    def adopt(self, like: Update, device: torch.device) -> None:
        """Takes the form of another process's updates: this one has none of its own."""
        self.like = like

    @abstractmethod
    def reduce(self, processes: Processes) -> None:
        """Combines the updates of all processes; either all have added (or adopted) an update, or none has."""

    @abstractmethod
    def compute(self) -> Means | None:
        """The averages; None if no update is left."""


class Aggregation(Recorded, ABC):
    """How the server combines the updates of a round's cohort, for each component and for each group of clients."""

    is_plain = False  # whether it is the weighted mean, which needs no rows
    samples_independently = False  # whether each client is in a cohort with the same probability, whoever else is

    @abstractmethod
    def begin(self, context: RoundContext) -> Collector:
        """A collector of a round's updates."""

    def plan(self, sampling: Sampling) -> None:
        """Chooses what depends on the whole run, before each round; `rounds` are those planned. Default: nothing."""

    def report(self, sampling: Sampling) -> dict[str, Any]:
        """Entries of results.json after these rounds. Default: none."""
        return {}

    def check(self, n_clients: int) -> None:
        """Raises UserError if the rule is not defined for cohorts of this size. Default: it always is."""
