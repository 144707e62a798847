"""Features of a table: how its columns become the x of a model, in training and on new rows alike."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd

from fedem_lightning.data.table_columns import MISSING, check_values, kind_of, named_missing, numbers, words
from fedem_lightning.errors import UserError, require
from fedem_lightning.settings.expected import given

MAX_CATEGORIES = 1000
"""Of one column; one with more, such as a number of the row, would make the samples very large and teach nothing."""

Fill = Literal["median"]


@dataclass(frozen=True)
class NumberColumn:
    """A column of numbers, which becomes one feature, (value - mean) / deviation, or two.

    Args:
        name: of the column.
        mean, deviation, median: of the values that are there; the median takes the place of missing ones. None: none
            may be missing.
        indicator: whether a second feature is 1 where the value is missing, else 0.

    """

    name: str
    mean: float
    deviation: float
    median: float | None = None
    indicator: bool = False

    @property
    def features(self) -> list[str]:
        """The features' names: the column's, and that of the indicator."""
        return [self.name, f"{self.name} {MISSING}"] if self.indicator else [self.name]

    def write(self, column: pd.Series, x: np.ndarray) -> None:
        """Sets x float32 [n, 1 or 2], which holds zeros."""
        there = column.notna().to_numpy()
        values = np.full(len(column), self.mean if self.median is None else self.median)
        values[there] = numbers(column[there])
        with np.errstate(over="ignore"):  # seen below
            x[:, 0] = (values - self.mean) / self.deviation
        if self.indicator:
            x[:, 1] = ~there
        far = int((~np.isfinite(x)).sum())
        require(far == 0, f"column {self.name!r}: {far} of {len(x)} rows are too far from the others, or infinite")


@dataclass(frozen=True)
class CategoryColumn:
    """A column of categories, which becomes a feature a value: 1 where the column has it. Other values get zeros."""

    name: str
    values: tuple[str, ...]

    @property
    def features(self) -> list[str]:
        """The features' names, such as "sex=f"."""
        return [f"{self.name}={value}" for value in self.values]

    def write(self, column: pd.Series, x: np.ndarray) -> None:
        """Sets x float32 [n, values], which holds zeros."""
        where, _ = self.places(column)
        known = np.flatnonzero(where >= 0)
        x[known, where[known]] = 1.0

    def places(self, column: pd.Series) -> tuple[np.ndarray, list[str]]:
        """The index of each row's value among `values`, int64 [n], -1: none of them; and the values that are none."""
        codes, found = words(named_missing(column))
        place = {value: i for i, value in enumerate(self.values)}
        if set(self.values) <= {"False", "True", MISSING}:  # also as other programs write them
            others = {"False": ("false", "0"), "True": ("true", "1")}
            place |= {word: i for value, i in place.items() for word in others.get(value, ())}
        where = np.array([place.get(word, -1) for word in found], dtype=np.int64)
        return where[codes], [word for word, i in zip(found, where, strict=True) if i < 0]


