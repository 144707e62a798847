"""Splits of a user's own samples that are not plainly random: by time or by group."""

import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import pandas as pd
from sklearn.model_selection import GroupShuffleSplit

from fedem_lightning.data.randomness import Purpose, generator
from fedem_lightning.data.splits import Splitting
from fedem_lightning.data.table_features import DATE
from fedem_lightning.settings.errors import UserError, require

EXPECTED = "time:COLUMN or group:COLUMN; for arrays {'time': times} or {'group': groups}"
SplitBy = Annotated[str | Mapping[str, Any], EXPECTED]
OF_TIME = frozenset(("date", "datetime", "timestamp", "day", "week", "month", "year"))
OF_ENTITIES = frozenset(("id", "patient", "subject", "person", "participant", "user", "customer", "device", "session"))
"""Words in the name of a column that holds times, or of one whose values say which rows belong together."""


@dataclass(frozen=True)
class OwnSplitting(Splitting):
    """How each client's samples are split, and which clients take no part in training.

    Args:
        unseen_fraction, unseen, seed, fractions: see `Splitting`.
        split_by: None: at random. "time:COLUMN": each client's last rows are for testing, those before for validation.
            "group:COLUMN": rows with the same value stay together; `fractions` are of a client's groups, and a client
            with two of them has one for testing, with three one for validation, too. Groups that lie at several clients
            are split as if all rows were one client's. COLUMN is one of a table, or an array of an .npz file; arrays in
            Python come as {"time": times} or {"group": groups}.

    """

    split_by: SplitBy | None = None

    def __post_init__(self) -> None:
        kind, column, values = self.parts
        fits = kind is None or (kind in ("time", "group") and (column is not None or values is not None))
        require(fits, f"split_by: expected {EXPECTED}, got {self.split_by!r:.80}")

    @property
    def parts(self) -> tuple[str | None, str | None, Any]:
        """What `split_by` says: time, group or None; a column's name, or an array."""
        if isinstance(self.split_by, Mapping):
            kind, values = next(iter(self.split_by.items()), ("", None))
            return kind if len(self.split_by) == 1 else "", None, values
        kind, _, column = (self.split_by or "").partition(":")
        return kind or None, column or None, None

    def split_own(self, client: np.ndarray, values: Any, given: np.ndarray | None = None) -> np.ndarray:
        """Splits each client's samples (int [n]; -1: no client's): int8 [n], 0 train, 1 val, 2 test.

        `values` are the times or groups [n], where the option needs some, `given` the split that the data have already.
        """
        kind = self.parts[0]
        if kind is None:
            return self.split(client) if given is None else given
        require(given is None, "split_by: the data have their split already; leave one of them out")
        array, expected = np.asarray(values), f"split_by: expected a {kind} for each of {len(client)} samples"
        require(array.shape == client.shape, f"{expected}, as {{{kind!r}: an array}}, got shape {array.shape}")
        column = pd.Series(array)
        require(not column.isna().any(), f"{expected}, {column.isna().sum()} have none")
        if kind == "time":
            return self.by_rank(client, -_times(column).argsort(kind="stable").argsort())
        groups = pd.factorize(column)[0]
        apart = pd.Series(client[client >= 0]).groupby(groups[client >= 0]).nunique().max() == 1
        return self._by_group(client if apart else np.minimum(client, 0), groups)

    def _by_group(self, client: np.ndarray, groups: np.ndarray) -> np.ndarray:
        """The split by groups, int [n], client by client."""
        codes = np.zeros(len(client), dtype=np.int8)
        for rows in pd.Series(client).groupby(client).indices.values():
            n = len(np.unique(groups[rows]))
            rng = generator(self.seed, Purpose.SPLIT, int(client[rows[0]]) + 1)
            for code in (2, 1):
                size = int(np.floor(n * self.fractions[code] + 1e-9))
                size = max(size, int(n > 3 - code)) if self.fractions[code] > 0 else size
                left = rows[codes[rows] == 0]
                if size:
                    drawn = GroupShuffleSplit(1, test_size=size, random_state=int(rng.integers(2**32)))
                    codes[left[next(drawn.split(left, groups=groups[left]))[1]]] = code
        return codes


def _times(values: pd.Series) -> np.ndarray:
    """Times as numbers [n], from numbers or dates."""
    if pd.api.types.is_numeric_dtype(values.dtype):
        return values.to_numpy()
    try:
        return pd.to_datetime(values, format="ISO8601", utc=True).astype(np.int64).to_numpy()
    except (ValueError, TypeError) as error:
        some = str(values.iloc[0])
        raise UserError(f"split_by: expected numbers or dates written as 2024-01-31, got such as {some:.40}") from error


def warn_of_random_split(frame: pd.DataFrame, taken: Mapping[str, str]) -> None:
    """Warns of columns (but those `taken`, by role) that seem to be times, or to say whose rows they are."""
    for name in frame.columns.difference(list(taken.values()), sort=False):
        words = set(re.split(r"[^a-z]+", re.sub(r"([a-z])([A-Z])", r"\1 \2", str(name)).lower()))
        column = frame[name].dropna()
        if _are_times(column, bool(words & OF_TIME)):
            said = "looks like a time: a random split trains on rows that are later than those it tests on; "
            said += f"split_by=time:{name} tests on each client's last rows"
        elif _are_entities(column, bool(words & OF_ENTITIES), frame.get(taken.get("client"))):
            said = f"looks like an identifier, with {column.nunique()} values in {len(column)} rows: a random split "
            said += f"puts rows of one into training and test; split_by=group:{name} keeps them together"
        else:
            continue
        warnings.warn(f"column {name!r} {said}", stacklevel=4)


def _are_times(column: pd.Series, named_so: bool) -> bool:
    """Whether values seem to be times, more than one: by their type, their form, or the column's name."""
    text = pd.api.types.is_string_dtype(column)
    named_so = named_so or (text and bool(column.iloc[:1000].str.fullmatch(DATE).all()))
    known = pd.api.types.is_datetime64_any_dtype(column)
    return (known or (named_so and (text or pd.api.types.is_numeric_dtype(column)))) and column.nunique() > 1


def _are_entities(column: pd.Series, named_so: bool, client: pd.Series | None) -> bool:
    """Whether values repeat and seem to say whose rows they are: by the name, or as each belongs to one client."""
    whole = pd.api.types.is_integer_dtype(column.dtype) or pd.api.types.is_string_dtype(column)
    if not whole or not 5 <= (n := column.nunique()) <= len(column) / 2:
        return False
    if named_so or client is None:
        return named_so
    return n >= 2 * client.nunique() >= 4 and client.groupby(column).nunique().max() == 1
