"""Backbones: the networks used as components. Any other `nn.Module` from features to outputs can be used too."""

from fedem_lightning.backbones.categorical import Categorical
from fedem_lightning.backbones.cnn import CNN, ReferenceCNN
from fedem_lightning.backbones.dropout import Dropout
from fedem_lightning.backbones.lenet import LeNet5
from fedem_lightning.backbones.linear import Linear
from fedem_lightning.backbones.lstm import LSTM, CharLSTM
from fedem_lightning.backbones.mlp import MLP
from fedem_lightning.backbones.torchvision import MobileNetV2, ResNet18

__all__ = [
    "CNN",
    "LSTM",
    "MLP",
    "Categorical",
    "CharLSTM",
    "Dropout",
    "LeNet5",
    "Linear",
    "MobileNetV2",
    "ReferenceCNN",
    "ResNet18",
]
