"""torchvision's networks with a new last layer."""

from typing import Any

import torchvision
from torch import nn

from fedem_lightning.errors import UserError
from fedem_lightning.records.recipes import recorded
from fedem_lightning.settings.ranges import PositiveInt


@recorded
def MobileNetV2(n_outputs: PositiveInt, pretrained: bool = False, frozen_body: bool = False) -> nn.Module:
    """MobileNet-v2 (Sandler et al. 2018) for colour images; 2,236,682 parameters for 10 classes.

    Args:
        n_outputs: number of outputs of the replaced last layer.
        pretrained: start from ImageNet's weights (downloaded by torchvision). If a function makes FedEM's components,
            they then differ at the start in their last layer only.
        frozen_body: only the last layer trains, and it alone is sent.

    """
    network = _load("mobilenet_v2", "MobileNet_V2_Weights", pretrained).requires_grad_(not frozen_body)
    network.classifier[-1] = nn.Linear(network.last_channel, n_outputs)
    return network


@recorded
def ResNet18(n_outputs: PositiveInt, pretrained: bool = False, frozen_body: bool = False) -> nn.Module:
    """ResNet-18 (He et al. 2016) for colour images.

    Args:
        n_outputs: number of outputs of the replaced last layer.
        pretrained: see `MobileNetV2`.
        frozen_body: only the last layer trains, and it alone is sent.

    """
    network = _load("resnet18", "ResNet18_Weights", pretrained).requires_grad_(not frozen_body)
    network.fc = nn.Linear(network.fc.in_features, n_outputs)
    return network


def _load(name: str, weights: str, pretrained: bool) -> Any:
    try:
        return torchvision.models.get_model(name, weights=f"{weights}.IMAGENET1K_V1" if pretrained else None)
    except OSError as error:  # URLError is one
        raise UserError(f"pretrained: cannot download the weights of {name} ({error})") from error
