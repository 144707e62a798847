"""Changes of samples: shifts between true groups of clients, and augmentation of training batches.

Shifts are those of Mestoukirdi et al. 2021, Section IV-A; the groups are kept as ground truth. An augmentation is a
function of (seed, round, client, sample).
"""

from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedem_lightning.data.partitions import Partition
from fedem_lightning.data.randomness import Purpose, fold, generator
from fedem_lightning.settings.errors import require
from fedem_lightning.settings.ranges import Count, PositiveInt, Share
from fedem_lightning.settings.recipes import Recorded


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


class Augmentation(Protocol):
    """A random change of the training features of a batch."""

    def __call__(self, x: Tensor, keys: Tensor) -> Tensor:
        """Changes x [n, ...] by keys int64 [n] in [0, 2^32) -> [n, ...]."""


class CropFlip(Recorded):
    """Shifts an image by up to `padding` pixels each way, filled with zeros, and mirrors half of the images.

    Args:
        padding: largest shift in pixels.
        flip: whether images are mirrored left to right.

    """

    def __init__(self, padding: Count = 4, flip: bool = True) -> None:
        self.padding, self.flip = padding, flip

    def __call__(self, x: Tensor, keys: Tensor) -> Tensor:
        """Changes x [n, channels, height, width]."""
        n, _, height, width = x.shape
        span = 2 * self.padding + 1
        down, right = (fold(keys, part) % span for part in (0, 1))  # [n]
        rows = down.unsqueeze(1) + torch.arange(height, device=x.device)  # [n, height]
        columns = right.unsqueeze(1) + torch.arange(width, device=x.device)  # [n, width]
        if self.flip:
            mirrored = (fold(keys, 2) & 1).bool().unsqueeze(1)
            columns = torch.where(mirrored, columns.flip(1), columns)
        padded = F.pad(x, [self.padding] * 4)
        sample = torch.arange(n, device=x.device).view(n, 1, 1)
        cropped = padded.movedim(1, -1)[sample, rows.unsqueeze(2), columns.unsqueeze(1)]  # [n, height, width, channels]
        return cropped.movedim(-1, 1)
