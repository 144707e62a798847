"""Augmentation: random changes of training images in their batch, as a function of (seed, round, client, sample)."""

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from fedem_lightning.randomness import fold
from fedem_lightning.settings.check import Checked
from fedem_lightning.settings.ranges import Count


class Augmentation(Protocol):
    """A random change of the training features of a batch."""

    def __call__(self, x: Tensor, keys: Tensor) -> Tensor:
        """Changes x [n, ...] by keys int64 [n] in [0, 2^32) -> [n, ...]."""


class CropFlip(Checked):
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
