from .aggregate import Aggregation, Mean, Median, MultiKrum, NormClipping, PrivateMean, TrimmedMean, Update
from .aggregate.compression import Compression, EightBit, TopK
from .aggregate.faults import Faults, LabelFlip, NoAnswer, Scaling, SendNaN
from .aggregate.topology import Topology
from .comparison.comparing import Comparison, compare
from .data import (
    DensityDataModule,
    Digits,
    FederatedDataModule,
    Federation,
    FolderDataModule,
    HubDataModule,
    ImageDataModule,
    NpzDataModule,
    PFLlibDataModule,
    SyntheticMixture,
    TableDataModule,
    TextDataModule,
    TorchDataModule,
)
from .evaluate.adapt import KNN, Adaptation, Dapper, Finetune, Interpolate
from .local.engine import AutoEngine, Engine, LoopEngine, VmapEngine
from .local.optimizers import ClientAdam, ClientAdamW, ClientOptimizer, ClientSGD
from .local.server_step import FedAdam, FedYogi
from .methods.clustered import Clustered
from .methods.d_fedem import DFedEM
from .methods.dbe import FedDBE
from .methods.density import DensityFedEM
from .methods.fair import AFL, QFFL, Agnostic
from .methods.fedala import FedALA
from .methods.fedamp import FedAMP
from .methods.fedas import FedAS
from .methods.fedavg import FedAvg, FedAvgEnsemble, FedProx, Local, Scaffold
from .methods.fedcp import FedCP
from .methods.feddyn import FedDyn
from .methods.fedem import FedEM, FedRC
from .methods.fedfomo import FedFOMO
from .methods.fedgmm import FedGMM
from .methods.fedlc import FedLC
from .methods.fednova import FedNova
from .methods.fedpac import FedPAC
from .methods.feroma import FEROMA
from .methods.floral import FLoRAL
from .methods.gpfl import GPFL
from .methods.hypcluster import HypCluster, Mapper
from .methods.interpolated import APFL, L2SGD
from .methods.mocha import MOCHA
from .methods.moon import MOON
from .methods.partial_averaging import FedBABU, FedBN, FedPer, FedRep, LGFedAvg
from .methods.proximal import Ditto, PerFedAvg, PFedMe
from .methods.two_heads import FedProto, FedRoD
from .methods.user_centric import Oracle, UserCentric
from .models.backbones import (
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
)
from .models.embedded import embedded
from .models.personal_models import ClientModel, ClientModels
from .module.algorithm import FederatedAlgorithm
from .run.results import save_run
from .run.testing import check_algorithm
from .serving.model_files import load, load_clients
from .settings.errors import UserError
from .state.network import ShiftedExponentialNetwork

__version__: str
from .local.solver import LocalStep, Step, near

__all__ = [
    "AFL",
    "APFL",
    "CNN",
    "FEROMA",
    "GPFL",
    "KNN",
    "L2SGD",
    "LSTM",
    "MLP",
    "MOCHA",
    "MOON",
    "QFFL",
    "Adaptation",
    "Aggregation",
    "Agnostic",
    "AutoEngine",
    "Categorical",
    "CharLSTM",
    "ClientAdam",
    "ClientAdamW",
    "ClientModel",
    "ClientModels",
    "ClientOptimizer",
    "ClientSGD",
    "Clustered",
    "Comparison",
    "Compression",
    "DFedEM",
    "Dapper",
    "DensityDataModule",
    "DensityFedEM",
    "Digits",
    "Ditto",
    "Dropout",
    "EightBit",
    "Engine",
    "FLoRAL",
    "Faults",
    "FedALA",
    "FedAMP",
    "FedAS",
    "FedAdam",
    "FedAvg",
    "FedAvgEnsemble",
    "FedBABU",
    "FedBN",
    "FedCP",
    "FedDBE",
    "FedDyn",
    "FedEM",
    "FedFOMO",
    "FedGMM",
    "FedLC",
    "FedNova",
    "FedPAC",
    "FedPer",
    "FedProto",
    "FedProx",
    "FedRC",
    "FedRep",
    "FedRoD",
    "FedYogi",
    "FederatedAlgorithm",
    "FederatedDataModule",
    "Federation",
    "Finetune",
    "FolderDataModule",
    "HubDataModule",
    "HypCluster",
    "ImageDataModule",
    "Interpolate",
    "LGFedAvg",
    "LabelFlip",
    "LeNet5",
    "Linear",
    "LoRA",
    "Local",
    "LocalStep",
    "LoopEngine",
    "Mapper",
    "Mean",
    "Median",
    "MobileNetV2",
    "MultiKrum",
    "NoAnswer",
    "NormClipping",
    "NpzDataModule",
    "Oracle",
    "PFLlibDataModule",
    "PFedMe",
    "PerFedAvg",
    "Pretrained",
    "PrivateMean",
    "ReferenceCNN",
    "ResNet18",
    "Scaffold",
    "Scaling",
    "SendNaN",
    "ShiftedExponentialNetwork",
    "Step",
    "SyntheticMixture",
    "TableDataModule",
    "TextDataModule",
    "TopK",
    "Topology",
    "TorchDataModule",
    "TrimmedMean",
    "Update",
    "UserCentric",
    "UserError",
    "VmapEngine",
    "check_algorithm",
    "compare",
    "embedded",
    "load",
    "load_clients",
    "near",
    "save_run",
]
