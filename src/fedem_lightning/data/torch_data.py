"""A federation from what torch users hold: `TorchDataModule`, `dataset=torch dataset.data._target_=mine.f`.

Samples keep their order: that of the dictionary's clients, and in a client that of its data set.
"""

from collections.abc import Mapping, Sized
from typing import Annotated, Any

import numpy as np
from torch import Tensor
from torch.utils.data import DataLoader, Subset

from fedem_lightning.data.arrays import as_array, listed, shown
from fedem_lightning.data.datamodule import FederatedDataModule
from fedem_lightning.data.own_data import OwnArrays, OwnOptions, checked_federation
from fedem_lightning.settings.check import grouped
from fedem_lightning.settings.errors import require

LABELS = ("y", "labels", "label")
"""Names of the label of a sample that is a dictionary."""


class TorchDataModule(FederatedDataModule):
    """Reads the samples of each client, or one Dataset with the client of each sample.

    A client's samples are (x, y) as arrays or tensors; or a torch Dataset, or anything else with `len` and `[i]`, whose
    samples are (x, y). A dictionary is a pair, too: of "y", "label" or "labels", and of "x", or of all others.
    All samples are read once, into memory: random transforms keep their first draw.

    Args:
        data: a dictionary client -> samples, or a list with an entry for each client; or one Dataset.
        test: test samples, client -> samples; those in `data` are then for training. None: `fractions` split `data`.
        val: validation samples, likewise; it needs `test`.
        client: of one Dataset: the client of each sample [n], whole numbers or strings. None: a partition deals them.
        options: those of `TaskOptions`, `Partitioning` and `OwnSplitting`.

    Example:
        >>> import torch
        >>> samples = {name: (torch.rand(10, 3), torch.arange(10) % 2) for name in ("Ann", "Bob")}
        >>> TorchDataModule(samples).federation
        Federation(2 clients, 20 samples of shape (3,), classification)

    """

    def __init__(
        self,
        data: Any,
        test: Any = None,
        val: Any = None,
        *,
        client: Any = None,
        **options: Annotated[Any, OwnOptions],
    ) -> None:
        (own,) = grouped(options, OwnOptions)
        if isinstance(data, Mapping | list):
            require(client is None, "client: a dictionary or a list of clients says it already")
            require(val is None or test is not None, "val: it needs test; without test, fractions split data")
            arrays = arrays_of_clients(data, val, test)
        else:
            require(test is None and val is None, "test: it goes with a dictionary or a list of clients as data")
            expected = "data: expected a dictionary or a list with each client's samples, or a Dataset with clients"
            hint = "; on the command line dataset.data._target_=MODULE.FUNCTION" * (data is None)
            require(not isinstance(data, tuple | None), f"{expected}, got a {type(data).__name__}{hint}")
            arrays = _of_samples("data", data)._replace(client=client)
        for name in ("data", "test", "val", "client"):
            self.made_with.pop(name, None)  # it would keep the samples in memory twice
        data = test = val = client = None  # Lightning compares arguments by ==, which arrays cannot
        super().__init__(checked_federation(arrays, own))


def arrays_of_clients(data: Any, val: Any, test: Any) -> OwnArrays:
    """All samples by split, in a split by client; the parts are dictionaries client -> samples, or lists of samples."""
    parts: dict[str, OwnArrays] = {}  # by whose samples they are, for messages
    owner: list[Any] = []
    split: list[int] = []
    for code, (name, given) in enumerate((("data", data), ("val", val), ("test", test))):  # as in SPLITS
        if given is None:
            continue
        fits = isinstance(given, Mapping | list) and len(given) > 0
        expected = f"{name}: expected a dictionary client -> samples, or a list with an entry for each client"
        require(fits, f"{expected}, got {'none' if isinstance(given, Mapping | list) else type(given).__name__}")
        clients = dict(given) if isinstance(given, Mapping) else dict(enumerate(given))
        others = [shown(str(who)) for who in clients if code and who not in owner]
        require(not others, f"{name}: client {listed(others)} is not in data")
        for who, one in clients.items():
            where = f"{name}: client {shown(str(who))}"
            parts[where] = _of_pair(where, one) if isinstance(one, tuple | Mapping) else _of_samples(where, one)
        owner += clients
        split += [code] * len(clients)
    counts = [len(part.y) for part in parts.values()]
    codes = None if test is None else np.repeat(np.array(split, dtype=np.int8), counts)
    classes = {part.classes for part in parts.values() if part.y.dtype.kind in "iu"}
    same = "data: the clients' data sets number their classes differently; give words as labels y"
    require(len(classes) <= 1, same)
    x, y = (joined(name, {where: getattr(part, name) for where, part in parts.items()}) for name in ("x", "y"))
    client = np.repeat(as_array("data: client", owner), counts)
    return OwnArrays(x, y, client, codes, classes=next(iter(classes), None))


