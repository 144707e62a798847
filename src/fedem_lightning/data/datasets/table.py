"""`dataset=table dataset.path=FILE`: anyone's federation from a .csv, .tsv or .parquet file with a row a sample."""

import difflib
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd

from fedem_lightning.data.arrays import check_clients, check_split, strings_or_whole
from fedem_lightning.data.class_weights import ClassWeights
from fedem_lightning.data.class_weights import class_weights as weights_of
from fedem_lightning.data.columns import check_values
from fedem_lightning.data.datamodule import FederatedDataModule
from fedem_lightning.data.dealing import own_clients
from fedem_lightning.data.features import Fill, TableFeatures
from fedem_lightning.data.federation import Federation
from fedem_lightning.data.formats.table import read_table
from fedem_lightning.data.labels import TableLabels, labels_of
from fedem_lightning.data.partitions import Partition
from fedem_lightning.data.splits import SPLITS, seen_clients, split_samples
from fedem_lightning.data.unread import looks_like_split
from fedem_lightning.errors import UserError, require
from fedem_lightning.records.recipes import plain
from fedem_lightning.settings.ranges import (
    BelowOne,
    Column,
    Columns,
    Count,
    Fractions,
    Names,
    Positive,
    PositiveInt,
    Seed,
    ShareOrNumber,
    TwoOrMore,
)
from fedem_lightning.tasks import TaskName, make_task

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
        n_classes: Y; default: the number of different labels.
        noise_scale: standard deviation of real targets around their mean, in units of the label.
        label_smoothing: of a classification, in [0, 1); see `Classification`.
        class_weights: of the loss in training: "balanced", or a number for each class; see `class_weights`.
        partition: "natural": the clients that the column says. "iid", "dirichlet", "shards", "quantity_skew", or
            a function (labels, seed, ...) deals the samples anew: see `fedem_lightning.data.partitions`.
        n_clients, alpha, n_label_groups, shards_per_client, min_samples: passed to the partition if it has them.
        fractions: of each client's samples for train, val, test.
        unseen_fraction: share of the clients that take no part in training.
        unseen: names of clients that take no part in training, in place of a share.
        seed: of the split and of the choice of unseen clients.

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
        n_classes: TwoOrMore | None = None,
        noise_scale: Positive = 1.0,
        label_smoothing: BelowOne = 0.0,
        class_weights: ClassWeights | None = None,
        partition: TablePartition | Callable[..., Partition] = "natural",
        n_clients: ShareOrNumber | None = None,
        alpha: Positive = 0.4,
        n_label_groups: PositiveInt | None = None,
        shards_per_client: PositiveInt = 2,
        min_samples: Count = 10,
        fractions: Fractions = (0.6, 0.2, 0.2),
        unseen_fraction: BelowOne = 0.0,
        unseen: Names = (),
        seed: Seed = 0,
    ) -> None:
        require(path is not None, "path: expected a .csv, .tsv or .parquet file, e.g. path=my.csv")
        frame = read_table(Path(str(path)).expanduser(), () if client is None else (str(client),))
        natural = partition == "natural"
        columns = _Columns.of(frame, label, client, split, features, categorical, needs_client=natural)
        check_values(frame, columns.samples())
        check_values(frame, columns.features, missing is not None, "; or missing=median fills and marks them")
        labels = labels_of(frame[columns.label], task, n_classes)
        options = {
            "n_clients": n_clients,
            "alpha": alpha,
            "n_label_groups": n_label_groups,
            "shards_per_client": shards_per_client,
            "min_samples": min_samples,
        }
        dealt = _dealt(frame, columns, labels, partition, options, seed)
        owner, names = dealt.client, dealt.names
        if columns.split is None:
            codes = split_samples(owner, seed, fractions)
        else:
            given = strings_or_whole(frame[columns.split])
            codes = check_split(given, len(frame), f"split: column {columns.split!r}")
        seen = seen_clients(names, unseen_fraction, unseen, seed)
        train = (codes == 0) & (owner >= 0) & seen[owner]
        require(bool(train.any()), "split: no client that trains has a training sample")
        if labels.task == "regression":
            _advise_on_noise(labels.y[train], noise_scale)
        weights = weights_of(class_weights, labels.y[train], labels.n_classes)
        made = TableFeatures.fit(frame, train, columns.features, columns.categorical, missing)
        super().__init__(
            Federation.from_arrays(
                made.transform(frame),
                labels.y,
                owner,
                codes,
                task=make_task(labels.task, labels.n_classes, 1, noise_scale, label_smoothing, weights),
                names=names,
                seen=seen,
                notes={
                    "source": str(path),
                    "features": made.summary(),
                    "columns": columns.roles(),
                    **labels.notes,
                    **({} if class_weights is None else {"class_weights": plain(class_weights)}),
                    **dealt.notes,
                },
                features=made,
            )
        )


