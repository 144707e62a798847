"""fedem-lightning: personalised federated learning in simulation, with FedEM at its core."""

from importlib.metadata import version as _version

from fedem_lightning.algorithms import FedAvg, FedEM, FederatedAlgorithm, Local
from fedem_lightning.backbones import CNN, MLP, Dropout, Linear, ReferenceCNN
from fedem_lightning.data import Digits, FederatedDataModule, Federation, NpzFederation, SyntheticMixture
from fedem_lightning.engine import AutoEngine, Engine, LoopEngine, VmapEngine
from fedem_lightning.errors import UserError
from fedem_lightning.local_solver import ClientSGD

__version__ = _version("fedem-lightning")

__all__ = [
    "CNN",
    "MLP",
    "AutoEngine",
    "ClientSGD",
    "Digits",
    "Dropout",
    "Engine",
    "FedAvg",
    "FedEM",
    "FederatedAlgorithm",
    "FederatedDataModule",
    "Federation",
    "Linear",
    "Local",
    "LoopEngine",
    "NpzFederation",
    "ReferenceCNN",
    "SyntheticMixture",
    "UserError",
    "VmapEngine",
]
