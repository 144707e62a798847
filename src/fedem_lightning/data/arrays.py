"""Checks of a user's own arrays and names, one by one: what these let through is not checked again.

Samples must be finite in float32, in which models compute: what is not is refused, and its first client named.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from fedem_lightning.data.tasks import MISSING, LanguageModel, MultiLabel, Task, TaskName
from fedem_lightning.settings.errors import UserError, given, require
from fedem_lightning.settings.measures import SPLITS

FEW_CLASSES, LARGEST_Y = 1000, 10**6
"""More classes than the first, and than samples, are refused unless set: ids as labels would make a huge network."""


def as_array(name: str, values: Any) -> np.ndarray:
    """An array, list or pandas column as an array; Python's strings or whole numbers become NumPy's, others fail."""
    expected = f"{name}: expected an array, got a {type(values).__name__}"
    require(not np.ma.is_masked(values), f"{expected} with masked values; leave their samples out, or fill them")
    try:
        array = np.asarray(values)
    except (TypeError, ValueError, RuntimeError) as error:  # rows of different lengths, a tensor with a gradient
        raise UserError(f"{expected} ({' '.join(str(error).split())})") from error
    array = array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))
    if array.dtype.kind == "U" and not isinstance(values, np.ndarray):
        array = np.asarray(values, dtype=object)  # from a list: otherwise NaN would become a string
    if array.dtype.kind not in ("O", "T") or array.ndim != 1:
        return array
    if all(isinstance(value, str) for value in array):
        return np.array(checked_names(name, array.tolist()), dtype=np.str_)
    kinds = sorted({type(value).__name__ for value in array})
    whole = all(isinstance(value, int | np.integer) for value in array)
    require(whole, f"{name}: expected only strings, or only whole numbers, got {' and '.join(kinds)}")
    return array.astype(np.int64)


def as_rows(name: str, values: Any) -> np.ndarray:
    """The same as `as_array`, of at least one axis."""
    array = as_array(name, values)
    require(array.ndim > 0, f"{name}: expected an array with an entry for each sample, got {given(values)}")
    return array


def as_fields(name: str, values: Any, names: Sequence[str] | None = None) -> dict[str, np.ndarray]:
    """Several arrays by name, of at least one axis and of equal lengths: those of `names`, or all of the dictionary."""
    fits = isinstance(values, Mapping) and len(values) > 0
    require(fits, f"{name}: expected a dictionary of arrays, got {given(values)}")
    missing = [one for one in names or () if one not in values]
    require(not missing, f"{name}: no {', '.join(missing)} in it; expected the arrays {', '.join(names or ())}")
    result = {str(key): as_rows(f"{name}: {key}", values[key]) for key in names or values}
    reason = ", ".join(f"{key} {len(array)}" for key, array in result.items())
    same = len({len(array) for array in result.values()}) == 1
    require(same, f"{name}: expected as many samples in every array, got {reason}")
    return result


def check_length(name: str, array: np.ndarray, n: int) -> None:
    """Raises UserError unless an array has one entry for each of n samples."""
    require(array.shape == (n,), f"{name}: expected shape ({n},) as x has, got {array.shape}")


def check_features(
    x: np.ndarray, client: np.ndarray | None = None, names: Sequence[str] | None = None, name: str = "x"
) -> np.ndarray:
    """Returns features [n, ...] as uint8, as a signed type of whole numbers, as float32 or as float64.

    They must be finite in float32. The message names the first wrong sample's client: `client` int [n], `names` [T].
    """
    require(x.dtype.kind in "fiub", f"{name}: expected numbers, got dtype {x.dtype}")
    check_finite(name, x, client, names)
    if x.dtype.kind == "u" and x.dtype != np.uint8:
        return x.astype(np.int32 if x.dtype.itemsize == 2 else np.int64)
    return x.astype(np.float32) if x.dtype.kind == "b" or x.dtype == np.float16 else x


def check_finite(
    name: str, array: np.ndarray, client: np.ndarray | None = None, names: Sequence[str] | None = None
) -> None:
    """Raises UserError if a sample [n, ...] has a value that is not finite, or too large for float32; see above."""
    if array.dtype.kind != "f" or not array.size:
        return
    with np.errstate(over="ignore"):
        bad = ~np.isfinite(array.astype(np.float32, copy=False)).reshape(len(array), -1).all(axis=1)
    if not bad.any():
        return
    first, n = int(bad.argmax()), int(bad.sum())
    what = "numbers too large for float32" if np.isfinite(array[bad]).all() else "NaN or infinity"
    whose = "" if client is None or names is None else f", of client {shown(names[client[first]])}"
    raise UserError(f"{name}: {what} in {n} sample{'s' * (n != 1)}, the first is number {first}{whose}")


def check_labels(y: np.ndarray, n_classes: int | None, n: int, name: str = "y") -> tuple[np.ndarray, int]:
    """Returns labels int64 [n] in 0..n_classes-1 and the number of classes; anything else is a UserError."""
    check_length(name, y, n)
    y = whole_numbers(name, y)
    if n_classes is None:
        n_classes = max(2, int(y.max()) + 1)
        small = f"{n_classes} classes in {n} samples; number them 0..Y-1, or set n_classes"
        fits = n_classes <= min(max(FEW_CLASSES, n), LARGEST_Y)
        require(fits, f"{name}: the largest label, {n_classes - 1}, would make {small}")
    _require_all((y >= 0) & (y < n_classes), y, f"is outside the {n_classes} classes 0..{n_classes - 1}", name)
    return y, n_classes


def whole_numbers(name: str, y: np.ndarray) -> np.ndarray:
    """Whole numbers [n, ...] of any dtype as int64; anything else is a UserError that names the first sample."""
    require(y.dtype.kind in "iubf", f"{name}: expected whole numbers, got dtype {y.dtype}")
    if y.dtype.kind == "f" or y.dtype == np.uint64:  # others fit
        fits = np.isfinite(y) & (y == np.round(y)) & (np.abs(y) <= 2.0**53)
        _require_all(fits, y, "is no whole number", name)
    return y.astype(np.int64)


def _require_all(right: np.ndarray, values: np.ndarray, wrong: str, name: str = "y") -> None:
    """Raises UserError that names the first value of which `right` is not true."""
    if not right.all():
        first = np.unravel_index(int(right.argmin()), right.shape)
        raise UserError(f"{name}: label {values[first]} at sample {first[0]} {wrong}")


def checked_labels(task: TaskName, y: np.ndarray, n_classes: int | None, n: int) -> tuple[np.ndarray, int]:
    """Labels of a task, checked: int64 [n, ...] with `MISSING`, or real targets [n] or [n, k] with NaN; and Y, or 0.

    Missing labels are -100 or NaN, of real targets NaN; only a sample of several labels may miss some.
    """
    if task in ("classification", "binary"):
        return check_labels(y, n_classes, n)
    if task == "regression":
        require(y.dtype.kind in "fiub", f"y: expected numbers, got dtype {y.dtype}")
        fits = y.ndim in (1, 2) and len(y) == n and y.size > 0
        require(fits, f"y: expected shape ({n},) or ({n}, targets), got {y.shape}")
        check_finite("y", np.where(np.isnan(y), 0, y) if y.ndim == 2 and y.shape[1] > 1 else y)
        return y if y.dtype in (np.float32, np.float64) else y.astype(np.float32), 0
    fits = y.ndim == 2 and len(y) == n and y.size > 0
    shape = "labels" if task == "multilabel" else "positions"
    require(fits, f"y: {task} expects labels [n, {shape}] of {n} samples, got shape {list(y.shape)}")
    y = whole_numbers("y", np.where(np.isnan(y), MISSING, y) if y.dtype.kind == "f" else y)
    if task == "multilabel":
        require(n_classes is None, "n_classes: a multilabel task has as many labels as y has columns")
        _require_all((y == MISSING) | (y == 0) | (y == 1), y, "is none of 0, 1 and -100 (missing)")
        return y, 0
    n_classes = max(2, int(y.max()) + 1) if n_classes is None else n_classes
    inside = (y == MISSING) | ((y >= 0) & (y < n_classes))
    _require_all(inside, y, f"is outside the {n_classes} classes 0..{n_classes - 1}, and not -100 (missing)")
    return y, n_classes


def labels_of_task(task: Task, y: np.ndarray) -> np.ndarray:
    """New labels of the task of a model, checked: of one with several a sample, or real targets."""
    name: TaskName = "multilabel" if isinstance(task, MultiLabel) else "language" if has_several(task) else "regression"
    result, _ = checked_labels(name, y, getattr(task, "n_classes", None), len(y))
    size = task.n_targets if has_several(task) else task.n_outputs
    require(result[0].size == size, f"y: expected {size} labels for each sample as in training, got {result[0].size}")
    unknown = np.flatnonzero(~has_any(result))
    require(not len(unknown), f"y: no label is known of sample {listed(map(str, unknown))}")
    return result


def has_several(task: Task) -> bool:
    """Whether a sample has several labels, of which some may be missing: it is of no class of its own."""
    return isinstance(task, MultiLabel | LanguageModel)


def is_known(y: np.ndarray) -> np.ndarray:
    """Which labels are known, bool of the shape of y: see `fedem_lightning.data.tasks.known`."""
    return ~np.isnan(y) if y.dtype.kind == "f" else y != MISSING


def has_any(y: np.ndarray) -> np.ndarray:
    """Which samples have a label that is known: y [n, ...] -> bool [n]."""
    return np.asarray(is_known(y).reshape(len(y), -1).any(axis=1))


def check_clients(client: np.ndarray, names: np.ndarray | None, n: int) -> tuple[np.ndarray, tuple[str, ...]]:
    """Returns client indices int64 [n] in 0..T-1 and the clients' names [T]; anything else is a UserError."""
    check_length("client", client, n)
    if names is None:
        codes, result = distinct_values("client", client)
        return codes, tuple(result)
    names = as_array("names", names)
    require(names.ndim == 1 and names.dtype.kind in "iuU", f"names: expected strings [T], got dtype {names.dtype}")
    inside = client.dtype.kind in "iu" and client.min() >= 0 and client.max() < len(names)
    require(inside, f"client: with names it must be whole numbers in 0..{len(names) - 1}, one for each name")
    return client.astype(np.int64), tuple(checked_names("names", [str(name) for name in names], unique=True))


