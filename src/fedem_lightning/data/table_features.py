"""Features of a table: how its columns become the x of a model, in training and on new rows alike.

A word is a category's value as text: a string itself, a number without needless decimals ("3", "0.5"), or True, False.
"""

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd

from fedem_lightning.data.arrays import checked_names, listed
from fedem_lightning.settings.errors import UserError, meant, of_a_file, require

Kind = Literal["number", "category"]
Fill = Literal["median"]
NUMBERS = ("integer", "floating", "mixed-integer-float", "decimal")
"""What pandas' `infer_dtype` calls them."""
MISSING = "missing"
"""The category of a value that is missing, and the end of the name of an indicator."""
MAX_CATEGORIES = 1000
"""Of one column; one with more, such as a number of the row, would make the samples very large and teach nothing."""
DATE = re.compile(r"\d{1,4}([-/.])\d{1,2}\1\d{1,4}([ T]\d.*)?")
DECIMAL_COMMA = re.compile(r"[-+]?[\d.]*,\d+")


@dataclass(frozen=True)
class TableFeatures:
    """How the columns of a table become features: numbers are standardised, categories one-hot.

    Args:
        columns: in the order of their features, "name" and "kind" of each. A "number" has "mean" and "deviation", and,
            if it may be missing, the "median" that takes its place, and maybe "indicator": a second feature is 1
            where it was missing. A "category" has "values": a feature each, 1 where the column has it.
        missing: "median": missing numbers are filled, a missing category is one of the values. None: none may be.

    Example:
        >>> frame = pd.DataFrame({"age": [30, 50, 90], "sex": ["m", "f", "x"]})
        >>> features = TableFeatures.fit(frame, rows=np.array([0, 1]), columns=["age", "sex"])
        >>> features.names
        ['age', 'sex=f', 'sex=m']
        >>> features.transform(frame).tolist()
        [[-1.0, 0.0, 1.0], [1.0, 1.0, 0.0], [5.0, 0.0, 0.0]]

    """

    columns: Sequence[Mapping[str, Any]]
    missing: Fill | None = None

    @classmethod
    def fit(
        cls,
        frame: pd.DataFrame,
        rows: np.ndarray,
        columns: Sequence[str],
        categorical: Collection[str] = (),
        missing: Fill | None = None,
    ) -> "TableFeatures":
        """Learns from some rows, bool [n] or positions; it looks at the others for wrong values alone.

        `categorical` names columns that are categories although they hold numbers. With missing="median" an indicator
        says where a number was missing, if one was missing among `rows`.
        """
        check_values(frame, columns, filled=missing is not None)
        part = frame.loc[:, list(columns)].iloc[rows]
        kinds = {name: kind_of(frame[name].dropna(), name in categorical) for name in columns}
        learned = _standardised(part[[name for name in columns if kinds[name] == "number"]], missing)
        return cls([learned.get(name) or _category(part[name]) for name in columns], missing)

    def transform(self, frame: pd.DataFrame) -> np.ndarray:
        """The features of a table's rows, float32 [n, d]; UserError if a column lacks, or a value is none for it."""
        check_values(frame, [c["name"] for c in self.columns], filled=self.missing is not None)
        parts: list[np.ndarray] = []
        for c in self.columns:
            values = _read(c, frame[c["name"]])
            if c["kind"] == "number":
                gone = np.isnan(values)
                parts.append((np.where(gone, c.get("median", c["mean"]), values) - c["mean"]) / c["deviation"])
                parts += [gone] if c.get("indicator") else []
            else:
                codes = pd.Index(c["values"], dtype=object).get_indexer(values)  # -1 for others
                parts += [codes == code for code in range(len(c["values"]))]
        with np.errstate(over="ignore"):  # seen below
            x = np.ascontiguousarray(np.stack(parts, axis=1, dtype=np.float32, casting="unsafe"))
        far = ~np.isfinite(x)
        for i in np.flatnonzero(far.any(axis=0)):
            raise UserError(f"column {self.names[i]!r}: {far[:, i].sum()} of {len(x)} rows are too far from the others")
        return x

    def unknown(self, frame: pd.DataFrame) -> list[str]:
        """A line for each column with values that training did not know: new categories, or the first missing ones."""
        lines = []
        for c in self.columns:
            values = _read(c, frame[c["name"]])
            if c["kind"] == "number":
                odd = np.isnan(values) & (not c.get("indicator"))
                message = f"no value, which training did not know; they get the median, {c.get('median', 0):g}"
            else:
                odd = ~np.isin(values, c["values"])
                some, knew = listed(dict.fromkeys(values[odd]), 3), listed(c["values"])
                message = f"values that training did not know ({some}; it knew {knew}), and count as none of them"
            lines += [f"column {c['name']!r}: {odd.sum()} of {len(frame)} rows have {message}"] * bool(odd.any())
        return lines

    @property
    def names(self) -> list[str]:
        """Names of the d features, such as "age", "age missing" and "sex=f"."""
        marks = ["", f" {MISSING}"]
        ends = ([f"={v}" for v in c.get("values", ())] or marks[: 1 + bool(c.get("indicator"))] for c in self.columns)
        return [f"{c['name']}{end}" for c, each in zip(self.columns, ends, strict=True) for end in each]

    def summary(self) -> str:
        """One line: "12 features: 3 numbers standardised, 2 columns one-hot"."""
        n = sum(column["kind"] == "number" for column in self.columns)
        return f"{len(self.names)} features: {n} numbers standardised, {len(self.columns) - n} columns one-hot"

    def state(self) -> dict[str, Any]:
        """All of it as numbers, strings, lists and dictionaries, for JSON and checkpoints; see `from_state`."""
        filled = {} if self.missing is None else {"missing": self.missing}
        return {"columns": [dict(column) for column in self.columns], **filled}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "TableFeatures":
        """The transformation of which this is the `state`, with the same features to the last bit; or a UserError."""
        with of_a_file("features: not the state of a TableFeatures"):
            made = cls([dict(column) for column in state["columns"]], state.get("missing"))
            made.transform(pd.DataFrame({c["name"]: [] for c in made.columns}))
        return made


