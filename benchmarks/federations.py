"""Federations for studies of many methods, by name: real data, shifts of the digits, and generated mixtures.

DATA is a folder with femnist, cifar10, un_votes, politeness_raters, wisdm and heart_hospitals
(docs/reproduction/real_data.md).
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.datasets import load_digits

import fedem_lightning as fl

Source = Callable[[int], fl.FederatedDataModule]
"""A function from a seed to the data."""


def federations(data: Path) -> dict[str, tuple[Source, dict[str, Any]]]:
    """The federations by name: a function from a seed to the data, and options of `compare`."""
    network = {"overrides": ["backbone=mlp", "backbone.hidden=[64]"]}
    result: dict[str, tuple[Source, dict[str, Any]]] = {}
    result["digits, Dirichlet 0.4"] = (lambda seed: fl.Digits(20, alpha=0.4, seed=seed), network)
    result["digits, alike"] = (lambda seed: fl.Digits(20, alpha=1000.0, seed=seed), network)
    for shift in ("rotation", "labels", "inversion"):
        result[f"digits, {shift} of 3 groups"] = (_shifted(shift), network)
    result["wisdm"] = (lambda seed: _table(data / "wisdm", [], seed, missing="median"), {})
    result["hearts"] = (
        lambda seed: _table(data / "heart_hospitals", ["num"], seed, missing="median", task="binary"),
        {},
    )
    result["un_votes, 60 members"] = (lambda seed: _texts(data / "un_votes", 60, 400, seed), {})
    result["raters, 60"] = (lambda seed: _texts(data / "politeness_raters", 60, 400, seed), {})
    for alpha in (0.1, 0.4, 10.0):
        result[f"synthetic, alpha {alpha}"] = (_synthetic(alpha), {})
    result["femnist, 50 writers"] = (lambda seed: _writers(data / "femnist/femnist.npz", 50, seed), network)
    for kind in ("Dirichlet 0.1", "2 classes each"):
        result[f"cifar10, {kind}"] = (_cifar10(data / "cifar10/cifar10.npz", kind), network)
    return result


def _synthetic(alpha: float) -> Source:
    return lambda seed: fl.SyntheticMixture(40, dimension=20, alpha=alpha, test_size=500, seed=seed)


def _shifted(shift: str) -> Source:
    """Digits dealt evenly to 20 clients in three groups, of which two see them rotated, or inverted, or renamed."""
    images, y = load_digits(return_X_y=True)
    x, client = images.reshape(-1, 8, 8) / 16, np.random.default_rng(0).permutation(len(y)) % 20
    for group in (1, 2):
        mine = client % 3 == group
        if shift == "rotation":
            x[mine] = np.rot90(x[mine], group, axes=(1, 2))
        elif shift == "inversion":
            x[mine] = 1 - x[mine] if group == 1 else x[mine][:, :, ::-1]
        else:
            y[mine] = np.random.default_rng(group).permutation(10)[y[mine]]
    x = x.reshape(len(y), 64).astype(np.float32)
    return lambda seed: fl.FederatedDataModule.from_arrays(x, y, client, seed=seed)


def _table(folder: Path, without: list[str], seed: int, **options: Any) -> fl.FederatedDataModule:
    frame = pd.read_parquet(folder / "data.parquet")
    columns = [str(name) for name in frame if name not in ("client", "label", "split", *without)]
    return fl.TableDataModule(folder / "data.parquet", "label", "client", features=columns, seed=seed, **options)


def _texts(folder: Path, n_clients: int, most: int, seed: int) -> fl.FederatedDataModule:
    """Votes, or ratings, on the embeddings of texts; a text is in one split for all clients."""
    frame, rng = pd.read_parquet(folder / "data.parquet"), np.random.default_rng(0)
    chosen = rng.permutation(sorted(frame["client"].unique()))[:n_clients]
    frame = frame[frame["client"].isin(chosen)].sample(frac=1, random_state=0).groupby("client").head(most)
    emb = np.load(folder / "minilm384.npz")["emb"].astype(np.float32)
    draw = np.random.default_rng([seed, 5]).random(len(emb))[frame["item"].to_numpy()]
    split = np.select([draw < 0.6, draw < 0.8], [0, 1], 2)
    y, client = frame["label"].astype(str).to_numpy(), frame["client"].astype(str).to_numpy()
    return fl.FederatedDataModule.from_arrays(emb[frame["item"].to_numpy()], y, client, split=split, seed=seed)


def _writers(path: Path, n_clients: int, seed: int) -> fl.FederatedDataModule:
    file = np.load(path)
    counts = np.bincount(file["client"])
    chosen = np.random.default_rng(0).permutation(np.flatnonzero(counts >= 100))[:n_clients]
    mine = np.isin(file["client"], chosen)
    x = file["x"][mine].reshape(-1, 784).astype(np.float32) / 255
    client = np.unique(file["client"][mine], return_inverse=True)[1]
    return fl.FederatedDataModule.from_arrays(x, file["y"][mine], client, seed=seed)


def _cifar10(path: Path, kind: str, n_clients: int = 20, n: int = 6000) -> Source:
    """n images at 16 x 16 pixels; each class is dealt by a Dirichlet distribution, or a client has two shards."""

    def source(seed: int) -> fl.FederatedDataModule:
        file = np.load(path)
        chosen = np.random.default_rng(0).permutation(len(file["y"]))[:n]
        x = file["x"][chosen].reshape(n, 16, 2, 16, 2, 3).mean(axis=(2, 4)).reshape(n, -1).astype(np.float32) / 255
        y, client = file["y"][chosen].astype(np.int64), np.zeros(n, dtype=np.int64)
        rng = np.random.default_rng(1)
        if kind == "2 classes each":
            shards, owner = np.array_split(np.argsort(y, kind="stable"), 2 * n_clients), rng.permutation(2 * n_clients)
            for shard, t in zip(shards, owner % n_clients, strict=True):
                client[shard] = t
        else:
            for label in range(10):
                rows = np.flatnonzero(y == label)
                client[rows] = rng.choice(n_clients, len(rows), p=rng.dirichlet(np.full(n_clients, 0.1)))
        enough = np.bincount(client, minlength=n_clients)[client] >= 10
        return fl.FederatedDataModule.from_arrays(x[enough], y[enough], client[enough], seed=seed)

    return source
