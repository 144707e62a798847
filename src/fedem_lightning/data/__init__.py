"""Federations: where their samples come from, and how they are cut into clients and splits."""

from fedem_lightning.data.datamodule import FederatedDataModule
from fedem_lightning.data.digits import Digits
from fedem_lightning.data.federation import Block, Federation, Split
from fedem_lightning.data.npz import NpzFederation
from fedem_lightning.data.synthetic import SyntheticMixture

__all__ = ["Block", "Digits", "FederatedDataModule", "Federation", "NpzFederation", "Split", "SyntheticMixture"]
