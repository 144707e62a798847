"""Federated algorithms, one file each."""

from fedem_lightning.algorithms.base import FederatedAlgorithm
from fedem_lightning.algorithms.fedavg import FedAvg
from fedem_lightning.algorithms.fedem import FedEM
from fedem_lightning.algorithms.local import Local

__all__ = ["FedAvg", "FedEM", "FederatedAlgorithm", "Local"]
