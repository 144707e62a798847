"""Numbers of every test sample: its score, so that runs can be compared sample by sample, and its probabilities."""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from fedem_lightning.data.federation import Federation

MOST_NUMBERS = 50_000_000
"""With more scores of test samples than this, or more probabilities, none of them is kept."""


class TestRows:
    """A row of numbers for each test sample, in the order of the scored clients and, within a client, of its samples.

    `n` are the test samples of each client, int64 [C].
    """

    __test__ = False  # pytest would collect it

    def __init__(self, n: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        self.n = n
        self._next = n.cumsum(0) - n  # where the next sample of each client belongs
        # a process writes the rows of its clients, and the processes add up their bytes or floats
        self.values = torch.zeros(int(n.sum()), *shape, dtype=dtype, device=n.device)

    def put(self, row: Tensor, values: Tensor) -> None:
        """Adds the rows [n, *shape] of the next samples of some clients.

        `row` is the index of each sample's client among the scored ones, int64 [n], client after client.
        """
        clients, counts = row.unique_consecutive(return_counts=True)  # [c], [c]
        first = self._next[clients] - (counts.cumsum(0) - counts)  # place of a client's first sample, less its index
        places = torch.repeat_interleave(first, counts) + torch.arange(len(row), device=row.device)
        self.values[places] = values.to(self.values.dtype)
        self._next[clients] += counts


class SampleScores(TestRows):
    """One score of each test sample of the scored clients, int64 [C]."""

    def __init__(self, federation: Federation, clients: Tensor) -> None:
        task = federation.task
        self.measure = task.measures[0] if task.measures[0] != "perplexity" else "loss"  # whose exp it is
        self._right_or_wrong = self.measure == "accuracy" and task.n_targets == 1
        dtype = torch.uint8 if self._right_or_wrong else torch.float32
        super().__init__(federation.splits["test"].counts(clients), (), dtype)

    def add(self, row: Tensor, scores: Mapping[str, Tensor]) -> None:
        """Adds the task's scores of samples, by measure [n]; see `put`."""
        self.put(row, scores[self.measure])

    def arrays(self) -> dict[str, np.ndarray]:
        """The content of test_samples.npz: n int64 [C], values bool or float32 [sum n], measure (a str)."""
        values = self.values.bool() if self._right_or_wrong else self.values
        return {"n": self.n.cpu().numpy(), "values": values.cpu().numpy(), "measure": np.array(self.measure)}


class Predictions(TestRows):
    """The probabilities that personal models give to the test samples: of the classes, or of several labels."""

    def __init__(self, federation: Federation, clients: Tensor) -> None:
        shape = (n_probabilities(federation),)
        super().__init__(federation.splits["test"].counts(clients), shape, torch.float32)
        block = federation.block(clients, "test")
        self.y, self.owner = block.y().cpu(), block.owner.cpu()  # [n, ...], and each one's client, int64 [n]


def n_probabilities(federation: Federation) -> int:
    """Number of probabilities of a sample: of the classes, or in a multi-label task of the labels."""
    return int(getattr(federation.task, "n_classes", federation.task.n_outputs))


def fits(federation: Federation, clients: Tensor, numbers: int = 1) -> bool:
    """Whether so many numbers of each test sample of `clients` are no more than `MOST_NUMBERS`."""
    return int(federation.splits["test"].counts(clients).sum()) * numbers <= MOST_NUMBERS
