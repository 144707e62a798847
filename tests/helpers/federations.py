"""Small federations, one linear layer, a quiet Trainer; all can be worked out by hand or within a second."""

from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch

from fedem_lightning import MLP, FedEM, FederatedAlgorithm, FederatedDataModule, Federation, Linear
from fedem_lightning.data.federation import Block
from fedem_lightning.data.samples import Arrays
from fedem_lightning.data.splits import Split


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


def torch_clients() -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """What `dataset=torch` takes from a user's function: samples by client."""
    x, y = torch.arange(120.0).view(30, 4) / 120, torch.arange(30) % 3
    return {name: (x[k::2], y[k::2]) for k, name in enumerate(("a", "b"))}


def stored(federation: Federation) -> Arrays:
    """Its samples, which are arrays."""
    assert isinstance(federation.samples, Arrays)
    return federation.samples


def split_of(federation: Federation, split: str) -> Split:
    """Where the samples of a split are."""
    found = federation.splits[split]
    assert isinstance(found, Split)
    return found


def spoil(data: FederatedDataModule, value: float, split: str = "train") -> None:
    """Puts a number into all features of client 0's first sample of a split."""
    stored(data.federation).x[split_of(data.federation, split).index[:1]] = value


def make_model(kind: type[FederatedAlgorithm], data: FederatedDataModule, hidden: Any = False, **options: Any) -> Any:
    """An algorithm around one linear layer (or one hidden layer of 5 units), whose initial values are always the same.

    FedEM starts as in the paper, unless the test says otherwise. The model comes back as Any: to mypy, whatever a
    module holds is `Tensor | Module`, and tests look at much of it.
    """
    torch.manual_seed(0)
    start = {"initialization": "random"} if issubclass(kind, FedEM) else {}
    network = MLP(data.in_shape, data.n_outputs, [5]) if hidden else Linear(data.in_shape, data.n_outputs)
    return kind(network, n_clients=data.n_clients, **{"batch_size": 4, **start, **options})


def make_trainer(rounds: int, precision: Any = "64-true", **options: Any) -> pl.Trainer:
    """A quiet Trainer, on the CPU unless `accelerator` says otherwise."""
    quiet = {
        "accelerator": "cpu",
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    return pl.Trainer(max_epochs=rounds, precision=precision, **{**quiet, "limit_val_batches": 0, **options})


def train(model: FederatedAlgorithm, data: FederatedDataModule, rounds: int, **options: Any) -> Any:
    """Runs `rounds` rounds; the model, as Any."""
    make_trainer(rounds, **options).fit(model, data)
    return model


def train_and_test(model: FederatedAlgorithm, data: FederatedDataModule, rounds: int, **options: Any) -> Any:
    """Runs `rounds` rounds, then scores all clients; the model, as Any."""
    trainer = make_trainer(rounds, **options)
    trainer.fit(model, data)
    trainer.test(model, data, verbose=False)
    return model


def table_of(model: FederatedAlgorithm, data: FederatedDataModule, precision: Any = "64-true") -> Any:
    """The clients' table."""
    make_trainer(0, precision).test(model, data, verbose=False)
    return model.clients


def block_of(data: FederatedDataModule, split: str = "train", t: int | None = None) -> Block:
    """The samples of client t, or of all clients."""
    return data.federation.block(torch.arange(data.n_clients) if t is None else torch.tensor([t]), split)


def models_of(model: FederatedAlgorithm) -> torch.Tensor:
    """The models that clients predict with, float64 [T, M D]."""
    models = model.personal_models(torch.arange(model.n_clients)).models.values()
    return torch.cat([rows.double().reshape(*rows.shape[:2], -1) for rows in models], dim=2).flatten(1)


def parameters(model: torch.nn.Module) -> torch.Tensor:
    """All parameters and buffers as one vector of float64."""
    return torch.cat([t.detach().double().flatten() for t in model.state_dict().values()])


def grouped(n_clients: int = 8, n_groups: int = 2, n: int = 60, **options: Any) -> FederatedDataModule:
    """Group g's labels are shifted by g; the true groups are known."""
    rng, client = np.random.default_rng(0), np.repeat(np.arange(n_clients), n)
    x = rng.normal(size=(len(client), 5))
    y = (x[:, :3].argmax(axis=1) + client % n_groups) % 3
    data = FederatedDataModule.from_arrays(x, y, client, n_classes=3, **options)
    data.federation.truth["group"] = np.arange(n_clients) % n_groups
    return data
