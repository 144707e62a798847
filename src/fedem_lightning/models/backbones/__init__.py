"""Backbones: the networks used as components. Any other `nn.Module` from features to outputs can be used too."""

from fedem_lightning.models.backbones.layers import Dropout
from fedem_lightning.models.backbones.networks import (
    CNN,
    LSTM,
    MLP,
    Categorical,
    CharLSTM,
    LeNet5,
    Linear,
    MobileNetV2,
    ReferenceCNN,
    ResNet18,
)
from fedem_lightning.models.backbones.pretrained import LoRA, Pretrained

__all__ = [
    "CNN",
    "LSTM",
    "MLP",
    "Categorical",
    "CharLSTM",
    "Dropout",
    "LeNet5",
    "Linear",
    "LoRA",
    "MobileNetV2",
    "Pretrained",
    "ReferenceCNN",
    "ResNet18",
]
