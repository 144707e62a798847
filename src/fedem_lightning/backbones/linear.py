"""One linear layer, the model of the synthetic data."""

import math

from torch import Tensor, nn

from fedem_lightning.backbones.redrawable import Redrawable
from fedem_lightning.settings.ranges import PositiveInt, Shape


class Linear(Redrawable):
    """One linear layer on the flattened features.

    Args:
        in_shape: shape of one sample.
        n_outputs: number of outputs.
        bias: whether the layer has a bias.

    """

    def __init__(self, in_shape: Shape, n_outputs: PositiveInt, bias: bool = True) -> None:
        super().__init__()
        self.linear = nn.Linear(math.prod(in_shape), n_outputs, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """Outputs: [B, *in_shape] -> [B, n_outputs]."""
        return self.linear(x.flatten(1))
