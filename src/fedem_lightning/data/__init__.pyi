from fedem_lightning.data.augmentation import CropFlip
from fedem_lightning.data.datamodule import FederatedDataModule
from fedem_lightning.data.datasets.density import DensityDataModule
from fedem_lightning.data.datasets.digits import Digits
from fedem_lightning.data.datasets.images import ImageDataModule
from fedem_lightning.data.datasets.npz import NpzDataModule
from fedem_lightning.data.datasets.population import MixturePopulation
from fedem_lightning.data.datasets.synthetic import SyntheticMixture
from fedem_lightning.data.datasets.table import TableDataModule
from fedem_lightning.data.datasets.text import TextDataModule
from fedem_lightning.data.features import TableFeatures
from fedem_lightning.data.federation import Block, Domains, Federation
from fedem_lightning.data.positions import Split
from fedem_lightning.data.samples import Arrays, Windows

__all__ = [
    "Arrays",
    "Block",
    "CropFlip",
    "DensityDataModule",
    "Digits",
    "Domains",
    "FederatedDataModule",
    "Federation",
    "ImageDataModule",
    "MixturePopulation",
    "NpzDataModule",
    "Split",
    "SyntheticMixture",
    "TableDataModule",
    "TableFeatures",
    "TextDataModule",
    "Windows",
]
