"""Columns of a table: whether they are numbers or categories, and their values as float64 or as words.

A word is a category's value as text: a string itself, a number without needless decimals ("3", "0.5"), or True, False.
"""

import difflib
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import pandas as pd

from fedem_lightning.data.arrays import as_array
from fedem_lightning.data.names import checked_names
from fedem_lightning.errors import UserError, require

Kind = Literal["number", "category"]
NUMBERS = ("integer", "floating", "mixed-integer-float", "decimal")
DATES = ("datetime64", "datetime", "date", "time", "timedelta64", "timedelta", "period")
"""What pandas' `infer_dtype` calls them."""

EXACT = 2**53
"""Up to here, float64 has all whole numbers."""

MISSING = "missing"
"""The category of a value that is missing, and the end of the name of an indicator."""

DATE = re.compile(r"\d{1,4}([-/.])\d{1,2}\1\d{1,4}([ T]\d.*)?")
DECIMAL_COMMA = re.compile(r"[-+]?[\d.]*,\d+")


def check_values(frame: pd.DataFrame, names: Sequence[str], filled: bool = False, way_out: str = "") -> None:
    """Looks for these columns, and for values that are missing or infinite.

    Args:
        frame: the table.
        names: of the columns.
        filled: whether values may be missing, because they are filled in later.
        way_out: ends the line about missing values.

    Raises:
        UserError: a column is not there or there twice; a value is missing or infinite, and the line says in how many
            rows of which columns.

    """
    there = Counter(frame.columns)
    for name in names:
        if not there[name]:
            near = difflib.get_close_matches(str(name), [str(column) for column in there], n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise UserError(f"column {name!r}: the table has none of this name{hint}")
        require(there[name] == 1, f"column {name!r}: the table has {there[name]} of this name")
    part = frame[list(names)]
    missing = part.isna().sum()
    shown = ", ".join(f"{name!r} in {n} of {len(part)} rows" for name, n in missing.items() if n)
    said = f"missing values: column {shown}; fill them in, or leave out these rows or columns{way_out}"
    require(filled or not shown, said)
    floats = part.loc[:, [isinstance(kind, np.dtype) and kind.kind == "f" for kind in part.dtypes]]
    n_infinite = np.isinf(floats.to_numpy()).sum(axis=0)  # [columns of floats]
    for i in np.flatnonzero(n_infinite)[:1]:
        said = f"column {floats.columns[i]!r}: {n_infinite[i]} of {len(part)} rows are infinite"
        raise UserError(f"{said}; correct them, or leave out these rows or the column")


def kind_of(column: pd.Series, as_category: bool = False, label: bool = False) -> Kind:
    """Whether a column without missing values holds numbers, or categories: strings, booleans, pandas categories.

    Args:
        column: the column; its name stands in errors.
        as_category: it is said to hold categories: numbers, and strings that look like numbers or dates, may be some.
        label: it holds labels, which sets what errors advise.

    Raises:
        UserError: it holds dates, lists, or numbers beside other words.

    """
    said = f"column {column.name!r} holds"
    way_out = "take another label" if label else "leave it out with features=[...]"
    category = as_category or isinstance(column.dtype, pd.CategoricalDtype)
    values = pd.Series(np.asarray(column), dtype=object) if isinstance(column.dtype, pd.CategoricalDtype) else column
    inferred = pd.api.types.infer_dtype(values, skipna=False)
    require(inferred not in DATES, f"{said} dates; make numbers of them, such as days since the first, or {way_out}")
    if inferred in NUMBERS:
        return "category" if category else "number"
    if inferred in ("mixed-integer", "mixed"):
        odd = sorted({type(value).__name__ for value in values})
        fits = category and {*odd} <= {"str", "int", "float"}
        require(fits, f"{said} values of the type{'s' * (len(odd) > 1)} {', '.join(odd)}; save one type, or {way_out}")
    else:
        known = inferred in ("string", "boolean")
        require(known, f"{said} {inferred} values; make numbers, strings or booleans of them, or {way_out}")
    if inferred == "string" and not category:
        known_as = "say task=classification" if label else "name it in categorical=[...]"
        _check_strings(said, pd.unique(values).astype(object), f"{known_as}, or {way_out}")
    return "category"


def _check_strings(said: str, distinct: Any, way_out: str) -> None:
    """Raises UserError if strings look like numbers or dates in part or altogether; `distinct` are all of them."""
    commas = all(DECIMAL_COMMA.fullmatch(word) for word in distinct)
    require(not commas, f"{said} numbers with a decimal comma, such as {distinct[0]}; save points, or {way_out}")
    dates = all(DATE.fullmatch(word) for word in distinct)
    require(not dates, f"{said} dates, such as {distinct[0]}; make numbers of them, or {way_out}")
    is_number = pd.to_numeric(pd.Series(distinct, dtype=object), errors="coerce").notna().to_numpy()
    if is_number.any() and not is_number.all():
        other = distinct[is_number.argmin()]
        raise UserError(f"{said} numbers and other words, such as {other!r}; correct it, or {way_out}")


def numbers(column: pd.Series) -> np.ndarray:
    """The values as float64 [n].

    Raises:
        UserError: one is no number, or a whole one that float64 does not have.

    """
    inferred = pd.api.types.infer_dtype(np.asarray(column), skipna=False)
    if len(column) and inferred not in (*NUMBERS, "boolean"):
        odd = next(v for v in np.asarray(column, dtype=object) if not isinstance(v, (int, float, np.number)))
        raise UserError(f"column {column.name!r}: expected numbers, got {odd!r}")
    values = np.asarray(column)
    exact = len(values) == 0 or inferred != "integer" or (values.min() >= -EXACT and values.max() <= EXACT)
    require(exact, f"column {column.name!r}: whole numbers beyond 2^53, of which neighbours would become one value")
    return values.astype(np.float64)


def strings_or_whole(column: pd.Series) -> np.ndarray:
    """A table's column of strings or whole numbers as an array [n]; 1.0 is 1.

    Raises:
        UserError: it holds something else.

    """
    whole = pd.api.types.is_float_dtype(column.dtype) and bool((column == np.trunc(column)).all())
    if whole and bool((column.abs() < EXACT).all()):
        return np.asarray(column).astype(np.int64)
    return as_array(f"column {column.name!r}", np.asarray(column))


def named_missing(column: pd.Series) -> pd.Series:
    """A column of categories, in which missing values are the word `MISSING`."""
    gone = column.isna().to_numpy()
    values = np.asarray(column, dtype=object)
    return pd.Series(np.where(gone, MISSING, values), dtype=object, name=column.name) if gone.any() else column


def words(column: pd.Series) -> tuple[np.ndarray, list[str]]:
    """The categories of a column without missing values.

    Returns:
        The index of each value's word, int64 [n]; and the words, in the order of their values: numbers by size, before
        strings by alphabet.

    Raises:
        UserError: a value is neither a string, nor a number, nor a boolean; or a number that float64 has rounded.

    """
    try:
        codes, distinct = pd.factorize(np.asarray(column, dtype=object))
    except TypeError as error:  # lists
        raise UserError(f"column {column.name!r}: expected strings, numbers or booleans ({error})") from error
    keys = []
    for value in distinct:
        simple = isinstance(value, (str, int, float, np.number, np.bool_))
        require(simple, f"column {column.name!r}: expected strings, numbers or booleans, got {value!r}")
        exact = not isinstance(value, (float, np.floating)) or abs(float(value)) < EXACT
        require(exact, f"column {column.name!r}: {value!r} may stand for several whole numbers; write text")
        keys.append((isinstance(value, str), value))
    order = sorted(range(len(keys)), key=keys.__getitem__)
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order))
    return rank[codes], checked_names(f"column {column.name!r}", [_word(distinct[i]) for i in order])


def _word(value: Any) -> str:
    if isinstance(value, (float, np.floating)):
        return str(int(value)) if value == np.trunc(value) else repr(float(value))
    return str(value)
