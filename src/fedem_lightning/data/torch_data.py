"""A federation from what torch users hold: `TorchDataModule`, `dataset=torch dataset.data._target_=mine.f`.

Samples keep their order: that of the dictionary's clients, and in a client that of its data set.
"""

import warnings
from collections.abc import Mapping, Sequence, Sized
from typing import Annotated, Any

import numpy as np
from torch import Tensor
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    default_collate,
)

from fedem_lightning.data.arrays import as_array
from fedem_lightning.data.datamodule import FederatedDataModule
from fedem_lightning.data.names import listed, shown
from fedem_lightning.data.own_data import OwnArrays, OwnOptions, checked_federation
from fedem_lightning.data.samples import MASK
from fedem_lightning.settings.check import grouped
from fedem_lightning.settings.errors import require
from fedem_lightning.settings.ranges import Columns

XY, XYC = ("x", "y"), ("x", "y", "client")
LABELS = ("y", "labels", "label")
"""Names of a sample's label where its other entries are x."""
Part = tuple[str, OwnArrays]
"""Whose samples they are, for messages, and x, y and, if they have names, the classes."""


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
        **options: Annotated[Any, OwnOptions],
    ) -> None:
        (own,) = grouped(options, OwnOptions)
        if isinstance(data, Mapping | list):
            require(client is None, "client: a dictionary or a list of clients says it already")
            require(val is None or test is not None, "val: it needs test; without test, fractions split data")
            arrays = arrays_of_clients(data, val, test, columns or XY)
        else:
            require(test is None and val is None, "test: it goes with a dictionary or a list of clients as data")
            expected = "data: expected a dictionary or a list with each client's samples, or a Dataset with clients"
            hint = "; on the command line dataset.data._target_=MODULE.FUNCTION" * (data is None)
            fits = not isinstance(data, tuple | DataLoader | None)
            require(fits, f"{expected}, got a {type(data).__name__}{hint}")
            says = client is None and own.partition == "natural"
            arrays = _of_samples("data", data, columns or (XYC if says else XY))
            arrays = arrays if says else arrays._replace(client=client)
        for name in ("data", "test", "val", "client"):
            self.made_with.pop(name, None)  # it would keep the samples in memory twice
        data = test = val = client = None  # Lightning compares arguments by ==, which arrays cannot
        super().__init__(checked_federation(arrays, own))


def arrays_of_clients(data: Any, val: Any, test: Any, columns: Sequence[str | int] = XY) -> OwnArrays:
    """All samples by split, in a split by client; the parts are dictionaries client -> samples, or lists of samples."""
    parts: list[Part] = []
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
        wheres = (f"{name}: client {shown(str(who))}" for who in clients)
        parts += [(where, _of_client(where, one, columns)) for where, one in zip(wheres, clients.values(), strict=True)]
        owner += clients
        split += [code] * len(clients)
    counts = [len(part.y) for _, part in parts]
    codes = None if test is None else np.repeat(np.array(split, dtype=np.int8), counts)
    parts = _joined_by_name(parts)
    x, y = (joined(name, [(where, getattr(part, name)) for where, part in parts]) for name in XY)
    client = np.repeat(as_array("data: client", owner), counts)
    return OwnArrays(x, y, client, codes, classes=parts[0][1].classes)


def _of_client(where: str, data: Any, columns: Sequence[str | int]) -> OwnArrays:
    """The samples of one client; messages begin with `where`."""
    if isinstance(data, tuple | Mapping):
        x, y = _entries(where, data, columns)
        x, y = _as_x(f"{where}: x", x), as_array(f"{where}: y", y)
        first = next(iter(x.values())) if isinstance(x, dict) else x
        fits = first.ndim > 0 and y.shape[:1] == first.shape[:1]
        require(fits, f"{where}: expected x [n, ...] and y [n], got shapes {list(first.shape)} and {list(y.shape)}")
        require(len(y) > 0, f"{where}: no samples")
        return OwnArrays(x, y)
    if isinstance(data, DataLoader):
        known = type(data.sampler) in (SequentialSampler, RandomSampler, SubsetRandomSampler)
        known = known and data.batch_size is not None and data.collate_fn is default_collate
        require(known, f"{where}: a DataLoader with a sampler, a collate_fn or batches of its own; give its Dataset")
        dataset: Any = data.dataset
        data = Subset(dataset, list(getattr(data.sampler, "indices", range(len(dataset)))))
    return _of_samples(where, data, columns)


