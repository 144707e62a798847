"""Anyone's federation from one file: `dataset=npz dataset.path=FILE`, and `dataset=table` with a row a sample.

And a single client's samples in a file of its own.
"""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pandas as pd

from fedem_lightning.data.arrays import check_clients, check_split
from fedem_lightning.data.datamodule import FederatedDataModule
from fedem_lightning.data.dealing import Dealing
from fedem_lightning.data.federation import Federation
from fedem_lightning.data.formats.npz import read_npz
from fedem_lightning.data.formats.table import read_table
from fedem_lightning.data.names import names_of_clients
from fedem_lightning.data.own_data import OwnArrays, TaskOptions, checked_federation
from fedem_lightning.data.partitions import Labels, Partition
from fedem_lightning.data.schema import Schema
from fedem_lightning.data.splits import Splitting
from fedem_lightning.data.table_columns import check_values, strings_or_whole
from fedem_lightning.data.table_features import Fill, TableFeatures
from fedem_lightning.data.table_roles import TableColumns, TableLabels, labels_of
from fedem_lightning.errors import require
from fedem_lightning.settings.check import grouped
from fedem_lightning.settings.ranges import Column, Columns
from fedem_lightning.tasks import TaskName

ARRAYS = ("x", "y", "client", "split", "names", "client_names", "domain", "coarse")
TablePartition = Literal["natural", "iid", "dirichlet", "shards", "quantity_skew"]
"""Those that need no coarse labels."""


class NpzDataModule(FederatedDataModule):
    """Reads x, y and, if there, client, split, names, domain, coarse, as `FederatedDataModule.from_arrays` has them.

    Args:
        path: the .npz file.
        mmap: map the arrays from the file instead of reading them.
        options: those of `TaskOptions`, `Dealing` and `Splitting`.

    Raises:
        UserError: the file is missing or broken, or its arrays are wrong.

    """

    def __init__(
        self, path: str | Path | None, *, mmap: bool = False, **options: Annotated[Any, TaskOptions, Dealing, Splitting]
    ) -> None:
        task, dealing, splitting = grouped(options, TaskOptions, Dealing, Splitting)
        require(path is not None, "path: expected an .npz file, e.g. path=my.npz")
        arrays = read_npz(Path(str(path)).expanduser(), ARRAYS, mmap)
        needed = ("x", "y", "client") if dealing.partition == "natural" else ("x", "y")
        missing = [name for name in needed if name not in arrays]
        expected = "expected x, y, client (or partition=iid, dirichlet, ...), optional split, names, domain"
        require(not missing, f"path: {path} lacks {', '.join(missing)}; {expected}")
        found = {name: arrays.get(name) for name in OwnArrays._fields} | {"names": names_of_clients(arrays)}
        super().__init__(checked_federation(OwnArrays(**found), task, dealing, splitting, notes={"source": str(path)}))


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
        natural = partition == "natural"
        columns = TableColumns.of(frame, label, client, split, features, categorical, needs_client=natural)
        check_values(frame, columns.samples())
        check_values(frame, columns.features, missing is not None, "; or missing=median fills and marks them")
        labels = labels_of(frame[columns.label], task, more.n_classes)
        more = replace(more, task=labels.task)
        dealt = _dealt(frame, columns, labels, dealing, splitting.seed)
        codes = splitting.split(dealt.client) if columns.split is None else _split(frame, columns.split)
        seen = splitting.seen(dealt.names)
        train = (codes == 0) & (dealt.client >= 0) & seen[dealt.client]
        require(bool(train.any()), "split: no client that trains has a training sample")
        if labels.task == "regression":
            _advise_on_noise(labels.y[train], more.noise_scale)
        learned = more.make(labels.y, train, labels.n_classes)
        made = TableFeatures.fit(frame, train, columns.features, columns.categorical, missing)
        super().__init__(
            Federation.from_arrays(
                made.transform(frame),
                labels.y,
                dealt.client,
                codes,
                task=learned,
                names=dealt.names,
                seen=seen,
                notes={
                    "source": str(path),
                    "features": made.summary(),
                    "columns": columns.roles(),
                    **labels.notes,
                    **more.notes(),
                    **dealt.notes,
                },
                features=made,
            )
        )


def _dealt(frame: pd.DataFrame, columns: TableColumns, labels: TableLabels, dealing: Dealing, seed: int) -> Partition:
    """The client of each row: that of its column, or of a partition."""
    owner, names = None, None
    if columns.client is not None:
        owner, names = check_clients(strings_or_whole(frame[columns.client]), None, len(frame))
    return dealing.deal_own(Labels(labels.y, None, owner, names), seed, by_class=labels.task != "regression")


def _split(frame: pd.DataFrame, name: str) -> np.ndarray:
    """The split of each row, by a column: int8 [n]."""
    return check_split(strings_or_whole(frame[name]), len(frame), f"split: column {name!r}")


def _advise_on_noise(y: np.ndarray, noise_scale: float) -> None:
    """Warns of targets so far apart, in units of sigma, that an E-step is a hard assignment and steps are too long."""
    spread = float(np.std(y))
    if spread > 20 * noise_scale:
        warnings.warn(
            f"dataset.noise_scale: the target's deviation is {spread:.3g}, sigma is {noise_scale:g}; shift the target "
            "by its mean and divide it by its deviation: sigma=1 and the usual learning rates suit it then",
            stacklevel=3,
        )


def sample_form(federation: Federation) -> dict[str, Any]:
    """The form of a federation's samples as plain values, without facts about its clients."""
    several = ", ".join(federation.in_shape) if isinstance(federation.in_shape, Mapping) else ""
    require(not several, f"dataset: samples of several arrays ({several}) cannot be sent to distributed clients")
    state = Schema.of(federation).state()
    state["whole"] = dict.fromkeys(state["whole"], 1)  # how large they are differs between clients
    return {name: value for name, value in state.items() if name not in ("seen", "n_train", "names")}


def load_client(
    path: Path, name: str | None = None, task: TaskName = "classification", n_classes: int | None = None
) -> Federation:
    """A federation of one client.

    Args:
        path: an .npz file with x, y and, optionally, split (0 train, 1 val, 2 test; without it, 60, 20 and 20 %).
        name: the client's name; None: the file's.
        task, n_classes: see `NpzDataModule`.

    Raises:
        UserError: the file is missing or broken, or its arrays are wrong.

    """
    arrays = read_npz(path, ("x", "y", "split"))
    missing = [key for key in ("x", "y") if key not in arrays]
    require(not missing, f"data: {path} lacks {', '.join(missing)}; expected x, y, optional split")
    x, y, alone, name = arrays["x"], arrays["y"], np.zeros(len(arrays["x"]), dtype=np.int64), name or path.stem
    options: dict[str, Any] = {"task": task, "n_classes": n_classes, "split": arrays.get("split")}
    return FederatedDataModule.from_arrays(x, y, alone, names=np.array([name]), **options).federation
