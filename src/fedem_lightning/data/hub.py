"""Anyone's federation from a Hugging Face data set: `dataset=hub`."""

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from fedem_lightning.data.arrays import as_array, listed
from fedem_lightning.data.datamodule import FederatedDataModule
from fedem_lightning.data.own_data import OwnArrays, OwnOptions, checked_federation
from fedem_lightning.data.samples import MASK
from fedem_lightning.settings.check import grouped
from fedem_lightning.settings.errors import UserError, given, imported, of_a_file, one_line, require
from fedem_lightning.settings.ranges import Column, Columns, PositiveInt

FILES = {".parquet": "parquet", ".csv": "csv", ".json": "json", ".jsonl": "json"}
SPLIT_NAMES = {"train": 0, "validation": 1, "valid": 1, "val": 1, "test": 2}
"""Splits of a data set by name, and their codes."""


class HubDataModule(FederatedDataModule):
    """Reads columns of a data set: a label, a client, and as x a text, an image, or numbers.

    Texts become `input_ids` and `attention_mask` [n, L] by a tokenizer, images bytes [n, h, w] or [n, h, w, channels].
    They stay in memory, in the smallest whole numbers that hold them.

    Args:
        path: a folder of `save_to_disk`; a .parquet, .csv, .json or .jsonl file; or from Python a `datasets.Dataset` or
            a `DatasetDict`, such as `datasets.load_dataset(NAME)` downloads.
        label: name of the label's column.
        client: name of the client's column; None: `partition` deals the rows to clients.
        text: name of a column of texts.
        image: name of a column of images.
        features: names of columns of numbers, or of lists of them; default: all columns of numbers that are left.
        split: name of a column with train, val, test; None: the data set's own splits, if it has several (val is also
            called valid and validation), else drawn per client by `fractions`.
        tokenizer: of the texts: a model's folder or its name on the Hub; or a function from texts to a dictionary.
        max_length: L at most, in tokens.
        options: those of `TaskOptions`, `Partitioning` and `OwnSplitting`.

    """

    def __init__(
        self,
        path: Any,
        label: Column | None = None,
        client: Column | None = None,
        *,
        text: Column | None = None,
        image: Column | None = None,
        features: Columns | None = None,
        split: Column | None = None,
        tokenizer: str | Callable[..., Any] | None = None,
        max_length: PositiveInt = 128,
        **options: Annotated[Any, OwnOptions],
    ) -> None:
        (own,) = grouped(options, OwnOptions)
        kinds = [kind for kind, one in (("text", text), ("image", image), ("features", features)) if one is not None]
        require(len(kinds) < 2, f"{' and '.join(kinds)}: expected one of them, which is x")
        numbers = None if features is None else [str(name) for name in features]
        datasets = imported("datasets", "hf", "dataset")
        parts = _parts(datasets, path)
        with of_a_file("path: expected the same columns in all splits"):
            data = datasets.concatenate_datasets(list(parts.values()))
        has = listed(data.column_names, 10)
        require(label is not None, f"label: expected the name of a column; the data set has {has}")
        others = [str(column) for column in (label, client, split, own.parts[1]) if column is not None]
        chosen = [*others, *(str(column) for column in (text, image) if column is not None), *(numbers or ())]
        missing = [column for column in chosen if column not in data.column_names]
        require(not missing, f"path: the data set has no column {', '.join(missing)}, but {has}")
        require(len(data) > 0, "path: the data set has no rows")
        if text is not None:
            x: Any = _tokens(data, str(text), tokenizer, max_length)
        else:
            x = _numbers(data, numbers, others) if image is None else _images(data, str(image))
        owner, codes, times = (None if c is None else _column(data, str(c)) for c in (client, split, own.parts[1]))
        if split is None and len(parts) > 1:
            codes = np.repeat([SPLIT_NAMES[part] for part in parts], [len(part) for part in parts.values()])
        notes = {"source": str(path)} if isinstance(path, str | Path) else {}
        if not notes:
            self.made_with["path"] = type(path).__name__  # it would keep the samples in memory twice
        path = tokenizer = None  # Lightning compares arguments by ==
        names = getattr(data.features[str(label)], "names", None)
        classes = None if names is None else tuple(names)
        arrays = OwnArrays(x, _column(data, str(label)), owner, codes, by=times, classes=classes)
        super().__init__(checked_federation(arrays, own, notes))