def _of_pair(where: str, data: Any) -> OwnArrays:
    """The samples of one client as arrays (x, y), or a dictionary of both."""
    x, y = _pair(where, data)
    x, y = _as_x(f"{where}: x", x), as_array(f"{where}: y", y)
    first = next(iter(x.values())) if isinstance(x, dict) else x
    fits = first.ndim > 0 and y.shape[:1] == first.shape[:1]
    require(fits, f"{where}: expected x [n, ...] and y [n], got shapes {list(first.shape)} and {list(y.shape)}")
    require(len(y) > 0, f"{where}: no samples")
    return OwnArrays(x, y)


def _of_samples(where: str, data: Any) -> OwnArrays:
    """The samples of a Dataset, or of a list of samples."""
    fits = hasattr(data, "__getitem__") and isinstance(data, Sized)
    fits = fits and not isinstance(data, str | np.ndarray | Tensor | DataLoader)
    expected = "(x, y) as arrays, a torch Dataset (that of a DataLoader is its .dataset), or a list of samples (x, y)"
    require(fits, f"{where}: expected {expected}, got a {type(data).__name__}")
    require(len(data) > 0, f"{where}: no samples")
    xs: dict[str, Any] = {}
    labels: list[Any] = []
    for i in range(len(data)):
        x, y = _pair(message := f"{where}: sample {i}", data[i])
        xs[message] = _as_x(f"{message}: x", x, row=True)
        labels.append(y.item() if getattr(y, "ndim", None) == 0 else y)
    return OwnArrays(joined("x", xs), as_array(f"{where}: y", labels), classes=_class_names(data))


def _as_x(name: str, value: Any, row: bool = False) -> Any:
    """An array, or a dictionary of arrays, as a tuple of tensors is of "0", "1", ...; `row`: of a sample, [1, ...]."""
    if isinstance(value, tuple) and value and all(isinstance(part, Tensor | np.ndarray) for part in value):
        value = {str(i): part for i, part in enumerate(value)}
    if isinstance(value, Mapping):
        return {str(key): _as_x(f"{name}: {key}", part, row) for key, part in value.items()}
    array = as_array(name, value)
    return array[None] if row else array


def _pair(where: str, sample: Any) -> tuple[Any, Any]:
    """x and y."""
    if isinstance(sample, Mapping):
        label = next((name for name in LABELS if name in sample), None)
        x = {name: part for name, part in sample.items() if name != label}
        has = listed((shown(str(name)) for name in sample), 10)
        require(label is not None and len(x) > 0, f"{where}: expected x and {' or '.join(LABELS)} in it, got {has}")
        return x["x"] if "x" in x else x if len(x) > 1 else next(iter(x.values())), sample[label]
    fits = isinstance(sample, tuple | list) and len(sample) == 2
    got = f"{len(sample)} entries" if isinstance(sample, tuple | list) else f"a {type(sample).__name__}"
    require(fits, f"{where}: expected (x, y), got {got}")
    return sample[0], sample[1]


def joined(name: str, parts: Mapping[str, Any]) -> Any:
    """x or y of all samples, part after part: arrays [n, ...], or several by name; keys say whose, for messages."""
    where, first = next(iter(parts.items()))
    for other, x in parts.items():
        if isinstance(first, Mapping):
            message = f"{other}: {name} of {', '.join(x)}, but {where}: of {', '.join(first)}; all need the same"
            require(isinstance(x, Mapping) and x.keys() == first.keys(), message)
            continue
        alike = x.dtype == first.dtype or (name == "y" and (x.dtype.kind == "U") == (first.dtype.kind == "U"))
        this, one = (f"shape {['n', *a.shape[1:]]} and {a.dtype}".replace("'", "") for a in (x, first))
        fits = alike and x.shape[1:] == first.shape[1:]
        require(fits, f"{other}: {name} of {this}, but {where}: of {one}; all need the same")
    if isinstance(first, Mapping):
        return {key: joined(f"{name}: {key}", {other: x[key] for other, x in parts.items()}) for key in first}
    return np.concatenate(list(parts.values()))


def _class_names(data: Any) -> tuple[str, ...] | None:
    """The names of a data set's classes by their numbers, from `classes` (torchvision) or a `ClassLabel`, or None."""
    while isinstance(data, Subset):
        data = data.dataset
    names = None if getattr(data, "target_transform", None) else getattr(data, "classes", None)
    if isinstance(features := getattr(data, "features", None), Mapping):  # Hugging Face
        names = next((getattr(features[name], "names", None) for name in LABELS if name in features), None)
    return tuple(map(str, names)) if isinstance(names, list | tuple) and names else None
