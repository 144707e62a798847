"""Shifts of samples between true groups of clients, which are kept as ground truth.

They are those of Mestoukirdi et al. 2021, Section IV-A.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedem_lightning.data.partitions import Partition
from fedem_lightning.data.randomness import Purpose, generator
from fedem_lightning.settings.errors import require
from fedem_lightning.settings.ranges import PositiveInt, Share


@dataclass(frozen=True)
class Shift:
    """How samples differ between true groups of clients; the first group's stay as they are.

    Args:
        shift: "rotation" (images of group g are turned by g * 90 degrees), "labels" (a permutation for each group) or
            "inversion" (the second group's images are negatives); None: no shift.
        n_groups: number of true groups of the shift.
        shifted_share: share of the clients that are dealt evenly to all groups; the others are in the first group.

    """

    shift: Literal["rotation", "labels", "inversion"] | None = None
    n_groups: PositiveInt = 1
    shifted_share: Share = 1.0

    def apply(
        self, x: np.ndarray, y: np.ndarray, dealt: Partition, n_classes: int, seed: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Assigns clients to groups, and shifts all samples of a group in the same way.

        Returns x [n, ...], changed in place unless labels are permuted, y int [n], and every client's group, int64 [T].
        """
        n_clients, most = len(dealt.names), {"rotation": 4, "inversion": 2}.get(self.shift or "", self.n_groups)
        require(self.n_groups <= n_clients, f"n_groups: {self.n_groups} groups, but there are {n_clients} clients")
        require(self.n_groups <= most, f"n_groups: {self.shift} makes {most} groups at most, got {self.n_groups}")
        rng = generator(seed, Purpose.GROUPS)
        n_dealt, order = round(self.shifted_share * n_clients), np.arange(n_clients)
        group = rng.permutation(np.where(order < n_dealt, order % self.n_groups, 0))
        of_sample = np.where(dealt.client >= 0, group[dealt.client], -1)
        if self.shift == "labels":  # the first group keeps its own
            permuted = (rng.permutation(n_classes) for _ in range(self.n_groups - 1))
            table = np.stack([np.arange(n_classes), *permuted])
            return x, np.where(of_sample < 0, y, table[of_sample, y]), group
        if self.shift == "rotation":
            square = x.ndim >= 3 and x.shape[1] == x.shape[2]
            require(square, f"shift: rotation needs square images, these samples are {x.shape[1:]}")
        for g in range(1, self.n_groups):
            rows = np.flatnonzero(of_sample == g)
            for part in np.array_split(rows, max(1, len(rows) // 10_000)):  # copies one part at a time
                if self.shift == "rotation":
                    x[part] = np.rot90(x[part], k=g, axes=(1, 2))
                elif self.shift == "inversion":
                    x[part] = 255 - x[part]
        return x, y, group
