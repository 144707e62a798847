"""A federation from what torch users hold: `TorchDataModule`, `dataset=torch dataset.data._target_=mine.f`.

Samples keep their order: that of the dictionary's clients, and in a client that of its data set.
"""

import warnings
from collections.abc import Mapping, Sequence, Sized
from typing import Annotated, Any

import numpy as np
from torch import Tensor
from torch.utils.data import (
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    default_collate,
)

from fedem_lightning.data.arrays import as_array
from fedem_lightning.data.class_names import class_names, joined_by_name
from fedem_lightning.data.datamodule import FederatedDataModule
from fedem_lightning.data.dealing import Dealing
from fedem_lightning.data.names import shown
from fedem_lightning.data.own_data import OwnArrays, TaskOptions, checked_federation
from fedem_lightning.data.own_splits import OwnSplitting
from fedem_lightning.data.samples import MASK, n_rows
from fedem_lightning.errors import require
from fedem_lightning.settings.check import grouped
from fedem_lightning.settings.ranges import Columns

XY, XYC = ("x", "y"), ("x", "y", "client")
LABELS = ("y", "labels", "label")
"""Names of a sample's label where its other entries are x."""


class TorchDataModule(FederatedDataModule):
    """Reads the samples of each client, or one Dataset in which each sample has a client.

    A client's samples are (x, y), or a dictionary of both, as arrays or tensors; a torch Dataset, or anything else
    with `len` and `[i]` whose samples are (x, y) or such dictionaries; or a DataLoader of a Dataset, which is read in
    the Dataset's order and to its end. All samples are read once, into memory: random transforms keep their first draw.
    Where data sets name their classes (`ImageFolder`, Hugging Face's `ClassLabel`), labels of one name are one class.

    Args:
        data: a dictionary client -> samples, or a list with an entry for each client; or one Dataset.
        test: test samples, client -> samples; those in `data` are then for training. None: `fractions` split `data`.
        val: validation samples, likewise; it needs `test`.
        client: of one Dataset: the client of each sample [n], whole numbers or strings. None: samples are
            (x, y, client), or a partition deals them.
        columns: names of x, y and, if a Dataset's samples say it, the client, where samples are dictionaries; default:
            "x", "y", "client". A dictionary without "x" is x itself, less its label.
        options: those of `TaskOptions`, `Dealing` and `OwnSplitting`.

    Raises:
        UserError: samples do not fit together, a client has none, or what `FederatedDataModule.from_arrays` refuses.

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
        columns: Columns | None = None,
        **options: Annotated[Any, TaskOptions, Dealing, OwnSplitting],
    ) -> None:
        task, dealing, splitting = grouped(options, TaskOptions, Dealing, OwnSplitting)
        if isinstance(data, Mapping | list):
            require(client is None, "client: a dictionary or a list of clients says it already")
            require(val is None or test is not None, "val: it needs test; without test, fractions split data")
            arrays = arrays_of_clients(data, val, test, columns or XY)
        else:
            require(test is None and val is None, "test: it goes with a dictionary or a list of clients as data")
            expected = "data: expected a dictionary or a list with each client's samples, or a Dataset with clients"
            hint = "; on the command line dataset.data._target_=MODULE.FUNCTION" if data is None else ""
            known = data is not None and not isinstance(data, tuple | DataLoader)
            require(known, f"{expected}, got a {type(data).__name__}{hint}")
            says = client is None and dealing.partition == "natural"
            arrays = _of_samples("data", data, columns or (XYC if says else XY))
            arrays = arrays if says else arrays._replace(client=client)
        for name in ("data", "test", "val", "client"):
            self.made_with.pop(name, None)  # it would keep the samples in memory twice
        data = test = val = client = None  # Lightning compares arguments by ==, which arrays cannot
        super().__init__(checked_federation(arrays, task, dealing, splitting))


def arrays_of_clients(data: Any, val: Any, test: Any, columns: Sequence[str | int] = XY) -> OwnArrays:
    """All samples by split, in a split by client; the parts are dictionaries client -> samples, or lists of samples."""
    wheres: list[str] = []
    parts: list[OwnArrays] = []
    owner: list[Any] = []
    split: list[int] = []
    known: dict[Any, Any] = {}
    for code, (name, given) in enumerate((("data", data), ("val", val), ("test", test))):  # as in SPLITS
        if given is None:
            continue
        expected = f"{name}: expected a dictionary client -> samples, or a list with an entry for each client"
        fits = isinstance(given, Mapping | list)
        require(fits and len(given) > 0, f"{expected}, got {'none' if fits else f'a {type(given).__name__}'}")
        clients = dict(given) if isinstance(given, Mapping) else dict(enumerate(given))
        known = known or clients
        others = [shown(str(who)) for who in clients if who not in known]
        require(not others, f"{name}: client {', '.join(others[:3])} is not in data")
        wheres += [f"{name}: client {shown(str(who))}" for who in clients]
        parts += map(_of_client, wheres[len(parts) :], clients.values(), [columns] * len(clients))
        owner += clients
        split += [code] * len(clients)
    counts = [len(part.y) for part in parts]
    codes = None if test is None else np.repeat(np.array(split, dtype=np.int8), counts)
    named = [(where, part.y, part.classes) for where, part in zip(wheres, parts, strict=True)]
    ys, classes = joined_by_name(named)
    x = joined("x", list(zip(wheres, [part.x for part in parts], strict=True)))
    y = joined("y", list(zip(wheres, ys, strict=True)))
    return OwnArrays(x, y, np.repeat(as_array("data: client", owner), counts), codes, classes=classes)


def _of_client(where: str, data: Any, columns: Sequence[str | int]) -> OwnArrays:
    """The samples of one client; messages begin with `where`."""
    if isinstance(data, tuple | Mapping):
        x, y = _entries(where, data, columns)
        x, y = _as_x(f"{where}: x", x), as_array(f"{where}: y", y)
        first = next(iter(x.values())) if isinstance(x, dict) else x
        has = first.ndim > 0 and y.ndim > 0
        require(has, f"{where}: expected x [n, ...] and y [n], got shapes {list(first.shape)} and {list(y.shape)}")
        require(n_rows(x) == len(y), f"{where}: x has {n_rows(x)} samples, y has {len(y)}")
        require(len(y) > 0, f"{where}: no samples")
        return OwnArrays(x, y)
    if isinstance(data, DataLoader):
        sampler = data.sampler
        known = type(sampler) in (SequentialSampler, RandomSampler, SubsetRandomSampler)
        known = known and data.batch_size is not None and data.collate_fn is default_collate
        require(known, f"{where}: a DataLoader with a sampler, a collate_fn or batches of its own; give its Dataset")
        data = Subset(data.dataset, list(sampler.indices)) if isinstance(sampler, SubsetRandomSampler) else data.dataset
    return _of_samples(where, data, columns)


def _of_samples(where: str, data: Any, columns: Sequence[str | int]) -> OwnArrays:
    """The samples of a Dataset, or of a list of samples; `columns` are two, or three if each says its client."""
    iterable = isinstance(data, IterableDataset)
    sized = hasattr(data, "__getitem__") and isinstance(data, Sized) and not isinstance(data, str | np.ndarray | Tensor)
    expected = "(x, y) as arrays, a torch Dataset, a list of samples (x, y), or a DataLoader"
    require(iterable or sized, f"{where}: expected {expected}, got a {type(data).__name__}")
    xs: list[tuple[str, Any]] = []
    others: list[list[Any]] = []
    for i, sample in enumerate(data if iterable else (data[i] for i in range(len(data)))):
        said = f"{where}: sample {i}"
        x, *rest = _entries(said, sample, columns)
        xs.append((said, _as_x(f"{said}: x", x, row=True)))
        others.append([value.item() if getattr(value, "ndim", None) == 0 else value for value in rest])
    require(bool(xs), f"{where}: no samples")
    if not iterable:
        again = _as_x(where, _entries(where, data[0], columns)[0], row=True)
        pairs = ((xs[0][1][k], again[k]) for k in again) if isinstance(again, dict) else [(xs[0][1], again)]
        if not all(np.array_equal(a, b) for a, b in pairs):
            said = "its first sample is another one each time it is read; each is read once here, and kept as it was"
            warnings.warn(f"{where}: {said} then: leave random transforms out", stacklevel=4)
    y, *client = (
        as_array(f"{where}: {name}", list(one)) for name, one in zip(XYC[1:], zip(*others, strict=True), strict=False)
    )
    found = class_names(where, data, (columns[1], *LABELS))
    return OwnArrays(joined("x", xs), y, client[0] if client else None, classes=found)


def _as_x(name: str, value: Any, row: bool = False) -> Any:
    """An array, or a dictionary of arrays, as a tuple of tensors is of "0", "1", ...; `row`: of a sample, [1, ...]."""
    if isinstance(value, tuple) and value and all(isinstance(part, Tensor | np.ndarray) for part in value):
        value = {str(i): part for i, part in enumerate(value)}
    if isinstance(value, Mapping):
        return {str(key): _as_x(f"{name}: {key}", part, row) for key, part in value.items()}
    array = as_array(name, value)
    return array[None] if row else array


def _entries(where: str, sample: Any, columns: Sequence[str | int]) -> tuple[Any, ...]:
    """x, y and, of three columns, the client."""
    wanted = "(x, y)" if len(columns) == 2 else "(x, y, client)"
    if isinstance(sample, Mapping):
        label = next((name for name in LABELS if name in sample), None)
        if tuple(columns[:2]) == XY and "x" not in sample and label is not None:
            x = {name: part for name, part in sample.items() if name not in (label, *columns[2:])}
            sample = {**sample, "x": x, "y": sample[label]}
        missing = [str(name) for name in columns if name not in sample]
        has = ", ".join(shown(str(name)) for name in list(sample)[:10])
        require(not missing, f"{where}: no {', '.join(missing)} in it, but {has}; columns names those of {wanted}")
        return tuple(sample[name] for name in columns)
    fits = isinstance(sample, tuple | list) and len(sample) == len(columns)
    got = f"{len(sample)} entries" if isinstance(sample, tuple | list) else f"a {type(sample).__name__}"
    require(fits, f"{where}: expected {wanted}, got {got}")
    return tuple(sample)


def joined(name: str, parts: Sequence[tuple[str, Any]]) -> Any:
    """x or y of all samples, part after part; zeros pad sequences that have a mask at their end to the longest.

    A part is whose samples they are, for messages, and an array [n, ...], or several by name.
    """
    where, first = parts[0]
    if isinstance(first, Mapping):
        for other, x in parts:
            said = f"{other}: {name} of {', '.join(x)}, but {where}: of {', '.join(first)}; all need the same"
            require(isinstance(x, Mapping) and x.keys() == first.keys(), said)
        found = {}
        for key in first:
            arrays = [(other, x[key]) for other, x in parts]
            if MASK in first and all(x[key].ndim == 2 and x[key].shape == x[MASK].shape for _, x in parts):
                most = max(array.shape[1] for _, array in arrays)
                arrays = [(other, np.pad(array, ((0, 0), (0, most - array.shape[1])))) for other, array in arrays]
            found[key] = joined(f"{name}: {key}", arrays)
        return found
    for other, array in parts:
        text = array.dtype.kind in "SU", first.dtype.kind in "SU"
        fits = array.shape[1:] == first.shape[1:]
        fits = fits and (text[0] == text[1] if name == "y" else array.dtype == first.dtype)
        this, one = (f"shape {['n', *a.shape[1:]]} and {a.dtype}".replace("'", "") for a in (array, first))
        require(fits, f"{other}: {name} of {this}, but {where}: of {one}; all need the same")
    return np.concatenate([array for _, array in parts])