def _dealt(
    frame: pd.DataFrame,
    columns: "_Columns",
    labels: TableLabels,
    partition: TablePartition | Callable[..., Partition],
    options: dict[str, Any],
    seed: int,
) -> Partition:
    """The client of each row: that of its column, or of a partition."""
    owner, names = None, None
    if columns.client is not None:
        owner, names = check_clients(strings_or_whole(frame[columns.client]), None, len(frame))
    by_class = labels.task != "regression"
    return own_clients(labels.y, owner, names, partition, options, seed, by_class=by_class)


def _advise_on_noise(y: np.ndarray, noise_scale: float) -> None:
    """Warns of targets so far apart, in units of sigma, that an E-step is a hard assignment and steps are too long."""
    spread = float(np.std(y))
    if spread > 20 * noise_scale:
        warnings.warn(
            f"dataset.noise_scale: the target's deviation is {spread:.3g}, sigma is {noise_scale:g}; shift the target "
            "by its mean and divide it by its deviation: sigma=1 and the usual learning rates suit it then",
            stacklevel=3,
        )


class _Columns(NamedTuple):
    """Names of the columns, checked."""

    label: str
    client: str | None
    split: str | None
    features: list[str]
    categorical: list[str]

    @classmethod
    def of(
        cls,
        frame: pd.DataFrame,
        label: Any,
        client: Any,
        split: Any,
        features: Any,
        categorical: Any,
        needs_client: bool,
    ) -> "_Columns":
        there = [str(name) for name in frame.columns]
        roles = {"label": _known("label", label, there)}
        if needs_client or client is not None:
            roles["client"] = _known("client", client, there, "; or deal the rows by partition=iid")
        if split is not None:
            roles["split"] = _known("split", split, there)
        taken = {name: role for role, name in reversed(roles.items())}  # the first role of each column
        for role, name in roles.items():
            require(taken[name] == role, f"{role}: column {name!r} is the {taken[name]} already")
        if features is None:
            features = [name for name in there if name not in taken]
            for name in features if split is None else ():
                _check_no_split(name, frame[name])
        else:
            features = _listed("features", features, there)
        for name in features:
            require(name not in taken, f"features: column {name!r} is the {taken.get(name)}")
        require(len(features) > 0, f"features: no column is left beside {', '.join(roles)}")
        categorical = _listed("categorical", categorical, there)
        for name in categorical:
            require(name in features, f"categorical: column {name!r} is no feature")
        return cls(roles["label"], roles.get("client"), roles.get("split"), features, categorical)

    def roles(self) -> dict[str, str]:
        """Which columns are the label, the client and the split."""
        named = {"label": self.label, "client": self.client, "split": self.split}
        return {role: name for role, name in named.items() if name is not None}

    def samples(self) -> list[str]:
        """Those that say of a sample what no feature does."""
        return [name for name in (self.label, self.client, self.split) if name is not None]


def _check_no_split(name: str, column: pd.Series) -> None:
    """Raises UserError if a column is called split, or holds names of splits, and so is hardly a feature."""
    key = f"split={name}"
    way_out = f"{key} splits by it; features=[...] names what to learn from in its place"
    called = looks_like_split(name) and len(set(column.dropna().map(str))) <= 5  # more are numbers to learn from
    require(not called, f"column {name!r} looks like a split: {way_out}")
    found = set(column.dropna().map(str)) if column.dtype.kind not in "biuf" else set()  # lists have no hash
    if len(found) > 1 and found <= set(SPLITS):
        raise UserError(f"column {name!r} holds {', '.join(sorted(found))}: {way_out}")


def _known(key: str, name: Any, there: list[str], otherwise: str = "") -> str:
    """The name of a column that the file has; `otherwise` ends the line about one that was not given."""
    listed = ", ".join(there[:20]) + ", ..." * (len(there) > 20)
    require(name is not None, f"{key}: expected the name of a column; there are {listed}{otherwise}")
    if str(name) not in there:
        near = difflib.get_close_matches(str(name), there, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {listed}"
        raise UserError(f"{key}: no column {name!r}; {hint}")
    return str(name)


def _listed(key: str, given: Any, there: list[str]) -> list[str]:
    listed = isinstance(given, Sequence) and not isinstance(given, str)
    require(listed, f"{key}: expected a list of columns such as [a,b], got {given!r}")
    found = [_known(key, name, there) for name in given]
    twice = [name for name, n in Counter(found).items() if n > 1]
    require(not twice, f"{key}: it names {', '.join(twice)} twice")
    return found
