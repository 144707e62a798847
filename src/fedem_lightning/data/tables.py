"""A user's own table with a row a sample: what its columns are for, and the federation of its rows."""

import difflib
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import pandas as pd

from fedem_lightning.data.arrays import as_array, check_clients, check_labels, check_split, check_targets
from fedem_lightning.data.datamodule import FederatedDataModule
from fedem_lightning.data.dealing import Dealing
from fedem_lightning.data.federation import Federation
from fedem_lightning.data.formats.table import read_table
from fedem_lightning.data.own_data import TaskOptions
from fedem_lightning.data.partitions import Labels, Partition
from fedem_lightning.data.splits import Splitting
from fedem_lightning.data.table_features import (
    EXACT,
    Fill,
    TableFeatures,
    check_values,
    kind_of,
    numbers,
    ordered_words,
    words,
)
from fedem_lightning.errors import UserError, require
from fedem_lightning.records.measures import SPLITS
from fedem_lightning.settings.check import grouped
from fedem_lightning.settings.ranges import Column, Columns
from fedem_lightning.tasks import TaskName

FEW_VALUES = 20
"""Whole numbers with up to as many different values are classes, unless `task` says otherwise."""
TablePartition = Literal["natural", "iid", "dirichlet", "shards", "quantity_skew"]
"""Those that need no coarse labels."""


class TableDataModule(FederatedDataModule):
    """Reads a table whose columns hold the label, the client and the features of each sample.

    Numbers are standardised by the mean and deviation of the training samples of the clients that train; strings,
    booleans and categories become one-hot. `federation.features` keeps this transformation for new rows.

    Args:
        path: the .csv, .tsv or .parquet file.
        label: name of the label's column.
        client: name of the client's column; None: `partition` deals the rows to clients.
        features: names of the features' columns; default: all other columns.
        categorical: names of the features that are categories although they hold numbers.
        missing: "median": missing numbers become the median of the training samples of the clients that train, and a
            feature says where; missing categories are a category. None: missing values are refused.
        split: name of a column with 0 train, 1 val, 2 test (or these words); default: drawn per client by `fractions`.
        task: "classification" (one logit a class), "binary" (one logit), or "regression". Default: classification if
            the labels are strings, booleans, or whole numbers with at most 20 different values; regression otherwise.
        partition: of `Dealing`, except "pachinko".
        options: those of `TaskOptions`, `Dealing` and `Splitting`.

    Raises:
        UserError: the file is missing or broken, a column is missing or has the wrong values, or a client has no
            training samples.

    """

    def __init__(
        self,
        path: str | Path | None,
        label: Column | None,
        client: Column | None = None,
        features: Columns | None = None,
        categorical: Columns = (),
        missing: Fill | None = None,
        split: Column | None = None,
        task: TaskName | None = None,
        *,
        partition: TablePartition | Callable[..., Partition] = "natural",
        **options: Annotated[Any, TaskOptions, Dealing, Splitting],
    ) -> None:
        more, dealing, splitting = grouped({**options, "partition": partition}, TaskOptions, Dealing, Splitting)
        require(path is not None, "path: expected a .csv, .tsv or .parquet file, e.g. path=my.csv")
        frame = read_table(Path(str(path)).expanduser(), () if client is None else (str(client),))
        roles = _roles(frame, label, client, split, needs_client=partition == "natural")
        names = _features(frame, roles, features)
        known = _listed("categorical", categorical, names, "feature")
        check_values(frame, list(roles.values()))
        check_values(frame, names, missing is not None, "; or missing=median fills and marks them")
        labels = labels_of(frame[roles["label"]], task, more.n_classes)
        more = replace(more, task=labels.task)
        owner, own_names = None, None
        if "client" in roles:
            owner, own_names = check_clients(strings_or_whole(frame[roles["client"]]), None, len(frame))
        own = Labels(labels.y, None, owner, own_names)
        dealt = dealing.deal_own(own, splitting.seed, by_class=labels.task != "regression")
        if "split" in roles:
            said = f"split: column {roles['split']!r}"
            codes = check_split(strings_or_whole(frame[roles["split"]]), len(frame), said)
        else:
            codes = splitting.split(dealt.client)
        seen = splitting.seen(dealt.names)
        train = (codes == 0) & (dealt.client >= 0) & seen[dealt.client]
        require(bool(train.any()), "split: no client that trains has a training sample")
        if labels.task == "regression":
            _advise_on_noise(labels.y[train], more.noise_scale)
        made = TableFeatures.fit(frame, train, names, known, missing)
        told = {"source": str(path), "features": made.summary(), "columns": roles}
        super().__init__(
            Federation.from_arrays(
                made.transform(frame),
                labels.y,
                dealt.client,
                codes,
                task=more.make(labels.y, train, labels.n_classes),
                names=dealt.names,
                seen=seen,
                notes={**told, **labels.notes, **more.notes(), **dealt.notes},
                features=made,
            )
        )


