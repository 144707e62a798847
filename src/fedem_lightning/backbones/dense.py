"""Networks of dense layers: linear, a perceptron, and a distribution over labels without features."""

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from fedem_lightning.backbones.layers import Redrawable, as_floats
from fedem_lightning.errors import require
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
        return self.linear(as_floats(x.flatten(1), self))


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
        return self.layers(as_floats(x.flatten(1), self))


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
        return self.logits(torch.ones_like(as_floats(x, self)))
