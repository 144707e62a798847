"""A multi-layer perceptron."""

import math
from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn

from fedem_lightning.backbones.redrawable import Redrawable
from fedem_lightning.settings.ranges import PositiveInt, Shape


class MLP(Redrawable):
    """A perceptron on the flattened features, with hidden layers and ReLU.

    Args:
        in_shape: shape of one sample.
        n_outputs: number of outputs.
        hidden: widths of the hidden layers.

    """

    def __init__(self, in_shape: Shape, n_outputs: PositiveInt, hidden: Sequence[PositiveInt] = (64,)) -> None:
        super().__init__()
        widths = [math.prod(in_shape), *hidden]
        layers: list[nn.Module] = []
        for n_in, n_out in pairwise(widths):
            layers += [nn.Linear(n_in, n_out), nn.ReLU()]
        self.layers = nn.Sequential(*layers, nn.Linear(widths[-1], n_outputs))

    def forward(self, x: Tensor) -> Tensor:
        """Outputs: [B, *in_shape] -> [B, n_outputs]."""
        return self.layers(x.flatten(1))
