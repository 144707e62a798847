"""A distribution over the labels without features, the model of the density federation."""

import torch
from torch import Tensor, nn

from fedem_lightning.backbones.redrawable import Redrawable
from fedem_lightning.errors import require
from fedem_lightning.settings.ranges import PositiveInt, Shape


class Categorical(Redrawable):
    """The logits of y, independent of x: a linear layer with the constant input 1, so that engines can stack it.

    Args:
        in_shape: shape of one sample, (1,).
        n_outputs: labels, Y.

    Raises:
        UserError: samples have another shape.

    """

    def __init__(self, in_shape: Shape = (1,), n_outputs: PositiveInt = 50) -> None:
        super().__init__()
        shape = tuple(in_shape)
        require(shape == (1,), f"in_shape: Categorical is for samples without features, (1,), got {shape}")
        self.logits = nn.Linear(1, n_outputs, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Logits: [B, 1] -> [B, n_outputs]."""
        return self.logits(torch.ones_like(x))
