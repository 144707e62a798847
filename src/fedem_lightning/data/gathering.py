"""Samples gathered as arrays from what torch users hold: data sets, data loaders and pairs of arrays, client by client.

Samples keep their order: that of the dictionary's clients, and in a client that of its data set. A data loader's data
set is read in its own order, too, and to its end: `shuffle` and `drop_last` change nothing.
"""

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
)

from fedem_lightning.data.arrays import as_array
from fedem_lightning.data.fields import as_fields, joined_fields
from fedem_lightning.data.names import shown
from fedem_lightning.errors import require

XY = ("x", "y")
LABELS = ("y", "labels", "label")
"""Names of a sample's label where its other entries are x."""


class Part(NamedTuple):
    """Samples of one client: x [n, ...], y [n] or [n, k], and, if each sample says it, the client [n]."""

    where: str  # for messages
    x: Any  # an array, or a dictionary of arrays
    y: np.ndarray
    client: np.ndarray | None = None


def clients_of(name: str, data: Any) -> dict[Any, Any]:
    """The samples of each client by its name; those of a list are 0, 1, ...

    Raises:
        UserError: this is neither a dictionary nor a list, or is empty.

    """
    found = dict(data) if isinstance(data, Mapping) else dict(enumerate(data)) if isinstance(data, list) else None
    expected = f"{name}: expected a dictionary client -> samples, or a list with an entry for each client"
    require(found is not None, f"{expected}, got a {type(data).__name__}")
    assert found is not None
    require(len(found) > 0, f"{expected}, got none")
    return found


def part_of(where: str, data: Any, columns: Sequence[str | int] | None) -> Part:
    """The samples of one client.

    Args:
        where: whose they are; messages begin with it.
        data: (x, y), or a dictionary of both, as arrays; a Dataset or a list of samples (x, y); or a DataLoader. x may
            be a dictionary of arrays or a tuple of them. A dictionary without "x" is x itself, less its label.
        columns: names of x and y in dictionaries; default: "x", "y".

    Raises:
        UserError: it is none of these, or its samples do not fit together.

    """
    if isinstance(data, tuple | Mapping):
        x, y = _entries(where, data, columns or XY)
        return checked(Part(where, _as_x(f"{where}: x", x), as_array(f"{where}: y", y)))
    if isinstance(data, DataLoader):
        with torch.random.fork_rng(devices=[]):  # a loader draws a seed
            batches = [part_of(where, _as_pair(batch), columns) for batch in _in_order(where, data)]
        require(bool(batches), f"{where}: no samples")
        return Part(where, joined("x", batches), joined("y", batches))
    return samples_of(where, data, columns or XY)


def samples_of(where: str, data: Any, columns: Sequence[str | int]) -> Part:
    """The samples of a Dataset, or of a list of samples; `columns` are two, or three if each says its client."""
    iterable = isinstance(data, IterableDataset)
    sized = hasattr(data, "__getitem__") and isinstance(data, Sized) and not isinstance(data, str | np.ndarray | Tensor)
    expected = "(x, y) as arrays, a torch Dataset, a list of samples (x, y), or a DataLoader"
    require(iterable or sized, f"{where}: expected {expected}, got a {type(data).__name__}")
    found: list[list[Any]] = [[] for _ in columns]
    for i, sample in enumerate(data if iterable else (data[i] for i in range(len(data)))):
        entries = _entries(f"{where}: sample {i}", sample, columns)
        x = _as_x(f"{where}: x of sample {i}", entries[0])
        first = found[0][0] if i else x
        if isinstance(x, np.ndarray) and isinstance(first, np.ndarray):
            unlike = f"{where}: sample {i} has x of shape {list(x.shape)} and {x.dtype}"
            fits = x.shape == first.shape and x.dtype == first.dtype
            require(fits, f"{unlike}, sample 0 of {list(first.shape)} and {first.dtype}; all need the same")
        for values, value in zip(found, (x, *map(_value, entries[1:])), strict=True):
            values.append(value)
    require(bool(found[0]), f"{where}: no samples")
    if not iterable:
        _warn_of_random(where, found[0][0], _as_x(where, _entries(where, data[0], columns)[0]))
    x, y = _stacked(where, found[0]), as_array(f"{where}: y", found[1])
    return checked(Part(where, x, y, as_array("client", found[2]) if len(found) == 3 else None))


def _as_x(name: str, value: Any) -> Any:
    """An array, or a dictionary of arrays: a tuple of tensors is one of "0", "1", ..."""
    if isinstance(value, tuple) and value and all(isinstance(part, Tensor | np.ndarray) for part in value):
        value = {str(i): part for i, part in enumerate(value)}
    if not isinstance(value, Mapping):
        return as_array(name, value)
    return {str(key): as_array(f"{name}: {key}", part) for key, part in value.items()}


def _stacked(where: str, samples: Sequence[Any]) -> Any:
    """x of single samples, [n, ...]."""
    if isinstance(samples[0], np.ndarray):
        return np.stack(samples)
    return joined_fields([(where, {key: part[None] for key, part in x.items()}) for x in samples])


