"""Tables with a row a sample: .csv, .tsv, .parquet."""

import csv
import re
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet

from fedem_lightning.data.formats import reading
from fedem_lightning.data.names import checked_names
from fedem_lightning.errors import UserError, require

SEPARATORS = {".csv": ",", ".tsv": "\t"}
WHOLE = re.compile(r"0|-?[1-9]\d{0,17}")
WHOLE_WITH_POINT = re.compile(r"(0|-?[1-9]\d{0,17})\.0")
INDEX = re.compile(r"__index_level_\d+__")  # an index without a name, which pandas writes to .parquet


def read_table(path: Path, ids: Sequence[str] = ()) -> pd.DataFrame:
    """The table, with the types that its values or the file say; UTF-8, and the first line has the columns' names.

    In .csv and .tsv an empty field, NA, NaN, null and None are missing values, and columns `ids` of clients are read as
    text: 01 and 1 are two clients. They are whole numbers only if all are written as such, or all end in .0.
    """
    suffix = path.suffix.lower()
    require(suffix in (*SEPARATORS, ".parquet"), f"path: expected a .csv, .tsv or .parquet file, got {path.name}")
    with reading(path, suffix):
        try:
            frame = _read_parquet(path) if suffix == ".parquet" else _read_text(path, SEPARATORS[suffix], ids)
        except UnicodeDecodeError as error:
            raise UserError(f"path: {path} is no UTF-8 text ({error.reason} at byte {error.start})") from error
    require(len(frame) > 0, f"path: {path} has no rows")
    return frame


def _read_text(path: Path, separator: str, ids: Sequence[str]) -> pd.DataFrame:
    with path.open(encoding="utf-8-sig", newline="") as file:
        header = next(filter(None, csv.reader(file, delimiter=separator, skipinitialspace=True)), [])
    require(bool(header), f"path: {path} is empty")
    other = next((sign for sign in ";\t,|" if len(header) == 1 and sign in header[0]), None)
    how = f"save it with {'commas' if separator == ',' else 'tabs'}, and decimal points"
    require(other is None, f"path: {path} seems to be separated by {other!r}; {how}")
    _check_names(path, header)
    more: dict[str, Any] = {"skipinitialspace": True, "index_col": False, "low_memory": False, "encoding": "utf-8-sig"}
    with warnings.catch_warnings():
        warnings.simplefilter("error", pd.errors.ParserWarning)  # a row with more values than there are columns
        frame: pd.DataFrame = pd.read_csv(path, sep=separator, dtype=dict.fromkeys(ids, str), **more)
    return frame.assign(**{name: _whole_if_written_so(frame[name]) for name in ids if name in frame})


def _whole_if_written_so(column: pd.Series) -> pd.Series:
    """Texts as whole numbers if all are written so; else as they are, but not other numbers, such as 1.5 and 1.50."""
    distinct = column.unique().tolist()
    for form in (WHOLE, WHOLE_WITH_POINT):
        if all(isinstance(text, str) and form.fullmatch(text) for text in distinct):
            return column.str.removesuffix(".0").astype(np.int64)
    numeric = np.isfinite(pd.to_numeric(pd.Series(distinct, dtype=object), errors="coerce").astype(float)).all()
    wrong = next((text for text in distinct if not text.isdigit()), None) if numeric else None
    require(wrong is None, f"client: expected whole numbers or strings, got {wrong} in column {column.name!r}")
    return column


def _read_parquet(path: Path) -> pd.DataFrame:
    file = pa.parquet.ParquetFile(path)
    names = [name for name in file.schema_arrow.names if not INDEX.fullmatch(name)]
    _check_names(path, names)
    frame = file.read(columns=names).to_pandas(ignore_metadata=True)  # else a named index would be no column
    said = (file.schema_arrow.pandas_metadata or {}).get("columns", [])
    categories = {column["field_name"] for column in said if column["pandas_type"] == "categorical"} & set(names)
    return frame.astype(dict.fromkeys(categories, "category")) if categories else frame  # slow for many columns


def _check_names(path: Path, names: list[str]) -> None:
    twice = [name for name, n in Counter(names).items() if n > 1 and name]
    require(not twice, f"path: {path} has several columns of the name {', '.join(twice)}")
    unnamed = [i for i, name in enumerate(names, 1) if not name]
    hint = "pandas writes its index so, unless told index=False"
    require(not unnamed, f"path: {path}: column {', '.join(map(str, unnamed))} has no name; {hint}")
    checked_names(f"path: {path}: columns", names)
