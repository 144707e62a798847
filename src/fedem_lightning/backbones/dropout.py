"""Dropout whose mask is a function of a key; it is therefore the same in every engine and after a resume."""

import torch
from torch import Tensor, nn

from fedem_lightning.randomness import fold, passes
from fedem_lightning.settings.check import Checked
from fedem_lightning.settings.ranges import BelowOne


class Dropout(Checked, nn.Module):
    """Zeroes elements with probability p and scales the others by 1 / (1 - p); in eval mode it does nothing.

    The mask comes from the buffer `key` and the element's position alone. The local solver sets a new key for every
    (seed, round, client, step), see `fedem_lightning.local_solver`. Two dropout layers of a network need different
    `salt`s; with the same salt they would draw the same mask.

    Args:
        p: probability of a zero, in [0, 1).
        salt: any whole number.

    """

    key: Tensor

    def __init__(self, p: BelowOne = 0.5, salt: int = 0) -> None:
        super().__init__()
        self.p, self.salt = p, salt
        self.register_buffer("key", torch.zeros((), dtype=torch.int64), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Applies the mask to x, which may have any shape."""
        if not self.training or self.p == 0:
            return x
        position = torch.arange(x.numel(), dtype=torch.int32, device=x.device).view(x.shape)
        kept = passes(fold(self.key, self.salt), position, self.p)
        return x * kept.to(x.dtype) / (1 - self.p)
