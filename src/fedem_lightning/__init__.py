"""fedem-lightning: personalised federated learning in simulation, with FedEM at its core."""

from importlib.metadata import version as _version

from fedem_lightning.algorithms import FedAvg, FedEM, FederatedAlgorithm, Local
from fedem_lightning.backbones import (
    CNN,
    LSTM,
    MLP,
    CharLSTM,
    Dropout,
    LeNet5,
    Linear,
    MobileNetV2,
    ReferenceCNN,
    ResNet18,
)
from fedem_lightning.data import (
    CropFlip,
    Digits,
    FederatedDataModule,
    Federation,
    ImageFederation,
    MixturePopulation,
    NpzFederation,
    SyntheticMixture,
    TextFederation,
)
from fedem_lightning.engine import AutoEngine, Engine, LoopEngine, VmapEngine
from fedem_lightning.errors import UserError
from fedem_lightning.local_solver import ClientSGD

__version__ = _version("fedem-lightning")

__all__ = [
    "CNN",
    "LSTM",
    "MLP",
    "AutoEngine",
    "CharLSTM",
    "ClientSGD",
    "CropFlip",
    "Digits",
    "Dropout",
    "Engine",
    "FedAvg",
    "FedEM",
    "FederatedAlgorithm",
    "FederatedDataModule",
    "Federation",
    "ImageFederation",
    "LeNet5",
    "Linear",
    "Local",
    "LoopEngine",
    "MixturePopulation",
    "MobileNetV2",
    "NpzFederation",
    "ReferenceCNN",
    "ResNet18",
    "SyntheticMixture",
    "TextFederation",
    "UserError",
    "VmapEngine",
]
