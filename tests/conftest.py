"""Fixtures and helpers; everything here is small enough to be worked out by hand or within a second."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytorch_lightning as pl
import torch

from fedem_lightning import FederatedAlgorithm, FederatedDataModule, Linear

if "PYTEST_XDIST_WORKER" in os.environ:  # several processes with several threads each slow one another down
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def make_data(
    sizes: tuple[int, ...] = (7, 12, 3, 20), n_classes: int = 3, n_features: int = 4, seed: int = 0, **options: Any
) -> FederatedDataModule:
    """Clients of the given numbers of samples, float64 features, labels from a linear rule with noise; two domains."""
    rng = np.random.default_rng(seed)
    client = np.repeat(np.arange(len(sizes)), sizes)
    x = rng.normal(size=(len(client), n_features))
    y = (x @ rng.normal(size=(n_features, n_classes)) + rng.normal(size=(len(client), n_classes))).argmax(axis=1)
    options = {"n_classes": n_classes, "domain": np.arange(len(client)) % 2, **options}
    return FederatedDataModule.from_arrays(x, y, client, **options)


def make_model(kind: type[FederatedAlgorithm], data: FederatedDataModule, **options: Any) -> FederatedAlgorithm:
    """An algorithm around one linear layer whose initial values are always the same."""
    torch.manual_seed(0)
    return kind(Linear(data.in_shape, data.n_outputs), n_clients=data.n_clients, **{"batch_size": 4, **options})


def make_trainer(rounds: int, precision: str = "64-true", **options: Any) -> pl.Trainer:
    """A quiet Trainer on the CPU."""
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    return pl.Trainer(
        max_epochs=rounds, accelerator="cpu", precision=precision, **{**quiet, "limit_val_batches": 0, **options}
    )


def train(model: FederatedAlgorithm, data: FederatedDataModule, rounds: int, **options: Any) -> FederatedAlgorithm:
    """Runs `rounds` rounds."""
    make_trainer(rounds, **options).fit(model, data)
    return model


def parameters(model: torch.nn.Module) -> torch.Tensor:
    """All parameters and buffers as one vector of float64."""
    return torch.cat([t.detach().double().flatten() for t in model.state_dict().values()])


@pytest.fixture(scope="session")
def data_folder() -> Callable[[str], Path]:
    """Finds real data under the folder that FEDEM_LIGHTNING_TEST_DATA names; skips the test where there is none."""

    def find(name: str) -> Path:
        root = os.environ.get("FEDEM_LIGHTNING_TEST_DATA")
        if not root:
            pytest.skip("FEDEM_LIGHTNING_TEST_DATA is not set: no real data here")
        path = Path(root) / name
        if not path.exists():
            pytest.skip(f"FEDEM_LIGHTNING_TEST_DATA has no {name}")
        return path

    return find
