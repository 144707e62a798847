"""Networks of the user's own, which a checkpoint names only by their classes."""

import random
from collections.abc import Callable, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedem_lightning.settings.recipes import Recorded


class SmallCNN(Recorded, nn.Module):
    """A convolution with BatchNorm and dropout: [B, channels, h, w] -> [B, n_outputs]."""

    def __init__(self, in_shape: Sequence[int], n_outputs: int) -> None:
        super().__init__()
        channels, height, width = in_shape
        body = (nn.Conv2d(channels, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.5), nn.Flatten())
        self.layers = nn.Sequential(*body, nn.Linear(4 * (height - 2) * (width - 2), n_outputs))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


DRAWS: dict[str, Callable[[Tensor, bool], Tensor]] = {
    "dropout": lambda h, training: F.dropout(h, 0.3, training),
    "alpha dropout": lambda h, training: F.alpha_dropout(h, 0.3, training),
    "noise in scores too": lambda h, training: h + 0.1 * torch.randn_like(h),
    "little noise": lambda h, training: h + 1e-3 * torch.randn_like(h) if training else h,
    "python": lambda h, training: h * (1 + random.random()) if training else h,
    "numpy": lambda h, training: h * float(1 + np.random.rand()) if training else h,
}


class Drawing(Recorded, nn.Module):
    """Two layers with random numbers in between, from a global generator: [B, features] -> [B, n_outputs]."""

    def __init__(self, in_shape: Sequence[int], n_outputs: int, hidden: Sequence[int], draw: str) -> None:
        super().__init__()
        self.body, self.head, self.draw = nn.Linear(in_shape[0], hidden[0]), nn.Linear(hidden[0], n_outputs), draw

    def forward(self, x: Tensor) -> Tensor:
        return self.head(DRAWS[self.draw](self.body(x).tanh(), self.training))