def _of_samples(where: str, data: Any, columns: Sequence[str | int]) -> OwnArrays:
    """The samples of a Dataset, or of a list of samples; `columns` are two, or three if each says its client."""
    sized = hasattr(data, "__getitem__") and isinstance(data, Sized) and not isinstance(data, str | np.ndarray | Tensor)
    expected = "(x, y) as arrays, a torch Dataset, a list of samples (x, y), or a DataLoader"
    require(sized, f"{where}: expected {expected}, got a {type(data).__name__}")
    require(len(data) > 0, f"{where}: no samples")
    xs: list[tuple[str, Any]] = []
    others: list[list[Any]] = []
    for i in range(len(data)):
        x, *rest = _entries(said := f"{where}: sample {i}", data[i], columns)
        xs.append((said, _as_x(f"{said}: x", x, row=True)))
        others.append([value.item() if getattr(value, "ndim", None) == 0 else value for value in rest])
    twice = (xs[0][1], _as_x(where, _entries(where, data[0], columns)[0], row=True))
    if not all(map(np.array_equal, *(list(x.values()) if isinstance(x, dict) else [x] for x in twice))):
        said = "its first sample is another one each time it is read; each is read once here, and kept as it was"
        warnings.warn(f"{where}: {said} then: leave random transforms out", stacklevel=4)
    rest = [as_array(f"{where}: {XYC[i + 1]}", list(one)) for i, one in enumerate(zip(*others, strict=True))]
    found = _class_names(where, data, (columns[1], *LABELS))
    return OwnArrays(joined("x", xs), rest[0], rest[1] if rest[1:] else None, classes=found)


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
        has = listed((shown(str(name)) for name in sample), 10)
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
        alike = array.dtype == first.dtype or (name == "y" and (array.dtype.kind in "SU") == (first.dtype.kind in "SU"))
        fits = alike and array.shape[1:] == first.shape[1:]
        this, one = (f"shape {['n', *a.shape[1:]]} and {a.dtype}".replace("'", "") for a in (array, first))
        require(fits, f"{other}: {name} of {this}, but {where}: of {one}; all need the same")
    return np.concatenate([array for _, array in parts])


def _class_names(where: str, data: Any, labels: Sequence[str | int]) -> tuple[str, ...] | None:
    """The names of a data set's classes, by their numbers; None: it says none, or changes its labels afterwards.

    It says them by `class_to_idx` or `classes` (torchvision's `ImageFolder`), or as a `ClassLabel` (Hugging Face) of
    one of the columns `labels`. Of a `Subset` or a `ConcatDataset` the data sets beneath it count.
    """
    if isinstance(data, Subset | ConcatDataset):
        beneath = data.datasets if isinstance(data, ConcatDataset) else [data.dataset]
        found = {_class_names(where, one, labels) for one in beneath}
        same = f"{where}: the data sets of a ConcatDataset number their classes differently; give them singly"
        require(len(found) == 1, same)
        return found.pop()
    numbers, features = getattr(data, "class_to_idx", None), getattr(data, "features", None)
    names = getattr(data, "classes", None)
    if isinstance(features, Mapping):
        names = getattr(next((features[name] for name in labels if name in features), None), "names", None)
    elif getattr(data, "target_transform", None) is not None:
        return None
    elif isinstance(numbers, Mapping) and sorted(numbers.values()) == list(range(len(numbers))):
        names = sorted(numbers, key=lambda name: numbers[name])
    if not names or not isinstance(names, list | tuple) or not all(isinstance(name, str | tuple) for name in names):
        return None
    return tuple(name if isinstance(name, str) else ", ".join(map(str, name)) for name in names)  # ImageNet: synonyms


def _joined_by_name(parts: list[Part]) -> list[Part]:
    """The parts with one numbering of the classes: that of all, or, where they differ, by alphabet.

    UserError: some parts have names and others have none; or a label has no name.
    """
    named = [(where, part) for where, part in parts if part.classes is not None]
    if not named or any(part.y.ndim != 1 or part.y.dtype.kind not in "iu" for _, part in parts):
        return [(where, part._replace(classes=None)) for where, part in parts]
    (some, first), found = named[0], []
    same = all(part.classes == first.classes for _, part in named)
    every = first.classes if same else tuple(sorted({name for _, part in named for name in part.classes}))
    for where, part in parts:
        names, y = part.classes, part.y
        told = f"{where}: its data set does not name its classes, but that of {some} does"
        require(names is not None, f"{told}; all need names, or none")
        wrong = int(np.argmax((y < 0) | (y >= len(names))))
        said = f"{where}: label {y[wrong]} at sample {wrong}, but its data set names {len(names)} classes"
        require(0 <= y[wrong] < len(names), f"{said} ({listed(names, 3)})")
        codes = np.array([every.index(name) for name in names])[y]
        found.append((where, part._replace(y=codes, classes=every)))
    return found
