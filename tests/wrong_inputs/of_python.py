"""What people write in Python: the call, and what the line of its UserError says."""

import functools
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
from lightning_fabric.utilities.exceptions import MisconfigurationException
from pytorch_lightning.callbacks import ModelPruning
from torch import nn
from torch.utils.data import DataLoader

import fedem_lightning as fed
from fedem_lightning import FedAvg, FedEM, FederatedDataModule
from helpers.federations import make_data, make_trainer
from wrong_inputs.place import CLIENT, X, Y

LIGHTNINGS = (MisconfigurationException,)
"""What Lightning itself raises, with a line of its own."""
T = 4


def network(n_outputs: int = 2, n_features: int = 3) -> nn.Module:
    return nn.Sequential(nn.Linear(n_features, 5), nn.ReLU(), nn.Linear(5, n_outputs))


@functools.cache
def data() -> FederatedDataModule:
    return make_data(sizes=(12,) * T, n_classes=2, n_features=3)


@functools.cache
def trained() -> FedAvg:
    model, trainer = FedAvg(network(), T), make_trainer(1, "32-true")
    trainer.fit(model, data())
    trainer.test(model, data(), verbose=False)
    return model


def made(**options: Any) -> Any:
    """Data of arrays, some of them changed."""
    return FederatedDataModule.from_arrays(**{"x": X, "y": Y, "client": CLIENT, **options})


def fit(backbone: Any, given: Any = None, **options: Any) -> Any:
    make_trainer(1, "32-true").fit(FedAvg(backbone, T, **options), data() if given is None else given)


def trainer(**options: Any) -> Any:
    every = {"max_epochs": 1, "accelerator": "cpu", "logger": False, "enable_checkpointing": False, **options}
    pl.Trainer(**every, enable_progress_bar=False, enable_model_summary=False).fit(FedAvg(network(), T), data())


ROWS: dict[str, tuple[Any, str]] = {
    "no n_clients": (lambda: FedEM(network(), None), "FedEM.n_clients: expected a valid integer, got null"),
    "arguments swapped": (lambda: FedAvg(T, network()), "FedAvg.backbone: expected "),
    "class of adaptation": (lambda: FedAvg(network(), T, adaptation=fed.Finetune), "give an object, Finetune(...)"),
    "optimiser of torch": (
        lambda: FedAvg(network(), T, client_optimizer=torch.optim.SGD(network().parameters(), lr=0.1)),
        "client_optimizer: expected a client optimiser such as ClientSGD(lr=",
    ),
    "hidden as number": (lambda: fed.MLP((3,), 2, hidden=8), "MLP.hidden: expected "),
    "backbone without parameters": (lambda: FedAvg(nn.Identity(), T), "backbone: no parameter"),
    "lazy backbone": (lambda: FedAvg(nn.LazyLinear(2), T), "in Python whose shapes are known, got a LazyLinear"),
    "backbone of other features": (lambda: fit(network(2, 5)), "backbone: it does not take samples of shape (3,)"),
    "server optimiser by class": (lambda: FedAvg(network(), T, server_optimizer=torch.optim.SGD), "server_optimizer"),
    "fewer clients": (lambda: fit(network(), make_data(sizes=(12, 12), n_classes=2, n_features=3)), "n_clients: the"),
    "data for Lightning": (lambda: fit(network(), DataLoader([1])), "expected a FederatedDataModule"),
    "pruning": (lambda: trainer(callbacks=[ModelPruning("l1_unstructured", amount=0.5)]), "ModelPruning: "),
    "y one-hot": (lambda: made(y=np.eye(2)[Y]), "y: "),
    "no clients": (lambda: made(client=None), "client"),
    "federation in place of data": (lambda: FederatedDataModule(X), "federation: expected "),
    "model called": (lambda: trained()(torch.zeros(2, 3)), "model(x)"),
    "prediction by Lightning": (lambda: trained().predict(torch.zeros(2, 3)), "model.client(NAME).predict(x)"),
    "loader to predict": (lambda: make_trainer(1).predict(trained(), DataLoader([1])), "got an object of class DataLo"),
    "other features": (lambda: trained().client("0").predict(np.zeros((2, 5))), "x: expected shape [n, 3]"),
    "save over files": (lambda: fed.save_run(trained(), data(), "run"), "folder: run is not empty; choose another"),
}
