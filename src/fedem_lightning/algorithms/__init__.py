"""Federated algorithms; `backbone`, `n_clients` and `options` of all are those of `FederatedAlgorithm`."""

from fedem_lightning.algorithms.apfl import APFL
from fedem_lightning.algorithms.clustered import Clustered
from fedem_lightning.algorithms.fair import AFL, QFFL, Agnostic
from fedem_lightning.algorithms.fedala import FedALA
from fedem_lightning.algorithms.fedavg import FedAvg, FedAvgEnsemble, FedProx, Local, Scaffold
from fedem_lightning.algorithms.fedem import FedEM, FedRC
from fedem_lightning.algorithms.fedfomo import FedFOMO
from fedem_lightning.algorithms.fedgmm import FedGMM
from fedem_lightning.algorithms.floral import FLoRAL
from fedem_lightning.algorithms.hypcluster import HypCluster, Mapper
from fedem_lightning.algorithms.l2sgd import L2SGD
from fedem_lightning.algorithms.mocha import MOCHA
from fedem_lightning.algorithms.partial_averaging import FedBABU, FedBN, FedPer, FedRep, LGFedAvg
from fedem_lightning.algorithms.per_fedavg import PerFedAvg
from fedem_lightning.algorithms.proximal import Ditto, PFedMe
from fedem_lightning.algorithms.surrogate import (
    DecentralizedSurrogateOptimization,
    DFedEM,
    MixtureSurrogate,
    Surrogate,
    SurrogateOptimization,
)
from fedem_lightning.algorithms.two_heads import FedProto, FedRoD
from fedem_lightning.algorithms.user_centric import Oracle, UserCentric
from fedem_lightning.module import FederatedAlgorithm

__all__ = [
    "AFL",
    "APFL",
    "L2SGD",
    "MOCHA",
    "QFFL",
    "Agnostic",
    "Clustered",
    "DFedEM",
    "DecentralizedSurrogateOptimization",
    "Ditto",
    "FLoRAL",
    "FedALA",
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
    "FederatedAlgorithm",
    "HypCluster",
    "LGFedAvg",
    "Local",
    "Mapper",
    "MixtureSurrogate",
    "Oracle",
    "PFedMe",
    "PerFedAvg",
    "Scaffold",
    "Surrogate",
    "SurrogateOptimization",
    "UserCentric",
]