def _standardised(part: pd.DataFrame, missing: Fill | None) -> dict[str, dict[str, Any]]:
    """What is learned of columns of numbers, by their names."""
    if not len(part.columns):
        return {}
    from sklearn.preprocessing import StandardScaler  # slow, and of use to tables alone

    gone = part.isna()
    for name in part.columns[gone.all()]:
        raise UserError(f"column {name!r}: missing in all {len(part)} training rows; leave it out with features=[...]")
    values = pd.DataFrame({name: numbers(part[name]) for name in part})
    with np.errstate(over="ignore", invalid="ignore"):  # what is not finite then is refused among the features
        scale = StandardScaler().fit(values)
    result: dict[str, dict[str, Any]] = {}
    for i, name in enumerate(map(str, part)):
        learned = {"mean": float(scale.mean_[i]), "deviation": float(scale.scale_[i])}
        result[name] = {"kind": "number", "name": name, **learned}
        if missing is not None:
            result[name]["median"] = float(values[name].median())
            result[name] |= {"indicator": True} if gone[name].any() else {}
    return result


def _category(part: pd.Series) -> dict[str, Any]:
    """What is learned of a column of categories: its words, numbers by size before strings by alphabet."""
    distinct = part.astype(object).where(part.notna(), MISSING).unique()
    many = f"column {part.name!r}: {len(distinct)} categories, more than {MAX_CATEGORIES}"
    require(len(distinct) <= MAX_CATEGORIES, f"{many}; leave it out with features=[...], or make fewer of them")
    result = [_word(part.name, value) for value in sorted(distinct, key=lambda value: (isinstance(value, str), value))]
    values = checked_names(f"column {part.name!r}", list(dict.fromkeys(result)))
    return {"kind": "category", "name": str(part.name), "values": values}


