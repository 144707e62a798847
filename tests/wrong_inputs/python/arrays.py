"""Arrays, tables and files from which data are made, in forms that are wrong, and in odd forms that are right."""

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from fedem_lightning import (
    FederatedDataModule,
    Federation,
    FLBenchDataModule,
    ImageDataModule,
    NpzDataModule,
    PFLlibDataModule,
    TableDataModule,
    TextDataModule,
)
from fedem_lightning.data import Arrays, TableFeatures
from fedem_lightning.data.partitions import Partition
from wrong_inputs.python.call import Call
from wrong_inputs.python.parts import trained

N = 24
X = np.random.default_rng(0).normal(size=(N, 4))
Y, CLIENT = np.arange(N) % 3, np.arange(N) % 4
IMAGES = np.random.default_rng(0).integers(256, size=(N, 8, 8), dtype=np.uint8)


def read_only(array: np.ndarray) -> np.ndarray:
    """A copy that nobody may write."""
    copy = array.copy()
    copy.flags.writeable = False
    return copy


ODD: dict[str, Callable[[np.ndarray], Any]] = {
    "negative strides": lambda a: np.ascontiguousarray(a[::-1])[::-1],
    "read-only": read_only,
    "Fortran order": np.asfortranarray,
    "every second": lambda a: np.repeat(a, 2, axis=0)[::2],
    "big-endian": lambda a: a.astype(a.dtype.newbyteorder(">")),
    "a list": lambda a: a.tolist(),
    "a tuple": lambda a: tuple(a.tolist()),
    "a tensor": torch.from_numpy,
    "a tensor that is a view": lambda a: torch.from_numpy(np.repeat(a, 2, axis=0))[::2],
    "a memory map": lambda a: a.view(np.ndarray),
    "a matrix subclass": lambda a: a.view(type("Sub", (np.ndarray,), {})),
    "broadcast": lambda a: np.broadcast_to(a, a.shape),
}
"""Other forms of the same values, which must give the same federation."""
TYPES: dict[str, Callable[[np.ndarray], Any]] = {
    "float16": lambda a: a.astype(np.float16),
    "float32": lambda a: a.astype(np.float32),
    "int8": lambda a: a.astype(np.int8),
    "int64": lambda a: a.astype(np.int64),
    "uint16": lambda a: a.astype(np.uint16),
    "bool": lambda a: a > 0,
    "a data frame": pd.DataFrame,
    "negative strides of columns": lambda a: a[:, ::-1],
}
WRONG_X: dict[str, Any] = {
    "None": None,
    "text": "data.npz",
    "a number": 3.0,
    "a dict": {"a": X},
    "a generator": (row for row in X),
    "empty": X[:0],
    "one axis": X[:, 0],
    "scalar": np.float64(1.0),
    "no features": X[:, :0],
    "ragged": [[1.0, 2.0], [3.0]] * (N // 2),
    "words": X.astype(str),
    "objects": X.astype(object),
    "objects of a kind": np.array([[object()] * 4] * N),
    "complex": X + 1j,
    "dates": np.full((N, 2), np.datetime64("2020-01-01")),
    "spans": np.full((N, 2), np.timedelta64(1, "D")),
    "records": np.zeros(N, dtype=[("a", float), ("b", float)]),
    "nan": np.where(X > 2, np.nan, X) * np.where(np.arange(N) == 3, np.nan, 1.0)[:, None],
    "infinite": np.where(np.arange(N)[:, None] == 3, np.inf, X),
    "beyond float32": X * 1e300,
    "long doubles": X.astype(np.longdouble),
    "None within": [[None] * 4] * N,
    "a data frame with words": pd.DataFrame({"a": ["u", "v"] * (N // 2), "b": np.arange(N)}),
    "a data frame with a gap": pd.DataFrame({"a": [1.0, None] * (N // 2), "b": np.arange(N)}),
    "a tensor with a gradient": torch.zeros(N, 4, requires_grad=True),
    "a complex tensor": torch.zeros(N, 4, dtype=torch.complex64),
    "a bfloat16 tensor": torch.zeros(N, 4, dtype=torch.bfloat16),
    "a sparse tensor": torch.zeros(N, 4).to_sparse(),
    "a meta tensor": torch.zeros(N, 4, device="meta"),
    "a list of tensors of two shapes": [torch.zeros(4), torch.zeros(3)] * (N // 2),
    "a class": np.ndarray,
    "a function": np.zeros,
    "a data set": torch.utils.data.TensorDataset(torch.from_numpy(X), torch.from_numpy(Y)),
    "a masked array": np.ma.masked_array(X, X > 1),
    "shorter": X[:-1],
    "bytes": b"abc",
    "a set": {1, 2},
}
WRONG_Y: dict[str, Any] = {
    "None": None,
    "text": "y",
    "a number": 1,
    "shorter": Y[:-1],
    "one-hot": np.eye(3)[Y],
    "a column": Y[:, None],
    "empty": Y[:0],
    "negative": Y - 1,
    "fractions": Y + 0.5,
    "nan": np.where(Y == 1, np.nan, Y),
    "huge": np.where(Y == 1, 10**12, Y),
    "beyond int64": np.full(N, 2**63, dtype=np.uint64),
    "complex": Y + 1j,
    "dates": np.full(N, np.datetime64("2020-01-01")),
    "missing": [None, "a"] * (N // 2),
    "mixed": [0, "a"] * (N // 2),
    "objects": np.array([object()] * N),
    "signs": np.where(Y == 0, -1, 1),
    "a dict": {i: 0 for i in range(N)},
    "a tensor with a gradient": torch.zeros(N, requires_grad=True),
    "a set": {1, 2},
    "records": np.zeros(N, dtype=[("a", int)]),
}
WRONG_CLIENT = {
    **{name: value for name, value in WRONG_Y.items() if name not in ("None", "one-hot", "signs", "huge", "missing")},
    "lists": [[0]] * N,
}
del WRONG_CLIENT["beyond int64"], WRONG_CLIENT["mixed"]
WRONG_OPTIONS: dict[str, tuple[dict[str, Any], str]] = {
    "split of words": ({"split": np.full(N, "tset")}, "split"),
    "split of fractions": ({"split": np.full(N, 0.5)}, "split"),
    "split, shorter": ({"split": np.zeros(3, int)}, "split"),
    "split, 3": ({"split": np.full(N, 3)}, "split"),
    "split, a number": ({"split": 0.8}, "split"),
    "split, a text": ({"split": "train"}, "split"),
    "split, a dict": ({"split": {"train": [0, 1]}}, "split"),
    "split without training": ({"split": np.full(N, 2)}, "no training sample"),
    "names, too few": ({"names": ["a"]}, "names"),
    "names, equal": ({"names": ["a"] * 4}, "names"),
    "names, a text": ({"names": "abcd"}, "names"),
    "names, a number": ({"names": 4}, "names"),
    "domain, shorter": ({"domain": [0, 1]}, "domain"),
    "domain, fractions": ({"domain": np.full(N, 0.5)}, "domain"),
    "task, unknown": ({"task": "classify"}, "task"),
    "task, a class": ({"task": dict}, "task"),
    "task, None": ({"task": None}, "task"),
    "binary of three": ({"task": "binary"}, "binary"),
    "n_classes, too few": ({"n_classes": 2}, "y"),
    "n_classes, one": ({"n_classes": 1}, "n_classes"),
    "n_classes, a text": ({"n_classes": "3"}, "n_classes"),
    "n_classes, a fraction": ({"n_classes": 3.5}, "n_classes"),
    "n_classes, huge": ({"n_classes": 10**9}, "n_classes"),
    "noise_scale, 0": ({"task": "regression", "noise_scale": 0.0}, "noise_scale"),
    "noise_scale, a text": ({"task": "regression", "noise_scale": "1"}, "noise_scale"),
    "label_smoothing, 1": ({"label_smoothing": 1.0}, "label_smoothing"),
    "label_smoothing, -1": ({"label_smoothing": -1.0}, "label_smoothing"),
    "class_weights, unknown": ({"class_weights": "balance"}, "class_weights"),
    "class_weights, too few": ({"class_weights": [1.0]}, "class_weights"),
    "class_weights, negative": ({"class_weights": [1.0, -1.0, 1.0]}, "class_weights"),
    "class_weights, a number": ({"class_weights": 2.0}, "class_weights"),
    "partition, unknown": ({"partition": "dirichelt"}, "partition"),
    "partition, None": ({"partition": None}, "partition"),
    "partition, a number": ({"partition": 3}, "partition"),
    "partition, a function of nothing": ({"partition": lambda: None, "client": None}, "partition"),
    "partition that returns None": ({"partition": lambda labels, seed: None, "client": None}, "partition"),
    "partition that returns an array": ({"partition": lambda labels, seed: labels, "client": None}, "partition"),
    "partition of other samples": (
        {"partition": lambda labels, seed: Partition(np.zeros(3, int), ("a",)), "client": None},
        "partition",
    ),
    "partition of unnamed clients": (
        {"partition": lambda labels, seed: Partition(np.arange(N), ("a",)), "client": None},
        "partition",
    ),
    "partition, a class": ({"partition": dict, "client": None}, "partition"),
    "no client and no partition": ({"client": None}, "client"),
    "n_clients, 0": ({"partition": "iid", "client": None, "n_clients": 0}, "n_clients"),
    "n_clients, too many": ({"partition": "iid", "client": None, "n_clients": 10**6}, "n_clients"),
    "n_clients, a text": ({"partition": "iid", "client": None, "n_clients": "4"}, "n_clients"),
    "n_clients, None": ({"partition": "iid", "client": None}, "n_clients"),
    "alpha, 0": ({"partition": "dirichlet", "client": None, "n_clients": 3, "alpha": 0.0}, "alpha"),
    "alpha, nan": ({"partition": "dirichlet", "client": None, "n_clients": 3, "alpha": float("nan")}, "alpha"),
    "alpha, a text": ({"partition": "dirichlet", "client": None, "n_clients": 3, "alpha": "0.4"}, "alpha"),
    "shards_per_client, 0": ({"partition": "shards", "client": None, "n_clients": 3, "shards_per_client": 0}, "shards"),
    "min_samples, huge": (
        {"partition": "dirichlet", "client": None, "n_clients": 3, "min_samples": 10**6},
        "samples",
    ),
    "pachinko without coarse": ({"partition": "pachinko", "client": None, "n_clients": 3}, "pachinko"),
    "fractions, two": ({"fractions": (0.8, 0.2)}, "fractions"),
    "fractions, sum": ({"fractions": (0.8, 0.8, 0.8)}, "fractions"),
    "fractions, no training": ({"fractions": (0.0, 0.5, 0.5)}, "fractions"),
    "fractions, a number": ({"fractions": 0.8}, "fractions"),
    "fractions, words": ({"fractions": ("a", "b", "c")}, "fractions"),
    "unseen_fraction, 1": ({"unseen_fraction": 1.0}, "unseen_fraction"),
    "unseen_fraction, a text": ({"unseen_fraction": "0.2"}, "unseen_fraction"),
    "unseen, unknown": ({"unseen": ["nobody"]}, "unseen"),
    "unseen, all": ({"unseen": ["0", "1", "2", "3"]}, "unseen"),
    "unseen, a text": ({"unseen": "0"}, "unseen"),
    "unseen, a number": ({"unseen": 1}, "unseen"),
    "unseen and a share": ({"unseen": ["0"], "unseen_fraction": 0.5}, "unseen"),
    "seed, negative": ({"seed": -1}, "seed"),
    "seed, a text": ({"seed": "0"}, "seed"),
    "seed, None": ({"seed": None}, "seed"),
    "seed, huge": ({"seed": 2**70}, "seed"),
    "coarse, shorter": ({"coarse": [0]}, "coarse"),
}


def made(_: Path, **changed: Any) -> FederatedDataModule:
    """A data module of the arrays, some of them changed."""
    return FederatedDataModule.from_arrays(**{"x": X, "y": Y, "client": CLIENT, **changed})


def _digest(data: FederatedDataModule) -> str:
    return data.federation.digest()


@functools.cache
def _expected() -> str:
    return _digest(made(Path()))


def calls() -> Iterator[Call]:
    """All of them."""
    for name, change in ODD.items():
        for key, array in (("x", X), ("y", Y), ("client", CLIENT)):
            act = functools.partial(_changed, key, change, array)
            yield Call(f"arrays/odd {key}/{name}", act, right=lambda data: _digest(data) == _expected())
    for name, change in TYPES.items():
        yield Call(f"arrays/types/{name}", functools.partial(_changed, "x", change, X))
    for key, wrong in (("x", WRONG_X), ("y", WRONG_Y), ("client", WRONG_CLIENT)):
        for name, value in wrong.items():
            yield Call(f"arrays/{key}/{name}", functools.partial(made, **{key: value}), says=key)
    for name, (options, says) in WRONG_OPTIONS.items():
        yield Call(f"arrays/options/{name}", functools.partial(made, **options), says=says)
    for name, (call, told) in (_images() | _targets() | _parts() | _files()).items():
        yield Call(f"arrays/{name}", call, says=told)
    for name, pixels in _pixels().items():
        yield Call(f"arrays/pixels/{name}", functools.partial(made, x=pixels), warns="0..255")
    yield from _rows()


def _changed(key: str, change: Callable[[np.ndarray], Any], array: np.ndarray, _: Path) -> FederatedDataModule:
    return made(_, **{key: change(array)})


def _pixels() -> dict[str, np.ndarray]:
    return {
        "float32": IMAGES.astype(np.float32),
        "float64, with channels": np.repeat(IMAGES[..., None], 3, axis=-1).astype(np.float64),
        "int64": IMAGES.astype(np.int64),
        "channels first": np.repeat(IMAGES[:, None], 3, axis=1).astype(np.float32),
        "half brightness": IMAGES / 1.5,
    }


Calls = dict[str, tuple[Callable[[Path], Any], str | None]]


def _images() -> Calls:
    fine: dict[str, Any] = {
        "uint8": IMAGES,
        "uint8, negative strides": IMAGES[:, ::-1, ::-1],
        "uint8, channels first": np.repeat(IMAGES[:, None], 3, axis=1),
        "floats up to 1": IMAGES / 255,
        "standardised": (IMAGES - 128.0) / 50,
    }
    return {f"images/{name}": (functools.partial(made, x=value), None) for name, value in fine.items()}


def _targets() -> Calls:
    real: dict[str, Any] = {"task": "regression"}
    return {
        "targets/words": (functools.partial(made, y=Y.astype(str), **real), "y"),
        "targets/nan": (functools.partial(made, y=np.full(N, np.nan), **real), "y"),
        "targets/three axes": (functools.partial(made, y=np.zeros((N, 1, 1)), **real), "y"),
        "targets/no columns": (functools.partial(made, y=np.zeros((N, 0)), **real), "y"),
        "targets/shorter": (functools.partial(made, y=np.zeros(N - 1), **real), "y"),
        "targets/two columns": (functools.partial(made, y=np.zeros((N, 2)), **real), None),
        "targets/negative strides": (functools.partial(made, y=(np.arange(N) / N)[::-1], **real), None),
        "targets/read-only": (functools.partial(made, y=read_only(np.arange(N) / N), **real), None),
    }


def _parts() -> Calls:
    """Federations put together by hand."""
    samples = Arrays(torch.from_numpy(X), torch.from_numpy(Y))
    task = made(Path()).federation.task
    return {
        "parts/data module of arrays": (lambda _: FederatedDataModule(X), "federation"),
        "parts/data module of nothing": (lambda _: FederatedDataModule(None), "federation"),
        "parts/data module of a data module": (lambda _: FederatedDataModule(made(_)), "federation"),
        "parts/data module of a class": (lambda _: FederatedDataModule(Federation), "federation"),
        "parts/a client without training samples": (
            lambda _: Federation.from_samples(samples, CLIENT, np.full(N, 2), task=task, names=list("abcd")),
            "no training sample",
        ),
        "parts/mean alone": (lambda _: Arrays(torch.from_numpy(IMAGES), torch.from_numpy(Y), mean=[0.5]), "mean"),
        "parts/std of 0": (lambda _: Arrays(torch.from_numpy(IMAGES), torch.from_numpy(Y), [0.5], [0.0]), "std"),
    }


def _files() -> Calls:
    """Data modules of files."""
    found: Calls = {}
    for kind, more in (
        (NpzDataModule, {}),
        (PFLlibDataModule, {}),
        (FLBenchDataModule, {}),
        (TableDataModule, {"label": "y"}),
        (TextDataModule, {}),
        (functools.partial(ImageDataModule, "mnist"), {}),
    ):
        name = getattr(kind, "__name__", "ImageDataModule")
        for what, path in {
            "missing": "no_such.npz",
            "a folder": ".",
            "empty text": "",
            "a number": 3,
            "bytes": b"a.npz",
            "an array": X,
            "a class": Path,
            "a list": ["a.npz"],
        }.items():
            found[f"files/{name}/{what}"] = (functools.partial(_file, kind, path, more), "")
    frame = pd.DataFrame({"a": np.arange(N), "b": ["u", "v"] * (N // 2), "y": Y, "client": CLIENT})
    for what, options in {
        "no such label": {"label": "z"},
        "label, None": {"label": None},
        "label, a list": {"label": ["y"]},
        "no such client": {"label": "y", "client": "z"},
        "no such feature": {"label": "y", "features": ["z"]},
        "features, a text": {"label": "y", "features": "a"},
        "features, empty": {"label": "y", "features": []},
        "missing, unknown": {"label": "y", "missing": "mean"},
        "split, unknown": {"label": "y", "split": "z"},
        "a frame": {"label": "y", "path": frame},
    }.items():
        found[f"files/table/{what}"] = (functools.partial(_table, frame, options), "")
    features = TableFeatures.fit(frame, rows=np.arange(N), columns=["a", "b"])
    found |= {
        "files/features/without a column": (lambda _: features.transform(frame[["a"]]), "b"),
        "files/features/an array": (lambda _: features.transform(X), ""),
        "files/features/no such column": (lambda _: TableFeatures.fit(frame, np.arange(N), ["z"]), "z"),
    }
    return found


def _file(kind: Any, path: Any, more: dict[str, Any], folder: Path) -> Any:
    given = folder / path if isinstance(path, str) and path else path
    return kind(path=given, **more)


def _table(frame: pd.DataFrame, options: dict[str, Any], folder: Path) -> Any:
    path = folder.parent / f"{folder.name}.csv"
    frame.to_csv(path, index=False)
    return TableDataModule(**{"path": path, "client": "client", **options})


def _rows() -> Iterator[Call]:
    """The same arrays, given to a trained model."""
    labels = Y
    for name, change in ODD.items():
        yield Call(f"rows/predict, {name}", functools.partial(_predicts_equal, change))
        yield Call(
            f"rows/personalize, {name}", functools.partial(_personalizes_equal, change), right=lambda equal: equal
        )
    for name, value in WRONG_X.items():
        if name not in ("shorter", "objects", "empty", "a bfloat16 tensor"):
            says = None if name == "a tensor with a gradient" else "x"  # prediction has no gradients
            yield Call(f"rows/predict/{name}", functools.partial(_predict, value), says=says)
            yield Call(f"rows/personalize/x, {name}", functools.partial(_personalize, value, labels), says="")
    for name, value in WRONG_Y.items():
        if name not in ("empty",):
            yield Call(f"rows/personalize/y, {name}", functools.partial(_personalize, X, value), says="y")


def _predict(x: Any, _: Path) -> Any:
    return trained().client("0").predict(x)


def _personalize(x: Any, y: Any, _: Path) -> Any:
    return trained().personalize(x, y)


def _predicts_equal(change: Callable[[np.ndarray], Any], _: Path) -> None:
    np.testing.assert_array_equal(_predict(change(X), _), _predict(X, _))


def _personalizes_equal(change: Callable[[np.ndarray], Any], _: Path) -> bool:
    models = (_personalize(x, y, _) for x, y in ((X, Y), (change(X), change(Y))))
    one, other = (model.predict(X) for model in models)
    return bool((one == other).all())