def distinct_values(name: str, values: np.ndarray) -> tuple[np.ndarray, list[str]]:
    """The index of each value among the distinct values, int64 [n], and these as strings, in ascending order."""
    require(values.dtype.kind in "iubU", f"{name}: expected whole numbers or strings, got dtype {values.dtype}")
    distinct, codes = np.unique(values, return_inverse=True)
    return codes.astype(np.int64), checked_names(name, [str(value) for value in distinct])


def check_split(split: np.ndarray, n: int) -> np.ndarray:
    """Returns codes int8 [n], 0 train, 1 val, 2 test, from codes or words; anything else is a UserError."""
    check_length("split", split, n)
    words = split.dtype.kind == "U"
    require(words or split.dtype.kind in "iu", f"split: expected 0 train, 1 val, 2 test, got dtype {split.dtype}")
    known = np.isin(split, SPLITS if words else (0, 1, 2))
    expected = f"the words {', '.join(SPLITS)}" if words else "0 train, 1 val, 2 test"
    wrong = int(known.argmin())
    require(bool(known.all()), f"split: expected {expected}, got {shown(str(split[wrong]))} at sample {wrong}")
    return (np.select([split == word for word in SPLITS], range(3)) if words else split).astype(np.int8)


def checked_names(what: str, names: Sequence[str], unique: bool = False) -> list[str]:
    """Returns the names; UserError for one with a NUL or a surrogate, and if `unique` for a double."""
    for i, name in enumerate(names):
        odd = any(letter == "\0" or "\ud800" <= letter <= "\udfff" for letter in name)
        require(not odd, f"{what}: number {i}, {shown(name)}, has a character that no file can hold")
    if unique:
        twice = [shown(name) for name, n in Counter(names).items() if n > 1]
        require(not twice, f"{what}: expected different names, got {listed(twice)} twice")
    return list(names)


def shown(name: str) -> str:
    """A name as it may stand in a message of one line: long ones are cut, odd characters escaped."""
    cut = name if len(name) <= 60 else f"{name[:57]}..."
    return cut if cut.isprintable() else ascii(cut)


def listed(names: Iterable[str], most: int = 5) -> str:
    """The first names, for a message."""
    all_names = list(names)
    return ", ".join(all_names[:most]) + ", ..." * (len(all_names) > most)


def printable(text: str) -> str:
    """Text of others as any terminal can show it: control characters but line ends, and surrogates, are escaped."""
    whole = text.encode("utf-8", "backslashreplace").decode()
    return "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in whole)
