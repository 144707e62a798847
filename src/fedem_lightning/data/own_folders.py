"""Federations that other libraries have dealt: `dataset=pfllib dataset.path=FOLDER` and `dataset=flbench`."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from fedem_lightning.data.datamodule import FederatedDataModule
from fedem_lightning.data.dealing import Dealing
from fedem_lightning.data.federation import Federation
from fedem_lightning.data.formats.libraries import read_flbench, read_pfllib
from fedem_lightning.data.own_data import OwnArrays, TaskOptions, checked_federation
from fedem_lightning.data.splits import HoldOut, Splitting
from fedem_lightning.errors import require
from fedem_lightning.settings.check import grouped
from fedem_lightning.settings.ranges import BelowOne, PositiveInt, ShareOrNumber


class PFLlibDataModule(FederatedDataModule):
    """Reads a data set of PFLlib: a folder with train/0.npz, test/0.npz and so on, as its generators write it.

    Args:
        path: the folder.
        val_fraction: share of each client's training samples that are for validation instead.
        n_clients: up to 1 the share of the clients to keep, from 2 on their number; None: all.
        options: those of `TaskOptions` and `HoldOut`.

    Raises:
        UserError: a file is missing or broken, or its pickle asks for more than arrays; no code of it runs.

    """

    def __init__(
        self,
        path: str | Path | None,
        *,
        val_fraction: BelowOne = 0.0,
        n_clients: ShareOrNumber | None = None,
        **options: Annotated[Any, TaskOptions, HoldOut],
    ) -> None:
        task, hold_out = grouped(options, TaskOptions, HoldOut)
        folder = _folder(path, "PFLlib/dataset/MNIST")
        arrays = read_pfllib(folder)
        super().__init__(_federation(arrays, folder, val_fraction, n_clients, task, hold_out))


class FLBenchDataModule(FederatedDataModule):
    """Reads a data set of FL-bench: a folder with data.npy, targets.npy and partition.pkl.

    Args:
        path: the folder.
        shape: of a sample; None: that of data.npy. FL-bench keeps FEMNIST flat: [1, 28, 28] makes it images.
        val_fraction: share of each client's training samples that are for validation instead.
        n_clients: up to 1 the share of the clients to keep, from 2 on their number; None: all.
        options: those of `TaskOptions` and `HoldOut`.

    Raises:
        UserError: a file is missing or broken, or its pickle asks for more than arrays; no code of it runs.

    """

    def __init__(
        self,
        path: str | Path | None,
        *,
        shape: Sequence[PositiveInt] | None = None,
        val_fraction: BelowOne = 0.0,
        n_clients: ShareOrNumber | None = None,
        **options: Annotated[Any, TaskOptions, HoldOut],
    ) -> None:
        task, hold_out = grouped(options, TaskOptions, HoldOut)
        folder = _folder(path, "FL-bench/data/femnist")
        arrays = read_flbench(folder)
        if shape is not None:
            has = arrays["x"].shape[1:]
            require(math.prod(shape) == math.prod(has), f"shape: {list(shape)} does not fit samples of {list(has)}")
            arrays["x"] = arrays["x"].reshape(-1, *shape)
        super().__init__(_federation(arrays, folder, val_fraction, n_clients, task, hold_out))


def _folder(path: str | Path | None, example: str) -> Path:
    require(path is not None, f"path: expected a folder, e.g. path={example}")
    return Path(str(path)).expanduser()


def _federation(
    arrays: dict[str, np.ndarray],
    folder: Path,
    val_fraction: float,
    n_clients: ShareOrNumber | None,
    task: TaskOptions,
    hold_out: HoldOut,
) -> Federation:
    """The federation of the arrays x, y, client, names and split."""
    splitting = Splitting(**vars(hold_out), fractions=(1 - val_fraction, val_fraction, 0.0))
    split, client = arrays["split"], arrays["client"]
    if val_fraction > 0:
        train = np.flatnonzero(split == 0)
        split[train] = splitting.split(client[train])
    own = OwnArrays(arrays["x"], arrays["y"], client, split, arrays["names"])
    return checked_federation(own, task, Dealing(n_clients=n_clients), splitting, notes={"source": str(folder)})
