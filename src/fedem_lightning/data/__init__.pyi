from fedem_lightning.data.augmentation import CropFlip
from fedem_lightning.data.datamodule import FederatedDataModule
from fedem_lightning.data.density import DensityFederation
from fedem_lightning.data.digits import Digits
from fedem_lightning.data.federation import Block, Domains, Federation
from fedem_lightning.data.images import ImageFederation
from fedem_lightning.data.npz import NpzFederation
from fedem_lightning.data.population import MixturePopulation
from fedem_lightning.data.positions import Split
from fedem_lightning.data.samples import Arrays, Windows
from fedem_lightning.data.synthetic import SyntheticMixture
from fedem_lightning.data.text import TextFederation

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
