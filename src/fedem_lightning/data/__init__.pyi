from .datamodule import FederatedDataModule, NpzDataModule
from .federation import Block, Federation
from .generated import DensityDataModule, SyntheticMixture
from .hub import HubDataModule
from .images import Digits, ImageDataModule, Shift
from .own_data import TaskOptions
from .own_folders import FolderDataModule, PFLlibDataModule
from .partitions import Partitioning
from .samples import Arrays, Domains, Windows
from .splits import HoldOut, OwnSplitting, Split, Splitting
from .table_features import TableFeatures
from .tables import TableDataModule
from .text import TextDataModule
from .torch_data import TorchDataModule

__all__ = [
    "Arrays",
    "Block",
    "DensityDataModule",
    "Digits",
    "Domains",
    "FederatedDataModule",
    "Federation",
    "FolderDataModule",
    "HoldOut",
    "HubDataModule",
    "ImageDataModule",
    "NpzDataModule",
    "OwnSplitting",
    "PFLlibDataModule",
    "Partitioning",
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