def joined(name: str, parts: Sequence[Part]) -> Any:
    """x or y of all samples, part after part.

    Raises:
        UserError: a part's samples have another shape than those of the first, or another type.

    """
    arrays = [getattr(part, name) for part in parts]
    first = arrays[0]
    if isinstance(first, dict):
        return joined_fields([(part.where, part.x) for part in parts])
    for part, array in zip(parts, arrays, strict=True):
        kinds = (array.dtype, first.dtype) if name == "x" else (_kind(array), _kind(first))
        fits = array.shape[1:] == first.shape[1:] and kinds[0] == kinds[1]
        this, other = (f"shape [n{''.join(f', {size}' for size in a.shape[1:])}] and {a.dtype}" for a in (array, first))
        require(fits, f"{part.where}: {name} of {this}, but {parts[0].where}: of {other}; all need the same")
    return np.concatenate(arrays)


def _kind(array: np.ndarray) -> str:
    return "text" if array.dtype.kind in "SU" else "numbers"


def checked(part: Part) -> Part:
    """The same; UserError unless x are numbers, and x and y have an entry for each sample."""
    where, x, y, _ = part
    if isinstance(x, dict):
        x = next(iter(as_fields(f"{where}: x", x).values()))
    require(x.dtype.kind in "fiub", f"{where}: expected numbers as x, got dtype {x.dtype}")
    has = x.ndim > 0 and y.ndim > 0
    require(has, f"{where}: expected x [n, ...] and y [n], got shapes {list(x.shape)} and {list(y.shape)}")
    require(len(x) == len(y), f"{where}: x has {len(x)} samples, y has {len(y)}")
    require(len(x) > 0, f"{where}: no samples")
    return part


def _value(value: Any) -> Any:
    """A label, or the client of a sample: tensors and arrays of one number as that number."""
    if isinstance(value, Tensor | np.ndarray | np.generic):
        return value.item() if value.ndim == 0 else np.asarray(value)
    return value


def _entries(where: str, sample: Any, columns: Sequence[str | int]) -> tuple[Any, ...]:
    """x, y and, of three columns, the client."""
    wanted = "(x, y)" if len(columns) == 2 else "(x, y, client)"
    if isinstance(sample, Mapping):
        label = next((name for name in LABELS if name in sample), None)
        if columns[:2] == XY and "x" not in sample and label is not None:
            others = [label, *columns[2:]]
            x = {name: part for name, part in sample.items() if name not in others}
            sample = {"x": x, "y": sample[label], **{name: sample[name] for name in others[1:] if name in sample}}
        missing = [str(name) for name in columns if name not in sample]
        has = ", ".join(shown(str(name)) for name in list(sample)[:10])
        require(not missing, f"{where}: no {', '.join(missing)} in it, but {has}; columns names those of {wanted}")
        return tuple(sample[name] for name in columns)
    fits = isinstance(sample, tuple | list) and len(sample) == len(columns)
    got = f"{len(sample)} entries" if isinstance(sample, tuple | list) else f"a {type(sample).__name__}"
    require(fits, f"{where}: expected {wanted}, got {got}")
    return tuple(sample)


def _as_pair(batch: Any) -> Any:
    """A loader's batch, which is a list where its samples are tuples."""
    return tuple(batch) if isinstance(batch, list) else batch


def _in_order(where: str, loader: "DataLoader[Any]") -> Iterable[Any]:
    """The batches of a loader, whose data set is read in order and whole unless it has a sampler of the user's own."""
    require(loader.batch_sampler is not None, f"{where}: a DataLoader without batches; give its Dataset")
    sampler, data = loader.sampler, loader.dataset
    known = type(loader.batch_sampler) is BatchSampler and not isinstance(data, IterableDataset)
    if not known or type(sampler) not in (SequentialSampler, RandomSampler, SubsetRandomSampler):
        return loader
    subset = Subset(data, list(sampler.indices)) if isinstance(sampler, SubsetRandomSampler) else data
    size, collate = loader.batch_size, loader.collate_fn
    if isinstance(subset, Sized) and len(subset) > 0:
        _warn_of_random(where, *(_read_first(collate([subset[0]])) for _ in range(2)))
    return DataLoader(subset, batch_size=size, collate_fn=collate, num_workers=loader.num_workers)


def _read_first(batch: Any) -> Any:
    """Something of a batch that a random transform would change."""
    values: Iterator[Any] = iter(batch.values() if isinstance(batch, Mapping) else batch)
    return next(values, None)


def _warn_of_random(where: str, x: Any, again: Any) -> None:
    """Warns if the first sample has changed when it is read again."""
    first, second = (value.values() if isinstance(value, Mapping) else [value] for value in (x, again))
    if not all(np.array_equal(np.asarray(a), np.asarray(b)) for a, b in zip(first, second, strict=False)):
        said = "its first sample is another one each time it is read; each is read once here, and kept as it was then"
        warnings.warn(f"{where}: {said}: leave random transforms out", stacklevel=4)
