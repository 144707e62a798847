"""Data sets in the folders of PFLlib, as its own generators save them."""

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
