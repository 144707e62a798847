"""What the calls share: small networks, data, Trainers and trained models."""

import functools
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from fedem_lightning import FedAvg, FederatedDataModule
from helpers.federations import make_data, make_trainer

T, FEATURES, CLASSES = 4, 4, 3


def network(n_outputs: int = CLASSES, n_features: int = FEATURES) -> nn.Module:
    """Two layers."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(n_features, 5), nn.ReLU(), nn.Linear(5, n_outputs))


@functools.cache
def data() -> FederatedDataModule:
    """Four clients of 12 samples each, float64."""
    return make_data(sizes=(12,) * T, n_classes=CLASSES, n_features=FEATURES)


def fit(model: Any, given: Any = None, rounds: int = 1, **options: Any) -> Any:
    """The model after `fit`."""
    make_trainer(rounds, "32-true", **options).fit(model, data() if given is None else given)
    return model


def vector(model: nn.Module) -> torch.Tensor:
    """All parameters as one vector."""
    return torch.cat([p.detach().double().flatten() for p in model.parameters()])


@functools.cache
def trained(kind: type = FedAvg) -> Any:
    """A model after a round and a test."""
    model, trainer = kind(network(), T), make_trainer(1, "32-true")
    trainer.fit(model, data())
    trainer.test(model, data(), verbose=False)
    return model


def saved(folder: Path, kind: type = FedAvg) -> Path:
    """The checkpoint of such a model."""
    path = folder / "model.ckpt"
    trained(kind).trainer.save_checkpoint(path)
    return path


def rows(n: int = 6) -> tuple[np.ndarray, np.ndarray]:
    """Samples and labels of a new client."""
    rng = np.random.default_rng(1)
    return rng.normal(size=(n, FEATURES)), rng.integers(CLASSES, size=n)
