"""Data sets in the folders of PFLlib and FL-bench, as their own generators save them."""

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np


def save_object(file: Path, content: Any) -> None:
    """A file of PFLlib: one Python object under `data`."""
    with file.open("wb") as opened:
        np.savez_compressed(opened, data=content)


def save_pfllib(folder: Path, x: np.ndarray, y: np.ndarray, client: np.ndarray, train: np.ndarray) -> Path:
    """train/0.npz, test/0.npz, ...: the dictionary x, y of each client; `train` is bool [n]."""
    for part, rows in (("train", train), ("test", ~train)):
        (folder / part).mkdir(parents=True)
        for t in range(client.max() + 1):
            own = rows & (t == client)
            save_object(folder / part / f"{t}.npz", {"x": x[own], "y": y[own]})
    (folder / "config.json").write_text("{}")
    return folder


def save_flbench(folder: Path, x: np.ndarray, y: np.ndarray, client: np.ndarray, train: np.ndarray) -> Path:
    """data.npy, targets.npy and partition.pkl."""
    folder.mkdir(exist_ok=True)
    np.save(folder / "data.npy", x)
    np.save(folder / "targets.npy", y)
    (folder / "partition.pkl").write_bytes(pickle.dumps(partition(client, train)))
    return folder


def partition(client: np.ndarray, train: np.ndarray, change: Callable[[Any], Any] = np.asarray) -> dict[str, Any]:
    """What partition.pkl holds; `change` makes the positions' arrays something else."""
    n_clients, indices = int(client.max()) + 1, []
    for t in range(n_clients):
        parts = {"train": train, "val": np.zeros_like(train), "test": ~train}
        indices.append({name: change(np.flatnonzero(rows & (t == client))) for name, rows in parts.items()})
    everybody = list(range(n_clients))
    return {
        "separation": {"train": everybody, "val": [], "test": everybody, "total": n_clients},
        "data_indices": indices,
    }
