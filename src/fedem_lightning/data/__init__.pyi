from fedem_lightning.data.block import Block
from fedem_lightning.data.datamodule import FederatedDataModule
from fedem_lightning.data.dealing import Dealing
from fedem_lightning.data.density import DensityDataModule
from fedem_lightning.data.federation import Federation
from fedem_lightning.data.hub import HubDataModule
from fedem_lightning.data.images import Digits, ImageDataModule
from fedem_lightning.data.own_data import TaskOptions
from fedem_lightning.data.own_datasets import TorchDataModule
from fedem_lightning.data.own_files import NpzDataModule, TableDataModule
from fedem_lightning.data.own_folders import FLBenchDataModule, PFLlibDataModule
from fedem_lightning.data.population import MixturePopulation
from fedem_lightning.data.samples import Arrays, Domains, Windows
from fedem_lightning.data.shifts import CropFlip, Shift
from fedem_lightning.data.splits import HoldOut, Split, Splitting
from fedem_lightning.data.synthetic import SyntheticMixture
from fedem_lightning.data.table_features import TableFeatures
from fedem_lightning.data.text import TextDataModule

__all__ = [
    "Arrays",
    "Block",
    "CropFlip",
    "Dealing",
    "DensityDataModule",
    "Digits",
    "Domains",
    "FLBenchDataModule",
    "FederatedDataModule",
    "Federation",
    "HoldOut",
    "HubDataModule",
    "ImageDataModule",
    "MixturePopulation",
    "NpzDataModule",
    "PFLlibDataModule",
    "Shift",
    "Split",
    "Splitting",
    "SyntheticMixture",
    "TableDataModule",
    "TableFeatures",
    "TaskOptions",
    "TextDataModule",
    "TorchDataModule",
    "Windows",
]