def _parts(datasets: Any, path: Any) -> dict[str, Any]:
    """The splits by name of a data set: a folder of `save_to_disk`, a file, or an object."""
    if isinstance(path, str | Path):
        place = Path(path).expanduser()
        kind = FILES.get(place.suffix.lower())
        require(place.exists(), f"path: no file or folder {place}; datasets.load_dataset downloads one by its name")
        with of_a_file(f"path: no data set in {place}"):
            path = datasets.load_dataset(kind, data_files=str(place)) if kind else datasets.load_from_disk(str(place))
    if isinstance(path, Mapping):
        known = len(path) == 1 or all(split in SPLIT_NAMES for split in path)
        expected = "expected splits called train, validation (or valid, val) and test"
        require(known, f"path: {expected}, got {', '.join(map(str, path))}; give one of them as a Dataset")
        return dict(path)
    require(isinstance(path, datasets.Dataset), f"path: expected a folder, a file, or a Dataset, got {given(path)}")
    return {"": path}


def _column(data: Any, name: str) -> np.ndarray:
    """A column of numbers, strings, or lists of equal length."""
    values = data.with_format("arrow")[:][name]
    require(values.null_count == 0, f"{name}: {values.null_count} rows have no value")
    return as_array(name, values.to_pylist())


def _numbers(data: Any, names: Sequence[str] | None, others: Sequence[str]) -> np.ndarray:
    """Columns of numbers side by side, [n, d]; a single one of lists keeps its shape."""
    if names is None:
        kinds = {name: str(getattr(kind, "dtype", "")) for name, kind in data.features.items() if name not in others}
        names = [name for name, kind in kinds.items() if kind.startswith(("int", "uint", "float", "bool"))]
        require(bool(names), "features: no column of numbers is left; name text, image or features")
    columns = [_column(data, name) for name in names]
    if len(columns) == 1 and columns[0].ndim > 1:
        return columns[0]
    return np.concatenate([values.reshape(len(values), -1) for values in columns], axis=1)


def _images(data: Any, name: str) -> np.ndarray:
    """Images of bytes: uint8 [n, h, w] or [n, h, w, channels]."""
    images = [np.asarray(row[name]) for row in data.select_columns(name)]
    require(len({image.shape for image in images}) == 1, "image: the images differ in size; all need the same")
    return np.stack(images).astype(np.uint8)


def _tokens(data: Any, name: str, tokenizer: Any, max_length: int) -> dict[str, np.ndarray]:
    """Tokens of texts and their mask, [n, L], padded at the end to the longest text; `datasets` caches them."""
    require(tokenizer is not None, "tokenizer: texts need one, expected a model's folder or its name on the Hub")
    if isinstance(tokenizer, str | Path):
        transformers = imported("transformers", "hf", "tokenizer")
        try:
            tokenizer = transformers.AutoTokenizer.from_pretrained(str(tokenizer))
        except Exception as error:  # no such folder or name, no network, a broken file
            raise UserError(f"tokenizer: none in {tokenizer} ({one_line(error).split('. ')[0]:.150})") from error
    if hasattr(tokenizer, "model_max_length"):  # one of Hugging Face
        tokenizer = functools.partial(tokenizer, truncation=True, max_length=max_length)
    kind = data.features[name].dtype
    require(kind in ("string", "large_string"), f"text: column {name} has no texts, but {kind}")

    def tokenised(rows: Mapping[str, list[Any]]) -> dict[str, Any]:
        return {"input_ids": tokenizer([text or "" for text in rows[name]])["input_ids"]}

    ids = data.map(tokenised, batched=True, remove_columns=data.column_names).with_format("arrow")
    lists = ids[:]["input_ids"].combine_chunks()
    lengths = lists.value_lengths().to_numpy(zero_copy_only=False)
    mask = np.arange(max(1, int(lengths.max()))) < lengths[:, None]  # [n, L]
    values = lists.flatten().to_numpy(zero_copy_only=False)
    result = np.zeros(mask.shape, dtype=np.int16 if values.max(initial=0) < 2**15 else np.int32)
    result[mask] = values
    return {"input_ids": result, MASK: mask.astype(np.int8)}