def _roles(frame: pd.DataFrame, label: Any, client: Any, split: Any, needs_client: bool) -> dict[str, str]:
    """The columns that are the label, the client and the split, by role."""
    there = list(frame.columns)
    roles = {"label": _known("label", label, there)}
    if needs_client or client is not None:
        roles["client"] = _known("client", client, there, "; or deal the rows by partition=iid")
    if split is not None:
        roles["split"] = _known("split", split, there)
    taken = {name: role for role, name in reversed(roles.items())}  # the first role of each column
    for role, name in roles.items():
        require(taken[name] == role, f"{role}: column {name!r} is the {taken[name]} already")
    return roles


def _features(frame: pd.DataFrame, roles: dict[str, str], given: Any) -> list[str]:
    """The columns to learn from; UserError if one of those that nobody has named is hardly a feature, but a split."""
    if given is not None:
        names = _listed("features", given, list(frame.columns))
        for role, name in roles.items():
            require(name not in names, f"features: column {name!r} is the {role}")
    else:
        names = [name for name in frame.columns if name not in roles.values()]
        for name in names if "split" not in roles else ():
            found = (
                set(frame[name].dropna().map(str)) if "split" in name.lower() or frame[name].dtype == "str" else set()
            )
            odd = (len(found) > 1 and found <= set(SPLITS)) or ("split" in name.lower() and len(found) <= 5)
            way_out = f"split={name} splits by it; features=[...] names what to learn from in its place"
            require(not odd, f"column {name!r} looks like a split ({', '.join(sorted(found))}): {way_out}")
    require(len(names) > 0, f"features: no column is left beside {', '.join(roles)}")
    return names


def _known(key: str, name: Any, there: list[str], otherwise: str = "", what: str = "column") -> str:
    """A name of these; `otherwise` ends the line about one that was not given."""
    listed = ", ".join(there[:20]) + ", ..." * (len(there) > 20)
    require(name is not None, f"{key}: expected the name of a column; there are {listed}{otherwise}")
    if str(name) not in there:
        near = difflib.get_close_matches(str(name), there, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {listed}"
        raise UserError(f"{key}: no {what} {name!r}; {hint}")
    return str(name)


def _listed(key: str, given: Any, there: list[str], what: str = "column") -> list[str]:
    found = [_known(key, name, there, what=what) for name in given]
    twice = [name for name, n in Counter(found).items() if n > 1]
    require(not twice, f"{key}: it names {', '.join(twice)} twice")
    return found


class TableLabels(NamedTuple):
    """y [n], and what it is."""

    y: np.ndarray
    task: TaskName
    n_classes: int
    notes: dict[str, Any]


def labels_of(column: pd.Series, task: TaskName | None, n_classes: int | None) -> TableLabels:
    """The labels of a task, which is found by the rule of `TableDataModule` if it is None."""
    one = "task: a table has one label a row, expected classification, binary or regression"
    require(task in (None, "classification", "binary", "regression"), f"{one}, got {task}")
    if task == "regression":
        return TableLabels(check_targets(numbers(column), len(column)), task, 0, {})
    kind = kind_of(column, as_category=task is not None, label=True)
    numeric = pd.api.types.infer_dtype(np.asarray(column)) not in ("string", "boolean")
    values = numbers(column) if numeric else np.empty(0)
    whole = bool((values == np.trunc(values)).all())
    notes: dict[str, Any] = {}
    if task is None:
        n = column.nunique()
        task = "classification" if kind == "category" or (whole and n <= FEW_VALUES) else "regression"
        what = "words" if not numeric else "whole numbers" if whole else "numbers"
        notes["task"] = f"{task}, because {column.name} has {n} different {what}"
        if task == "regression":
            return TableLabels(check_targets(values, len(column)), task, 0, notes)
        odd = f"label: column {column.name!r} has {n} different words in {len(column)} rows, such as {column.iloc[0]!r}"
        many = n > max(FEW_VALUES, len(column) // 5)
        require(not many, f"{odd}; make numbers of them, or say task=classification")
    require(whole, f"task: a {task} needs words or whole numbers; column {column.name!r} holds others")
    distinct = ordered_words(str(column.name), column.astype(object).unique())
    require(len(distinct) > 1, f"label: column {column.name!r} holds one class only, {distinct[0]}")
    limit = len(distinct) if n_classes is None else n_classes
    if not numeric or values.min() < 0 or values.max() >= limit:
        notes["classes"] = distinct
        values = pd.Index(distinct).get_indexer(pd.Index(words(column)))
    y, n_classes = check_labels(values, limit, len(column), f"column {column.name!r}")
    return TableLabels(y, task, n_classes, notes)


def strings_or_whole(column: pd.Series) -> np.ndarray:
    """A table's column of strings or whole numbers as an array [n]; 1.0 is 1. UserError for anything else."""
    if pd.api.types.is_float_dtype(column.dtype) and bool(
        ((column == np.trunc(column)) & (column.abs() < EXACT)).all()
    ):
        return column.to_numpy().astype(np.int64)
    return as_array(f"column {column.name!r}", np.asarray(column))


def _advise_on_noise(y: np.ndarray, noise_scale: float) -> None:
    """Warns of targets so far apart, in units of sigma, that an E-step is a hard assignment and steps are too long."""
    said = f"dataset.noise_scale: the target's deviation is {np.std(y):.3g}, sigma is {noise_scale:g}; shift the target"
    if np.std(y) > 20 * noise_scale:
        warnings.warn(f"{said} by its mean and divide it by its deviation: sigma=1 suits it then", stacklevel=3)
