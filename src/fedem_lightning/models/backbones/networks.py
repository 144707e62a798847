"""Networks of this package: linear, perceptrons, LSTMs of characters, networks of images, and torchvision's."""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
import torchvision
from torch import Tensor, nn

from fedem_lightning.models.backbones.layers import Dropout, Redrawable, as_floats
from fedem_lightning.settings.errors import UserError, require
from fedem_lightning.settings.ranges import Positive, PositiveInt, Shape
from fedem_lightning.settings.recipes import recorded


class Linear(Redrawable):
    """One linear layer on the flattened features; `in_shape` is the shape of a sample."""

    def __init__(self, in_shape: Shape, n_outputs: PositiveInt, bias: bool = True) -> None:
        super().__init__()
        self.linear = nn.Linear(math.prod(in_shape), n_outputs, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """Outputs: [B, *in_shape] -> [B, n_outputs]."""
        return self.linear(as_floats(x.flatten(1), self))


class MLP(Redrawable):
    """A perceptron on the flattened features (`in_shape`: of a sample), with ReLU and hidden layers of these widths."""

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
    """The logits of y, independent of x: a linear layer with the constant input 1, so that engines can stack it."""

    def __init__(self, in_shape: Shape = (1,), n_outputs: PositiveInt = 50) -> None:
        super().__init__()
        shape = tuple(in_shape)
        require(shape == (1,), f"in_shape: Categorical is for samples without features, (1,), got {shape}")
        self.logits = nn.Linear(1, n_outputs, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Logits: [B, 1] -> [B, n_outputs]."""
        return self.logits(torch.ones_like(as_floats(x, self)))


class LSTM(nn.LSTM):
    """`nn.LSTM` as matrix products, for one direction, without projection or dropout between layers.

    The fused kernels of `nn.LSTM` have no rule for `torch.func.vmap`, which would run them learner by learner. On a CPU
    this class is also faster under `torch.func.grad`. Parameters have the names and values of `nn.LSTM`.
    """

    def forward(  # type: ignore[override]
        self, input: Tensor, hx: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """As `nn.LSTM`: [B, L, in] (batch_first) or [L, B, in] or [L, in] -> outputs, (h, c) [layers, (B,) hidden]."""
        if not isinstance(input, Tensor):  # a PackedSequence
            return super().forward(input, hx)
        time_axis = 1 if self.batch_first and input.ndim == 3 else 0
        x = input.movedim(time_axis, 0)  # [L, (B,) in]
        start = x.new_zeros(self.num_layers, *x.shape[1:-1], self.hidden_size)
        h0, c0 = (start, start) if hx is None else hx
        last_h, last_c = [], []
        for k in range(self.num_layers):
            weights = [getattr(self, f"{name}_l{k}") for name in ("weight_ih", "weight_hh")]
            bias = getattr(self, f"bias_ih_l{k}") + getattr(self, f"bias_hh_l{k}") if self.bias else None
            gates = F.linear(x, weights[0], bias)  # of all positions, [L, (B,) 4 hidden]
            h, c, hidden = h0[k], c0[k], []
            for gate in gates.unbind(0):
                i, f, g, o = (gate + h @ weights[1].T).chunk(4, dim=-1)
                c = f.sigmoid() * c + i.sigmoid() * g.tanh()
                h = o.sigmoid() * c.tanh()
                hidden.append(h)
            x = torch.stack(hidden)  # [L, (B,) hidden]
            last_h.append(h)
            last_c.append(c)
        return x.movedim(0, time_axis), (torch.stack(last_h), torch.stack(last_c))


class CharLSTM(Redrawable):
    """The papers' model of Shakespeare: 819,920 parameters for 80 characters, which are both embedded and predicted.

    `in_shape` is (L,), the length of a window; any length is accepted.
    """

    def __init__(
        self,
        n_outputs: PositiveInt,
        in_shape: Shape | None = None,
        embedding: PositiveInt = 8,
        hidden: PositiveInt = 256,
        n_layers: PositiveInt = 2,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(n_outputs, embedding)
        self.lstm = LSTM(embedding, hidden, n_layers, batch_first=True)
        self.head = nn.Linear(hidden, n_outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Codes int64 [B, L] -> logits of the next character at every position [B, L, n_outputs]."""
        return self.head(self.lstm(self.embedding(x))[0])


class _Convolutional(Redrawable):
    features: nn.Module
    head: nn.Module

    def forward(self, x: Tensor) -> Tensor:
        """Logits: [B, channels, height, width] -> [B, n_outputs]."""
        return self.head(self.features(as_floats(x, self)).flatten(1))


class CNN(_Convolutional):
    """The CNN of the papers (Reddi et al. 2021; Mansour et al. 2020, Table 4); 1,206,590 parameters for 62 classes.

    `in_shape` is channels, height, width.
    """

    def __init__(self, n_outputs: PositiveInt, in_shape: Shape = (1, 28, 28)) -> None:
        super().__init__()
        channels, height, width = _image_shape("CNN", in_shape, at_least=6)
        self.features = nn.Sequential(
            nn.Conv2d(channels, 32, 3),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3),
            nn.MaxPool2d(2),
            nn.ReLU(),  # after the pooling: the same result with a quarter of the work
            Dropout(0.25, salt=1),
        )
        flat = 64 * ((height - 4) // 2) * ((width - 4) // 2)
        self.head = nn.Sequential(nn.Linear(flat, 128), nn.ReLU(), Dropout(0.5, salt=2), nn.Linear(128, n_outputs))


class ReferenceCNN(_Convolutional):
    """The CNN of the public FedEM code, without dropout; 2,278,334 parameters for 62 classes; arguments as `CNN`'s."""

    def __init__(self, n_outputs: PositiveInt, in_shape: Shape = (1, 28, 28)) -> None:
        super().__init__()
        channels, height, width = _image_shape("ReferenceCNN", in_shape, at_least=16)
        self.features = nn.Sequential(
            nn.Conv2d(channels, 32, 5),
            nn.MaxPool2d(2),
            nn.ReLU(),  # after the pooling: the same result with a quarter of the work
            nn.Conv2d(32, 64, 5),
            nn.MaxPool2d(2),
            nn.ReLU(),
        )
        flat = 64 * (((height - 4) // 2 - 4) // 2) * (((width - 4) // 2 - 4) // 2)
        self.head = nn.Sequential(nn.Linear(flat, 2048), nn.ReLU(), nn.Linear(2048, n_outputs))


class LeNet5(_Convolutional):
    """LeNet-5 (LeCun et al., "Gradient-based learning applied to document recognition", 1998).

    Two 5 x 5 convolutions with pooling, dense 120 and 84; 62,006 parameters for CIFAR-10. Images of 28 x 28 are padded
    to 32 x 32, as in the original: 66,126 parameters for EMNIST's 62 classes. `in_shape` is channels, height, width;
    `width` a factor of the numbers of channels and units, rounded: 1.75 gives about three times the parameters.
    """

    def __init__(self, n_outputs: PositiveInt, in_shape: Shape = (1, 28, 28), width: Positive = 1.0) -> None:
        super().__init__()
        channels, height, columns = _image_shape("LeNet5", in_shape, at_least=12)
        first, second, third, fourth = (max(1, round(width * n)) for n in (6, 16, 120, 84))
        pad = 2 if height < 32 else 0
        self.features = nn.Sequential(
            nn.ZeroPad2d(pad),
            nn.Conv2d(channels, first, 5),
            nn.MaxPool2d(2),
            nn.ReLU(),  # after the pooling: the same result with a quarter of the work
            nn.Conv2d(first, second, 5),
            nn.MaxPool2d(2),
            nn.ReLU(),
        )
        flat = second * (((height + 2 * pad - 4) // 2 - 4) // 2) * (((columns + 2 * pad - 4) // 2 - 4) // 2)
        self.head = nn.Sequential(
            nn.Linear(flat, third), nn.ReLU(), nn.Linear(third, fourth), nn.ReLU(), nn.Linear(fourth, n_outputs)
        )


def _image_shape(network: str, in_shape: Sequence[int], at_least: int) -> tuple[int, ...]:
    """Channels, height and width of a sample; UserError if samples are no images, or too small for the network."""
    shape = tuple(in_shape)
    wanted = f"images (channels, height, width) of {at_least} x {at_least} pixels or more"
    got = f"the samples have shape {shape}; backbone=linear and mlp take any"
    require(len(shape) == 3 and min(shape[1:]) >= at_least, f"backbone: {network} takes {wanted}, {got}")
    return shape


@recorded
def MobileNetV2(n_outputs: PositiveInt, pretrained: bool = False) -> nn.Module:
    """MobileNet-v2 (Sandler et al. 2018) for colour images; 2,236,682 parameters for 10 classes.

    `pretrained`: it starts from ImageNet's weights (downloaded by torchvision), but for the last layer, in which alone
    components that a function makes then differ at the start.
    """
    network = _of_torchvision("mobilenet_v2", pretrained)
    network.classifier[-1] = nn.Linear(network.last_channel, n_outputs)
    return network


@recorded
def ResNet18(n_outputs: PositiveInt, pretrained: bool = False) -> nn.Module:
    """ResNet-18 (He et al. 2016) for colour images; the arguments are those of `MobileNetV2`."""
    network = _of_torchvision("resnet18", pretrained)
    network.fc = nn.Linear(network.fc.in_features, n_outputs)
    return network


def _of_torchvision(name: str, pretrained: bool) -> Any:
    try:
        return torchvision.models.get_model(name, weights="IMAGENET1K_V1" if pretrained else None)
    except OSError as error:  # URLError is one
        raise UserError(f"pretrained: cannot download the weights of {name} ({error})") from error