def check_values(frame: pd.DataFrame, names: Sequence[str], filled: bool = False, way_out: str = "") -> None:
    """Refuses a column that is not there or there twice, and values that are infinite, or missing unless `filled`.

    The line says in how many rows of which columns; `way_out` ends the one about missing values.
    """
    there = Counter(frame.columns)
    for name in names:
        require(there[name] > 0, f"column {name!r}: the table has none of this name{meant(name, there)}")
        require(there[name] == 1, f"column {name!r}: the table has {there[name]} of this name")
    part = frame[list(names)]
    shown = ", ".join(f"{name!r} in {n} of {len(part)} rows" for name, n in part.isna().sum().items() if n)
    message = f"missing values: column {shown}; fill them in, or leave out these rows or columns{way_out}"
    require(filled or not shown, message)
    for name, n in np.isinf(part.select_dtypes(include=[np.floating])).sum().items():
        message = f"column {name!r}: {n} of {len(part)} rows are infinite"
        require(n == 0, f"{message}; correct them, or leave out these rows or the column")


def kind_of(column: pd.Series, as_category: bool = False, label: bool = False) -> Kind:
    """Whether a column without missing values holds numbers, or categories: strings, booleans, pandas categories.

    With `as_category` numbers, and strings that look like numbers or dates, are categories; `label` sets the advice.
    """
    message, categorical = f"column {column.name!r} holds", isinstance(column.dtype, pd.CategoricalDtype)
    category = as_category or categorical
    inferred = pd.api.types.infer_dtype(column.astype(object) if categorical else column, skipna=False)
    times = f"leave it out with features=[...], or, of times, by split_by=time:{column.name}"
    way_out = "take another label" if label else times
    if inferred in NUMBERS:
        return "category" if category else "number"
    fits = inferred in ("string", "boolean") or (category and inferred.startswith("mixed"))
    require(fits, f"{message} values of the kind {inferred}; make numbers or words of them, or {way_out}")
    if inferred == "string" and not category:
        way_out = f"{'say task=classification' if label else 'name it in categorical=[...]'}, or {way_out}"
        distinct = column.unique().tolist()
        number = pd.to_numeric(pd.Series(distinct, dtype=object), errors="coerce").notna().to_numpy()
        alike = any(all(form.fullmatch(word) for word in distinct) for form in (DATE, DECIMAL_COMMA))
        mixed = bool(number.any() and not number.all())
        for odd, what in ((alike, "dates or decimal commas"), (mixed, "numbers and other words")):
            example = distinct[int(number.argmin())]
            require(not odd, f"{message} {what}, such as {example!r}; make numbers of them, or {way_out}")
    return "category"


def numbers(column: pd.Series) -> np.ndarray:
    """The values as float64 [n], NaN where they are missing; UserError if one is no number."""
    there = column.dropna()
    inferred = pd.api.types.infer_dtype(there, skipna=False)
    if inferred not in (*NUMBERS, "boolean", "empty"):
        odd = next(v for v in there.astype(object) if not isinstance(v, (int, float, np.number)))
        raise UserError(f"column {column.name!r}: expected numbers, got {odd!r}")
    return column.to_numpy(np.float64, na_value=np.nan)


def words(column: pd.Series) -> np.ndarray:
    """The values as words, objects [n]; `MISSING` where they are missing. UserError if one is a date or a list."""
    named = column.astype(object).where(column.notna(), MISSING)
    return named.map(lambda value: _word(column.name, value)).to_numpy(object)


def _word(name: Any, value: Any) -> str:
    simple = isinstance(value, (str, int, float, np.number, np.bool_))
    require(simple, f"column {name!r}: expected strings, numbers or booleans, got {value!r}")
    if isinstance(value, (float, np.floating)):
        return str(int(value)) if value == np.trunc(value) else repr(float(value))
    return str(value)


def _read(column: Mapping[str, Any], values: pd.Series) -> np.ndarray:
    """A column's values: float64 [n], or words [n]."""
    return numbers(values) if column["kind"] == "number" else words(values)
