from .adaptation import KNN, Adaptation, Dapper, Finetune, Interpolate
from .aggregation import Aggregation, Mean, Median, MultiKrum, NormClipping, PrivateMean, TrimmedMean, Update
from .algorithms.apfl import APFL
from .algorithms.clustered import Clustered
from .algorithms.fair import AFL, QFFL, Agnostic
from .algorithms.fedala import FedALA
from .algorithms.fedavg import FedAvg, FedAvgEnsemble, FedProx, Local
from .algorithms.fedem import FedEM
from .algorithms.fedfomo import FedFOMO
from .algorithms.fedgmm import FedGMM
from .algorithms.fedrc import FedRC
from .algorithms.floral import FLoRAL
from .algorithms.hypcluster import HypCluster, Mapper
from .algorithms.l2sgd import L2SGD
from .algorithms.mocha import MOCHA
from .algorithms.partial_averaging import FedBABU, FedBN, FedPer, FedRep, LGFedAvg
from .algorithms.per_fedavg import PerFedAvg
from .algorithms.proximal import Ditto, PFedMe
from .algorithms.scaffold import Scaffold
from .algorithms.surrogate import (
    DecentralizedSurrogateOptimization,
    DFedEM,
    MixtureSurrogate,
    Surrogate,
    SurrogateOptimization,
)
from .algorithms.two_heads import FedProto, FedRoD
from .algorithms.user_centric import Oracle, UserCentric
from .backbones import (
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
from .client_optimizers import ClientAdam, ClientAdamW, ClientOptimizer, ClientSGD
from .compression import Compression, EightBit, TopK
from .data import (
    CropFlip,
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
from .engine import AutoEngine, Engine, LoopEngine, VmapEngine
from .errors import UserError
from .faults import Faults, LabelFlip, NoAnswer, Scaling, SendNaN, SignFlip
from .models.client_model import ClientModel, ClientModels
from .models.embedded import embedded
from .module import FederatedAlgorithm
from .network import Network, ShiftedExponentialNetwork
from .run.python_runs import save_run
from .server_step import FedAdam, FedYogi
from .serving.model_files import load, load_clients
from .topology import Topology

__version__: str
from .local_solver import LocalStep, Step, near

__all__ = [
    "AFL",
    "APFL",
    "CNN",
    "KNN",
    "L2SGD",
    "LSTM",
    "MLP",
    "MOCHA",
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
    "Compression",
    "CropFlip",
    "DFedEM",
    "Dapper",
    "DecentralizedSurrogateOptimization",
    "DensityDataModule",
    "Digits",
    "Ditto",
    "Dropout",
    "EightBit",
    "Engine",
    "FLoRAL",
    "Faults",
    "FedALA",
    "FedAdam",
    "FedAvg",
    "FedAvgEnsemble",
    "FedBABU",
    "FedBN",
    "FedEM",
    "FedFOMO",
    "FedGMM",
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
    "MixtureSurrogate",
    "MobileNetV2",
    "MultiKrum",
    "Network",
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
    "SignFlip",
    "Step",
    "Surrogate",
    "SurrogateOptimization",
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
    "embedded",
    "load",
    "load_clients",
    "near",
    "save_run",
]
