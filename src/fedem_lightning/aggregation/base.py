"""What an aggregation must define: how the server combines the updates of a cohort."""

from abc import ABC, abstractmethod
from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor

from fedem_lightning.aggregation.sent import Means, Models, Sent
from fedem_lightning.processes import Processes
from fedem_lightning.records.recipes import Recorded
from fedem_lightning.settings.ranges import AboveOne


class Collector(ABC):
    """Takes a round's updates block by block, combines those of all processes, and returns the averages."""

    rejected: int  # updates that were not finite
    _like: Sent | None = None  # see `like`
    needs_received = False  # whether `add` needs the models that the clients received

    @abstractmethod
    def add(self, sent: Sent, clients: Tensor | None = None, received: Models | None = None) -> Tensor:
        """Adds the updates of a block's clients; an update with a NaN or an infinity is left out.

        Args:
            sent: the updates.
            clients: the block's clients, int64 [C].
            received: the models that they received, [C, M, ...].

        Returns:
            Which updates are finite, bool [C].

        """

    def like(self) -> Sent | None:
        """The form of the updates: without clients, each tensor [0, ...], on the CPU. None: none was added."""
        return self._like

    def adopt(self, like: Sent, device: torch.device) -> None:
        """Takes the form of another process's updates: this one has none of its own."""
        self._like = like

    @abstractmethod
    def reduce(self, processes: Processes) -> Tensor:
        """Combines the updates of all processes; either all have added (or adopted) an update, or none has.

        Returns:
            Clients whose updates are left out because they are too long, int64; the same in every process.

        """

    @abstractmethod
    def compute(self) -> Means | None:
        """The averages; None if no update is left."""


class Aggregation(Recorded, ABC):
    """How the server combines the updates of a round's cohort, for each component and for each group of clients.

    Args:
        max_norm_ratio: an update is rejected if it is so many times as long as the median update of the cohort. Its
            length is |theta_t - theta|, over the trained parameters of all components; theta is the model that the
            client received. None: no limit. With a limit the updates of the whole cohort are in memory at once.

    Raises:
        UserError: a value is out of its range.

    """

    clips = False  # whether updates are shortened (`scales`)
    samples_independently = False  # whether each client is in a cohort with the same probability, whoever else is
    weighted = True  # whether clients count by their weights; False: alike, unless each receiver has its own weights

    def __init__(self, max_norm_ratio: AboveOne | None = None) -> None:
        self.max_norm_ratio = max_norm_ratio

    @property
    def is_plain(self) -> bool:
        """Whether this is the weighted mean without a limit, which needs no rows. Default: it is not."""
        return False

    @abstractmethod
    def begin(self, cohort: Tensor, parameters: Collection[str], **more: Any) -> Collector:
        """A collector of a round's updates.

        Args:
            cohort: clients that may send, int64, ascending.
            parameters: names of the trained parameters, over which an update's length is measured.
            more: facts of the round for a rule that samples independently, see `ClippedSum`.

        """

    def check(self, n_clients: int) -> None:
        """Raises UserError if the rule is not defined for cohorts of this size. Default: it always is."""

    def scales(self, norms: Tensor) -> Tensor:
        """Factors in (0, 1] by which updates are shortened, [C, M], from their lengths [C, M]; see `clips`."""
        return torch.ones_like(norms)

    def choose(self, parts: list[Tensor], weights: Tensor) -> Tensor:
        """The weights that n clients of a group have in one component, [n]; 0: left out. Default: their own.

        Args:
            parts: the tensors of the component, each [n, F].
            weights: float64 [n], above 0.

        """
        return weights

    def combine(self, values: Tensor, weights: Tensor) -> Tensor:
        """One value for each column of `values` [n, F], from weights float64 [n]: [F]. Default: the weighted mean."""
        shares = (weights / weights.sum()).to(values)
        return values.T @ shares
