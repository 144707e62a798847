from fedem_lightning import algorithms
from fedem_lightning.adaptation import KNN, Adaptation, Dapper, Finetune, Interpolate
from fedem_lightning.aggregation import Aggregation, Mean, Median, MultiKrum, NormClipping, PrivateMean, TrimmedMean
from fedem_lightning.algorithms import *  # noqa: F403 - a new algorithm is listed there alone
from fedem_lightning.algorithms.e_step import EStep
from fedem_lightning.algorithms.server_optimizers import FedAdagrad, FedAdam, FedYogi
from fedem_lightning.backbones import (
    CNN,
    LSTM,
    MLP,
    Categorical,
    CharLSTM,
    Dropout,
    LeNet5,
    Linear,
    LoRA,
    MobileNetV2,
    Pretrained,
    ReferenceCNN,
    ResNet18,
    TimmModel,
    Transformer,
)
from fedem_lightning.client_optimizers import ClientAdam, ClientAdamW, ClientOptimizer, ClientSGD
from fedem_lightning.compression import Compression, EightBit, TopK
from fedem_lightning.data import (
    CropFlip,
    DensityDataModule,
    Digits,
    FederatedDataModule,
    Federation,
    FLBenchDataModule,
    HubDataModule,
    ImageDataModule,
    MixturePopulation,
    NpzDataModule,
    PFLlibDataModule,
    SyntheticMixture,
    TableDataModule,
    TextDataModule,
    TorchDataModule,
)
from fedem_lightning.engine import AutoEngine, Engine, LoopEngine, VmapEngine
from fedem_lightning.errors import UserError
from fedem_lightning.faults import Faults, LabelFlip, NoAnswer, Scaling, SendNaN, SignFlip
from fedem_lightning.models.client_model import ClientModel, ClientModels
from fedem_lightning.network import DeviceNetwork, Network, ShiftedExponentialNetwork
from fedem_lightning.run.python_runs import save_run
from fedem_lightning.serving.model_files import load, load_clients
from fedem_lightning.topology import Topology

__version__: str

__all__ = [
    "CNN",
    "KNN",
    "LSTM",
    "MLP",
    "Adaptation",
    "Aggregation",
    "AutoEngine",
    "Categorical",
    "CharLSTM",
    "ClientAdam",
    "ClientAdamW",
    "ClientModel",
    "ClientModels",
    "ClientOptimizer",
    "ClientSGD",
    "Compression",
    "CropFlip",
    "Dapper",
    "DensityDataModule",
    "DeviceNetwork",
    "Digits",
    "Dropout",
    "EStep",
    "EightBit",
    "Engine",
    "FLBenchDataModule",
    "Faults",
    "FedAdagrad",
    "FedAdam",
    "FedYogi",
    "FederatedDataModule",
    "Federation",
    "Finetune",
    "HubDataModule",
    "ImageDataModule",
    "Interpolate",
    "LabelFlip",
    "LeNet5",
    "Linear",
    "LoRA",
    "LoopEngine",
    "Mean",
    "Median",
    "MixturePopulation",
    "MobileNetV2",
    "MultiKrum",
    "Network",
    "NoAnswer",
    "NormClipping",
    "NpzDataModule",
    "PFLlibDataModule",
    "Pretrained",
    "PrivateMean",
    "ReferenceCNN",
    "ResNet18",
    "Scaling",
    "SendNaN",
    "ShiftedExponentialNetwork",
    "SignFlip",
    "SyntheticMixture",
    "TableDataModule",
    "TextDataModule",
    "TimmModel",
    "TopK",
    "Topology",
    "TorchDataModule",
    "Transformer",
    "TrimmedMean",
    "UserError",
    "VmapEngine",
    "load",
    "load_clients",
    "save_run",
]
__all__ += algorithms.__all__
