"""Backbones: the networks that serve as components. Any `nn.Module` from features to outputs will do as well."""

from fedem_lightning.backbones.cnn import CNN, ReferenceCNN
from fedem_lightning.backbones.dropout import Dropout
from fedem_lightning.backbones.linear import Linear
from fedem_lightning.backbones.mlp import MLP

__all__ = ["CNN", "MLP", "Dropout", "Linear", "ReferenceCNN"]
