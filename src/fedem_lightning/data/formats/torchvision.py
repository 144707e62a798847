"""torchvision's folders: EMNIST/raw and MNIST/raw (IDX files), cifar-10-batches-py and cifar-100-python."""

import math
import struct
from pathlib import Path
from typing import Any

import numpy as np

from fedem_lightning.data.formats import check_file
from fedem_lightning.data.formats.pickles import PickledArray, plain
from fedem_lightning.data.names import check_unread
from fedem_lightning.data.sources import MARKS
from fedem_lightning.errors import UserError, require

CIFAR = ("data", "labels", "fine_labels", "coarse_labels", "batch_label", "filenames")


def read_torchvision(name: str, root: Path) -> dict[str, np.ndarray]:
    """Pools the official train and test parts (`split` 0 and 2). EMNIST is "byclass", turned upright.

    Raises:
        UserError: a file is missing or broken.

    """
    try:
        if name in ("emnist", "mnist"):
            return _read_idx(name, root)
        return _read_cifar(root / MARKS[name], coarse=name == "cifar100")
    except Exception as error:  # a broken pickle or IDX file fails in many ways
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise UserError(f"path: cannot read {name} from {root} ({reason})") from error


def _read_idx(name: str, root: Path) -> dict[str, np.ndarray]:
    start, test = ("emnist-byclass-", "test") if name == "emnist" else ("", "t10k")
    folder, kinds = root / MARKS[name], ("images-idx3-ubyte", "labels-idx1-ubyte")
    parts = [[_idx(folder / f"{start}{part}-{kind}") for kind in kinds] for part in ("train", test)]
    x = [images.transpose(0, 2, 1) if name == "emnist" else images for images, _ in parts]  # EMNIST's are transposed
    return _pooled(x, [labels for _, labels in parts])


def _idx(file: Path) -> np.ndarray:
    """The bytes of a file; refused if it has other numbers, or another size than its header says."""
    check_file(file)
    with file.open("rb") as opened:
        zeros, kind, n_axes = struct.unpack(">HBB", opened.read(4))
        require((zeros, kind) == (0, 8), f"{file.name}: expected bytes in IDX format")
        shape = struct.unpack(f">{n_axes}I", opened.read(4 * n_axes))
        expected, found = 4 + 4 * n_axes + math.prod(shape), file.stat().st_size
        require(found == expected, f"{file.name}: its header says {list(shape)}, {expected} bytes; it has {found}")
        return np.frombuffer(opened.read(), dtype=np.uint8).reshape(shape)


def _read_cifar(folder: Path, coarse: bool) -> dict[str, np.ndarray]:
    files = ["train", "test"] if coarse else [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
    x, y, superclasses = [], [], []
    others = sorted(p.name for p in folder.glob("*batch*") if p.name not in (*files, "batches.meta"))
    require(coarse or not others, f"{', '.join(others)} would not be read; there are {', '.join(files)}")
    for file in files:
        content = _unpickled(folder / file)
        names = [key.decode("latin1") if isinstance(key, bytes) else str(key) for key in content]
        check_unread(f"path: {folder / file}", names, CIFAR)
        data = content.get(b"data")
        pixels = data.array(file) if isinstance(data, PickledArray) else np.empty(0)
        fits = pixels.dtype == np.uint8 and pixels.ndim == 2 and pixels.shape[1] == 3072
        require(fits, f"{file}: expected `data`, an array of bytes [n, 3072]")
        x.append(pixels.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
        y.append(_labels(file, content, "fine_labels" if coarse else "labels"))
        if coarse:
            superclasses.append(_labels(file, content, "coarse_labels"))
    pooled = _pooled([np.concatenate(x[:-1]), x[-1]], [np.concatenate(y[:-1]), y[-1]])
    return pooled | ({"coarse": np.concatenate(superclasses)} if coarse else {})


def _unpickled(file: Path) -> dict[Any, Any]:
    """The dictionary that the file holds."""
    check_file(file)
    content = plain(file.read_bytes(), file.name, encoding="bytes")
    require(isinstance(content, dict), f"{file.name}: expected a dictionary, got {type(content).__name__}")
    return dict(content)


def _labels(file: str, content: dict[Any, Any], name: str) -> np.ndarray:
    labels = content.get(name.encode())
    flat = isinstance(labels, list) and all(type(label) is int for label in labels)
    require(flat, f"{file}: expected `{name}`, a list of whole numbers")
    return np.array(labels, dtype=np.int64)


def _pooled(x: list[np.ndarray], y: list[np.ndarray]) -> dict[str, np.ndarray]:
    for images, labels in zip(x, y, strict=True):
        require(len(images) == len(labels), f"{len(images)} images, but {len(labels)} labels")
    split = np.repeat(np.array([0, 2], dtype=np.int8), [len(labels) for labels in y])
    return {"x": np.ascontiguousarray(np.concatenate(x)), "y": np.concatenate(y).astype(np.int64), "split": split}
