"""A user's own arrays, from memory or from an .npz file: checked, then made a federation."""

import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedem_lightning.data.federation import Federation
from fedem_lightning.data.splits import SPLITS, hold_out_clients, split_samples
from fedem_lightning.errors import UserError, require, require_whole
from fedem_lightning.tasks import Classification


def checked_federation(
    x: np.ndarray,
    y: np.ndarray,
    client: np.ndarray,
    split: np.ndarray | None,
    names: np.ndarray | None,
    *,
    n_classes: int | None,
    fractions: Sequence[float],
    unseen_fraction: float,
    seed: int,
) -> Federation:
    """See `FederatedDataModule.from_arrays`."""
    x, y, client = np.asarray(x), np.asarray(y), np.asarray(client)
    require(len(x) > 0, "x: expected at least one sample, got none")
    for name, array in (("y", y), ("client", client), ("split", split)):
        if array is not None:
            require(np.shape(array) == (len(x),), f"{name}: expected shape ({len(x)},) as x has, got {np.shape(array)}")
    y, n_classes = _check_labels(y, n_classes)
    client, client_names = _check_clients(client, names)
    codes = split_samples(client, seed, fractions) if split is None else _check_split(np.asarray(split))
    return Federation.from_arrays(
        _check_features(x),
        y,
        client,
        codes,
        task=Classification(n_classes),
        names=client_names,
        seen=hold_out_clients(len(client_names), unseen_fraction, seed),
    )


def _check_features(x: np.ndarray) -> np.ndarray:
    require(x.dtype.kind in "fiub", f"x: expected numbers, got dtype {x.dtype}")
    if x.dtype.kind == "f":
        require(x.dtype.itemsize <= 8, f"x: expected float64 or smaller, got {x.dtype}")
        bad = ~np.isfinite(x).reshape(len(x), -1).all(axis=1)
        require(not bad.any(), f"x: NaN or infinity in {bad.sum()} samples, the first is number {bad.argmax()}")
    return x if x.dtype in (np.uint8, np.float32, np.float64) else x.astype(np.float32)


def _check_labels(y: np.ndarray, n_classes: int | None) -> tuple[np.ndarray, int]:
    whole = y.dtype.kind in "iub" or (y.dtype.kind == "f" and bool((y == np.round(y)).all()))
    require(whole, f"y: expected whole numbers, got dtype {y.dtype}")
    y = y.astype(np.int64)
    if n_classes is not None:
        require_whole("n_classes", n_classes, at_least=2)
    n_classes = max(2, int(y.max()) + 1) if n_classes is None else n_classes
    outside = (y < 0) | (y >= n_classes)
    require(
        not outside.any(),
        f"y: label {y[outside.argmax()]} at sample {outside.argmax()} is outside the {n_classes} classes "
        f"0..{n_classes - 1}",
    )
    return y, n_classes


def _check_clients(client: np.ndarray, names: np.ndarray | None) -> tuple[np.ndarray, list[str]]:
    if names is None:
        require(client.dtype.kind in "iubSU", f"client: expected whole numbers or strings, got dtype {client.dtype}")
        values, codes = np.unique(client, return_inverse=True)
        return codes.astype(np.int64), [str(value) for value in values]
    inside = client.dtype.kind in "iu" and client.min() >= 0 and client.max() < len(names)
    require(inside, f"client: with names it must be whole numbers in 0..{len(names) - 1}, one for each name")
    return client.astype(np.int64), [str(name) for name in names]


def _check_split(split: np.ndarray) -> np.ndarray:
    if split.dtype.kind in "SU":
        words = split.astype(str)
        require(bool(np.isin(words, SPLITS).all()), f"split: expected the words {', '.join(SPLITS)}")
        return np.select([words == name for name in SPLITS], range(3)).astype(np.int8)
    require(
        split.dtype.kind in "iu" and bool(np.isin(split, (0, 1, 2)).all()), "split: expected 0 train, 1 val, 2 test"
    )
    return split.astype(np.int8)


def load_npz(path: str | Path) -> dict[str, np.ndarray]:
    """Reads x, y, client and, if there, split and names (or client_names) from an .npz file, without pickle.

    Raises:
        UserError: the file is missing, broken, holds Python objects, or lacks one of x, y, client.

    """
    path = Path(path)
    require(path.is_file(), f"dataset.path: no file {path}")
    require(zipfile.is_zipfile(path), f"dataset.path: {path} is no .npz file, or only a part of one")
    arrays: dict[str, np.ndarray] = {}
    try:
        with np.load(path, allow_pickle=False) as file:
            for name in ("x", "y", "client", "split", "names", "client_names"):
                if name in file.files:
                    arrays["names" if name == "client_names" else name] = file[name]
    except (ValueError, OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise UserError(f"dataset.path: cannot read {path} as .npz without pickle ({error})") from error
    missing = [name for name in ("x", "y", "client") if name not in arrays]
    require(
        not missing, f"dataset.path: {path} lacks {', '.join(missing)}; expected x, y, client, optional split, names"
    )
    return arrays
