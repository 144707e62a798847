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
    "batch_size of 0": (lambda: FedAvg(network(), T, batch_size=0), "FedAvg.batch_size: expected a number greater"),
    "n_clients as text": (lambda: FedAvg(network(), "4"), "FedAvg.n_clients: expected a valid integer, got '4'"),
    "no n_clients": (lambda: FedEM(network(), None), "FedEM.n_clients: expected a valid integer, got null"),
    "arguments swapped": (lambda: FedAvg(T, network()), "FedAvg.backbone: expected "),
    "share of 2": (lambda: FedAvg(network(), T, personalize_fraction=2.0), "personalize_fraction: expected a number"),
    "class of adaptation": (lambda: FedAvg(network(), T, adaptation=fed.Finetune), "give an object, Finetune(...)"),
    "class of aggregation": (lambda: FedAvg(network(), T, aggregation=fed.Median), "got the class Median; give an"),
    "class of optimiser": (lambda: FedAvg(network(), T, client_optimizer=fed.ClientSGD), "got the class ClientSGD"),
    "optimiser of torch": (
        lambda: FedAvg(network(), T, client_optimizer=torch.optim.SGD(network().parameters(), lr=0.1)),
        "client_optimizer: expected a client optimiser such as ClientSGD(lr=",
    ),
    "engine by name": (lambda: FedAvg(network(), T, engine=3), "FedAvg.engine: expected "),
    "networks as list": (lambda: FedAvg(network(), T, networks=[1]), "FedAvg.networks: expected a valid dictionary"),
    "lr of 0": (lambda: fed.ClientSGD(lr=0.0), "ClientSGD.lr: expected a number greater than 0, got 0.0"),
    "momentum of 1": (lambda: fed.ClientSGD(lr=0.1, momentum=1.0), "ClientSGD.momentum: expected a number less than 1"),
    "betas of 1": (lambda: fed.ClientAdam(betas=(0.9, 1.0)), "ClientAdam.betas: expected "),
    "factor below 0": (lambda: fed.SignFlip(factor=-1), "SignFlip.factor: expected a number greater than 0, got -1"),
    "neighbours of 0": (lambda: fed.KNN(neighbours=0), "KNN.neighbours: expected "),
    "shares over 1": (lambda: fed.Dapper(lambdas=(0.5, 1.5)), "Dapper.lambdas: expected "),
    "graph misspelt": (lambda: fed.Topology(graph="rign"), "Topology.graph: expected 'erdos_renyi'"),
    "hidden as number": (lambda: fed.MLP((3,), 2, hidden=8), "MLP.hidden: expected "),
    "no hidden units": (lambda: fed.MLP((3,), 2, hidden=[0]), "MLP.hidden: expected a number greater than or equal"),
    "data of no clients": (lambda: fed.SyntheticMixture(n_clients=0), "SyntheticMixture.n_clients: expected a number"),
    "one component for each": (lambda: FedEM(network(), T, n_components=0), "FedEM.n_components: expected a number"),
    "start misspelt": (lambda: FedEM(network(), T, initialization="randm"), "did you mean random?"),
    "no backbone": (lambda: FedAvg(None, T), "FedAvg.backbone: expected "),
    "backbone by name": (lambda: FedAvg("cnn", T), "FedAvg.backbone: expected "),
    "backbone that returns None": (lambda: FedAvg(lambda: None, T), "backbone: the function returned None"),
    "backbone without parameters": (lambda: FedAvg(nn.Identity(), T), "backbone: no parameter"),
    "lazy backbone": (lambda: FedAvg(nn.LazyLinear(2), T), "backbone: LazyLinear has no shape yet"),
    "backbone of other features": (lambda: fit(network(2, 5)), "backbone: it does not take samples of shape (3,)"),
    "backbone of other outputs": (lambda: fit(network(3)), "backbone: Classification needs 2 outputs"),
    "softmax at the end": (lambda: fit(nn.Sequential(network(), nn.Softmax(-1))), "outputs are probabilities"),
    "server optimiser by class": (lambda: FedAvg(network(), T, server_optimizer=torch.optim.SGD), "server_optimizer"),
    "fewer clients": (lambda: fit(network(), make_data(sizes=(12, 12), n_classes=2, n_features=3)), "n_clients: the"),
    "data for Lightning": (lambda: fit(network(), DataLoader([1])), "expected a FederatedDataModule"),
    "federation alone": (lambda: fit(network(), data().federation), "expected a FederatedDataModule"),
    "pruning": (lambda: trainer(callbacks=[ModelPruning("l1_unstructured", amount=0.5)]), "ModelPruning: "),
    "x with NaN": (lambda: made(x=np.where(X > 1, np.nan, X)), "x: NaN or infinity in "),
    "x of words": (lambda: made(x=X.astype(str)), "x: expected numbers, got dtype <U"),
    "y that is shorter": (lambda: made(y=Y[:-1]), "y: expected shape (40,) as x has, got (39,)"),
    "y one-hot": (lambda: made(y=np.eye(2)[Y]), "y: "),
    "no clients": (lambda: made(client=None), "client"),
    "two fractions": (lambda: made(fractions=(0.8, 0.2)), "fractions: expected train > 0, val >= 0, test >= 0"),
    "partition misspelt": (lambda: made(client=None, partition="dirichelt", n_clients=4), "partition"),
    "unseen nobody": (lambda: made(unseen=["nobody"]), "unseen: no client is named nobody"),
    "federation in place of data": (lambda: FederatedDataModule(X), "federation: expected "),
    "file that is not there": (lambda: fed.NpzDataModule("none.npz"), "path: no file none.npz"),
    "model called": (lambda: trained()(torch.zeros(2, 3)), "model(x)"),
    "prediction by Lightning": (lambda: trained().predict(torch.zeros(2, 3)), "model.client(NAME).predict(x)"),
    "loader to predict": (lambda: make_trainer(1).predict(trained(), DataLoader([1])), "got an object of class DataLo"),
    "unknown client": (lambda: trained().client("nobody"), "client"),
    "client of a new model": (lambda: FedAvg(network(), T).client("0"), "has not been trained"),
    "known client again": (lambda: trained().personalize(X, Y, name="0"), "client: 0 took part in training"),
    "other features": (lambda: trained().client("0").predict(np.zeros((2, 5))), "x: expected shape [n, 3]"),
    "load from nowhere": (lambda: fed.load("nowhere"), "nowhere: no such run or file"),
    "load a text": (lambda: fed.load("mine.txt"), "mine.txt is no intact checkpoint"),
    "save untested": (lambda: fed.save_run(FedAvg(network(), T), data(), "new"), "model: it has no scores yet"),
    "save over files": (lambda: fed.save_run(trained(), data(), "run"), "folder: run is not empty; choose another"),
}
