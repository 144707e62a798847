from fedem_lightning.data.augmentation import CropFlip
from fedem_lightning.data.datamodule import FederatedDataModule
from fedem_lightning.data.datasets.density import DensityFederation
from fedem_lightning.data.datasets.digits import Digits
from fedem_lightning.data.datasets.images import ImageFederation
from fedem_lightning.data.datasets.npz import NpzFederation
from fedem_lightning.data.datasets.population import MixturePopulation
from fedem_lightning.data.datasets.synthetic import SyntheticMixture
from fedem_lightning.data.datasets.text import TextFederation
from fedem_lightning.data.federation import Block, Domains, Federation
from fedem_lightning.data.positions import Split
from fedem_lightning.data.samples import Arrays, Windows

__all__ = [
    "Arrays",
    "Block",
    "CropFlip",
    "DensityFederation",
    "Digits",
    "Domains",
    "FederatedDataModule",
    "Federation",
    "ImageFederation",
    "MixturePopulation",
    "NpzFederation",
    "Split",
    "SyntheticMixture",
    "TextFederation",
    "Windows",
]