@dataclass(frozen=True)
class TableFeatures:
    """How the columns of a table become features: numbers are standardised, categories one-hot.

    Args:
        columns: the columns in the order of their features.
        missing: what takes the place of a missing value: "median" of numbers, with a feature that says so where one was
            missing among the rows learned from; of categories, a category of its own. None: no value may be missing.

    Example:
        >>> frame = pd.DataFrame({"age": [30, 50, 90], "sex": ["m", "f", "x"]})
        >>> features = TableFeatures.fit(frame, rows=np.array([0, 1]), columns=["age", "sex"])
        >>> features.names
        ['age', 'sex=f', 'sex=m']
        >>> features.transform(frame).tolist()
        [[-1.0, 0.0, 1.0], [1.0, 1.0, 0.0], [5.0, 0.0, 0.0]]

    """

    columns: tuple[NumberColumn | CategoryColumn, ...]
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
        """Learns from some rows; it looks at the others for wrong values alone.

        Args:
            frame: the table.
            rows: bool [n], or the positions of the rows to learn from: the training samples of clients that train.
            columns: the columns that become features, in their order.
            categorical: those of them that are categories although they hold numbers.
            missing: see `TableFeatures`.

        Raises:
            UserError: a column is missing, or cannot be a feature; a value is missing or infinite.

        """
        check_values(frame, columns, filled=missing is not None)
        part = frame.loc[:, list(columns)].iloc[rows]
        require(len(part) > 0, "features: expected at least one row to learn from")
        found: list[NumberColumn | CategoryColumn] = []
        for name in columns:
            kind = kind_of(frame[name].dropna(), name in categorical)
            found.append(_number(part[name], missing) if kind == "number" else _categories(part[name]))
        return cls(tuple(found), missing)

    def transform(self, frame: pd.DataFrame) -> np.ndarray:
        """The features of a table's rows, float32 [n, d]; columns that are no features may be there, or not.

        Raises:
            UserError: a column is missing, a value is missing or infinite, or a column of numbers holds something else.

        """
        require(isinstance(frame, pd.DataFrame), f"table: expected a DataFrame, got {given(frame)}")
        check_values(frame, [column.name for column in self.columns], filled=self.missing is not None)
        x, start = np.zeros((len(frame), len(self.names)), dtype=np.float32), 0
        for column in self.columns:
            stop = start + len(column.features)
            column.write(frame[column.name], x[:, start:stop])
            start = stop
        return x

    def unknown(self, frame: pd.DataFrame) -> list[str]:
        """A line for each column with values that training did not know: new categories, or the first missing ones."""
        lines = []
        for column in self.columns:
            gone = int(frame[column.name].isna().sum())
            if isinstance(column, NumberColumn) and not column.indicator and gone:
                said = f"column {column.name!r}: {gone} of {len(frame)} rows have no value, which training did not know"
                lines.append(f"{said}; they get the median, {column.median:g}")
            if isinstance(column, CategoryColumn):
                where, odd = column.places(frame[column.name])
                some = ", ".join(odd[:3]) + ", ..." * (len(odd) > 3)
                n, known = int((where < 0).sum()), ", ".join(column.values[:5]) + ", ..." * (len(column.values) > 5)
                said = f"column {column.name!r}: {n} of {len(frame)} rows have values that training did not know"
                lines += [f"{said} ({some}; it knew {known}), and count as none of them"] * (n > 0)
        return lines

    @property
    def names(self) -> list[str]:
        """Names of the d features, such as "age" and "sex=f"."""
        return [name for column in self.columns for name in column.features]

    def summary(self) -> str:
        """One line: "12 features: 3 numbers standardised, 2 columns one-hot (9)"."""
        widths = [len(column.values) for column in self.columns if isinstance(column, CategoryColumn)]
        n = len(self.columns) - len(widths)
        parts = [f"{_counted(n, 'number')} standardised"] * (n > 0)
        parts += [f"{_counted(len(widths), 'column')} one-hot ({sum(widths)})"] * (len(widths) > 0)
        filled = sum(isinstance(column, NumberColumn) and column.indicator for column in self.columns)
        parts += [f"{_counted(filled, 'column')} with missing values filled and marked"] * (filled > 0)
        return f"{_counted(len(self.names), 'feature')}: {', '.join(parts)}"

    def state(self) -> dict[str, Any]:
        """All of it as numbers, strings, lists and dictionaries, for JSON and checkpoints; see `from_state`."""
        filled = {} if self.missing is None else {"missing": self.missing}
        columns = []
        for column in self.columns:
            said = {key: value for key, value in asdict(column).items() if value is not None and value is not False}
            kind = "number" if isinstance(column, NumberColumn) else "category"
            columns.append({"kind": kind, **{k: list(v) if isinstance(v, tuple) else v for k, v in said.items()}})
        return {"columns": columns, **filled}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "TableFeatures":
        """The transformation of which this is the `state`; the two give the same features to the last bit.

        Raises:
            UserError: it is no such state.

        """
        try:
            columns = tuple(_column_from(dict(column)) for column in state["columns"])
            return cls(columns, state.get("missing"))  # runs of earlier versions say nothing of missing values
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"features: not the state of a TableFeatures ({error!r})") from error


def _number(part: pd.Series, missing: Fill | None) -> NumberColumn:
    values = numbers(part.dropna())
    none = f"column {part.name!r}: missing in all {len(part)} training rows"
    require(len(values) > 0, f"{none}; leave it out with features=[...]")
    median = None if missing is None else float(np.median(values))
    gone = len(values) < len(part)
    if values.min() == values.max():  # rounding would make a small deviation of none
        return NumberColumn(str(part.name), float(values[0]), 1.0, median, gone)
    with np.errstate(over="ignore"):
        mean, deviation = float(values.mean()), float(values.std())
    fits = np.isfinite(mean) and np.isfinite(deviation) and deviation > 0
    require(fits, f"column {part.name!r}: numbers of up to {np.abs(values).max():g} are too large or small to scale")
    return NumberColumn(str(part.name), mean, deviation, median, gone)


def _categories(part: pd.Series) -> CategoryColumn:
    _, found = words(named_missing(part))
    many = f"column {part.name!r}: {len(found)} categories, more than {MAX_CATEGORIES}"
    require(len(found) <= MAX_CATEGORIES, f"{many}; leave it out with features=[...], or make fewer of them")
    return CategoryColumn(str(part.name), tuple(dict.fromkeys(found)))


def _counted(n: int, what: str) -> str:
    return f"{n} {what}{'s' * (n != 1)}"


def _column_from(state: dict[str, Any]) -> NumberColumn | CategoryColumn:
    if state["kind"] == "number":
        median = state.get("median")
        numbers_ = (float(state["mean"]), float(state["deviation"]), None if median is None else float(median))
        return NumberColumn(str(state["name"]), *numbers_, bool(state.get("indicator", False)))
    require(state["kind"] == "category", f"features: unknown kind {state['kind']!r} of column {state['name']!r}")
    return CategoryColumn(str(state["name"]), tuple(str(value) for value in state["values"]))
