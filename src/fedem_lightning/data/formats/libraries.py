"""Folders of data sets that other libraries for federated learning have dealt to clients: PFLlib's and FL-bench's.

Both hold pickles, of which only arrays, dictionaries, lists and numbers are read (`formats.pickles`).
"""

from pathlib import Path
from typing import Any

import numpy as np

from fedem_lightning.data.formats import check_file, files_in, reading
from fedem_lightning.data.formats.npz import read_npy, read_object
from fedem_lightning.data.formats.pickles import numbers, plain
from fedem_lightning.data.gathering import Part, checked, joined
from fedem_lightning.data.splits import SPLITS
from fedem_lightning.errors import require

SHOWN = 3
"""How many names a message lists."""


def read_pfllib(folder: Path) -> dict[str, np.ndarray]:
    """PFLlib's train/0.npz, test/0.npz, ...: a file for each client, with a pickled dictionary x, y under `data`.

    Returns:
        x, y, client, names and split; first the training samples client by client, then the test samples.

    Raises:
        UserError: a file is missing or broken, or asks for code; samples do not fit together, or a client has none.

    """
    require(folder.is_dir(), f"path: no folder {folder}")
    expected = "expected PFLlib's folder of a data set, with the folders train and test"
    lacking = [part for part in ("train", "test") if not (folder / part).is_dir()]
    require(not lacking, f"path: {folder} has no folder {' and no '.join(lacking)}; {expected}")
    found = {part: {file.stem: file for file in files_in(folder / part, ".npz")} for part in ("train", "test")}
    require(bool(found["train"]), f"path: no .npz file in {folder / 'train'}; {expected}")
    for part, other in (("train", "test"), ("test", "train")):
        alone = sorted(found[part].keys() - found[other].keys(), key=_order)
        listed = ", ".join(f"{name}.npz" for name in alone[:SHOWN])
        require(not alone, f"path: {folder / other} lacks {listed}, which {part} has")
    names = sorted(found["train"], key=_order)
    parts = {split: [_pfllib_client(files[name]) for name in names] for split, files in found.items()}
    everything = [*parts["train"], *parts["test"]]
    counts = [len(part.y) for part in everything]
    return {
        "x": joined("x", everything),
        "y": joined("y", everything),
        "client": np.repeat(np.tile(np.arange(len(names)), 2), counts),
        "names": np.array(names),
        "split": np.repeat(np.repeat(np.array([0, 2], dtype=np.int8), len(names)), counts),
    }


def _order(name: str) -> tuple[int, str]:
    """Numbers by size, then other names by alphabet."""
    return (int(name), "") if name.isdecimal() and len(name) < 10 else (10**10, name)


def _pfllib_client(file: Path) -> Part:
    said = f"path: {file}"
    content = read_object(file, "data")
    known = isinstance(content, dict) and {"x", "y"} <= content.keys()
    require(known, f"{said}: expected a dictionary with x and y under data")
    return checked(Part(said, numbers(f"{said}: x", content["x"]), numbers(f"{said}: y", content["y"])))


def read_flbench(folder: Path) -> dict[str, np.ndarray]:
    """FL-bench's data.npy, targets.npy and partition.pkl, the positions of each client's samples by split.

    Returns:
        x, y, client, names and split of the samples that a client has, in the order of data.npy.

    Raises:
        UserError: a file is missing or broken, or asks for code; a sample has two clients, a client none.

    """
    require(folder.is_dir(), f"path: no folder {folder}")
    needed = ("data.npy", "targets.npy", "partition.pkl")
    lacking = [name for name in needed if not (folder / name).is_file()]
    own = "FL-bench writes them for femnist, celeba and synthetic, and keeps its other data sets elsewhere"
    require(not lacking, f"path: {folder} lacks {', '.join(lacking)}; {own}")
    x, y = (read_npy(folder / name) for name in needed[:2])
    checked(Part(f"path: {folder}", x, y))
    client, split, n_clients = _positions(folder / "partition.pkl", len(x))
    y = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
    owned = client >= 0
    arrays = {"x": x, "y": y, "client": client, "split": split}
    if not owned.all():
        arrays = {name: array[owned] for name, array in arrays.items()}
    return arrays | {"names": np.array([str(t) for t in range(n_clients)])}


def _positions(file: Path, n: int) -> tuple[np.ndarray, np.ndarray, int]:
    """The client of each of n samples, or -1, its split, and the number of clients."""
    check_file(file)
    with reading(file, "a pickle of arrays"):
        content = plain(file.read_bytes(), file.name)
    clients: Any = content.get("data_indices") if isinstance(content, dict) else None
    require(
        isinstance(clients, list) and bool(clients), f"path: {file}: expected a dictionary with a list data_indices"
    )
    client, split = np.full(n, -1, dtype=np.int64), np.zeros(n, dtype=np.int8)
    for t, parts in enumerate(clients):
        said = f"path: {file}: client {t}"
        known = isinstance(parts, dict) and {"train", "test"} <= parts.keys()
        require(known, f"{said}: expected a dictionary with train, test and maybe val")
        n_own = 0
        for code, name in enumerate(SPLITS):
            at = numbers(f"{said}: {name}", parts.get(name, []))
            inside = at.ndim == 1 and (len(at) == 0 or (at.dtype.kind in "iu" and at.min() >= 0 and at.max() < n))
            require(inside, f"{said}: {name}: expected positions in 0..{n - 1}")
            at = at.astype(np.int64)
            distinct, counts = np.unique(at, return_counts=True)
            taken = distinct[(counts > 1) | (client[distinct] >= 0)]
            require(len(taken) == 0, f"{said}: {name}: sample {taken[:1].tolist()} stands there and elsewhere")
            client[at], split[at] = t, code
            n_own += len(at)
        require(n_own > 0, f"{said}: no samples")
    return client, split, len(clients)
