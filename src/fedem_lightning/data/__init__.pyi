from fedem_lightning.data.datamodule import FederatedDataModule
from fedem_lightning.data.datasets.density import DensityDataModule
from fedem_lightning.data.datasets.images import Digits, ImageDataModule
from fedem_lightning.data.datasets.own_files import NpzDataModule, TableDataModule
from fedem_lightning.data.datasets.population import MixturePopulation
from fedem_lightning.data.datasets.synthetic import SyntheticMixture
from fedem_lightning.data.datasets.text import TextDataModule
from fedem_lightning.data.federation import Block, Federation
from fedem_lightning.data.own_data import TaskOptions
from fedem_lightning.data.partitions import Dealing
from fedem_lightning.data.samples import Arrays, Domains, Windows
from fedem_lightning.data.shifts import CropFlip, Shift
from fedem_lightning.data.splits import HoldOut, Split, Splitting
from fedem_lightning.data.table_features import TableFeatures

__all__ = [
    "Arrays",
    "Block",
    "CropFlip",
    "Dealing",
    "DensityDataModule",
    "Digits",
    "Domains",
    "FederatedDataModule",
    "Federation",
    "HoldOut",
    "ImageDataModule",
    "MixturePopulation",
    "NpzDataModule",
    "Shift",
    "Split",
    "Splitting",
    "SyntheticMixture",
    "TableDataModule",
    "TableFeatures",
    "TaskOptions",
    "TextDataModule",
    "Windows",
]
