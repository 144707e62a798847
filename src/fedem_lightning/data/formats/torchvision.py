"""torchvision's folders: EMNIST/raw and MNIST/raw (IDX files), cifar-10-batches-py and cifar-100-python."""

import io
import pickle
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torchvision

from fedem_lightning.data.catalogue import MARKS
from fedem_lightning.errors import UserError, require


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
        reason = str(error).strip().splitlines()
        raise UserError(f"dataset: cannot read {name} from {root} ({reason[0] if reason else error!r})") from error


def _read_idx(name: str, root: Path) -> dict[str, np.ndarray]:
    x, y = [], []
    for train in (True, False):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings about read-only arrays
            if name == "emnist":
                part = torchvision.datasets.EMNIST(root, split="byclass", train=train)
            else:
                part = torchvision.datasets.MNIST(root, train=train)
        images = part.data.numpy()
        x.append(images.transpose(0, 2, 1) if name == "emnist" else images)  # EMNIST's files are transposed
        y.append(part.targets.numpy())
    return _pooled(x, y)


def _read_cifar(folder: Path, coarse: bool) -> dict[str, np.ndarray]:
    files = ["train", "test"] if coarse else [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
    x, y, superclasses = [], [], []
    for file in files:
        content = _Arrays(io.BytesIO((folder / file).read_bytes()), encoding="bytes").load()
        pixels = np.asarray(content[b"data"])
        require(
            pixels.dtype == np.uint8 and pixels.ndim == 2 and pixels.shape[1] == 3072,
            f"{folder / file}: expected bytes [n, 3072], got {pixels.dtype} {pixels.shape}",
        )
        x.append(pixels.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
        y.append(np.array(content[b"fine_labels" if coarse else b"labels"]))
        if coarse:
            superclasses.append(np.array(content[b"coarse_labels"]))
    pooled = _pooled([np.concatenate(x[:-1]), x[-1]], [np.concatenate(y[:-1]), y[-1]])
    return pooled | ({"coarse": np.concatenate(superclasses)} if coarse else {})


def _pooled(x: list[np.ndarray], y: list[np.ndarray]) -> dict[str, np.ndarray]:
    for images, labels in zip(x, y, strict=True):
        require(len(images) == len(labels), f"{len(images)} images, but {len(labels)} labels")
    split = np.repeat(np.array([0, 2], dtype=np.int8), [len(labels) for labels in y])
    return {"x": np.ascontiguousarray(np.concatenate(x)), "y": np.concatenate(y).astype(np.int64), "split": split}


class _Arrays(pickle.Unpickler):
    """Unpickler of CIFAR's files that looks up only the parts of an array, so that no code of the files runs."""

    ALLOWED = {("numpy", "ndarray"), ("numpy", "dtype"), ("_codecs", "encode")} | {
        (f"numpy.{core}.multiarray", name) for core in ("core", "_core") for name in ("_reconstruct", "scalar")
    }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self.ALLOWED:
            raise pickle.UnpicklingError(f"the file asks for {module}.{name}, which is no part of an array")
        return super().find_class(module.replace("numpy.core", "numpy._core"), name)
