"""Networks of images: those of the papers and of the public FedEM code, LeNet-5, and torchvision's."""

from collections.abc import Sequence
from typing import Any

import torchvision
from torch import Tensor, nn

from fedem_lightning.models.backbones.layers import Dropout, Redrawable, as_floats
from fedem_lightning.settings.errors import UserError, require
from fedem_lightning.settings.ranges import Positive, PositiveInt, Shape
from fedem_lightning.settings.recipes import recorded


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
    """The CNN of the public FedEM code, without dropout; 2,278,334 parameters for 62 classes.

    `in_shape` is channels, height, width.
    """

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
    to 32 x 32, as in the original: 66,126 parameters for EMNIST's 62 classes.

    Args:
        n_outputs: number of outputs.
        in_shape: channels, height, width.
        width: factor of the numbers of channels and units, rounded; 1.75 gives about three times the parameters.

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

    Args:
        n_outputs: number of outputs of the replaced last layer.
        pretrained: start from ImageNet's weights (downloaded by torchvision). If a function makes FedEM's components,
            they then differ at the start in their last layer only.

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
