"""Anyone's federation from what torch users hold: `TorchDataModule`, `dataset=torch dataset.data._target_=mine.f`."""

from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np
from torch.utils.data import DataLoader

from fedem_lightning.data.arrays import as_array
from fedem_lightning.data.datamodule import FederatedDataModule
from fedem_lightning.data.dealing import Dealing
from fedem_lightning.data.gathering import XY, Part, clients_of, joined, part_of, samples_of
from fedem_lightning.data.names import shown
from fedem_lightning.data.own_data import OwnArrays, TaskOptions, checked_federation
from fedem_lightning.data.splits import Splitting
from fedem_lightning.errors import require
from fedem_lightning.settings.check import grouped
from fedem_lightning.settings.ranges import Columns

XYC = (*XY, "client")
GIVEN = ("data", "test", "val", "client")


class TorchDataModule(FederatedDataModule):
    """Reads the samples of each client, or one Dataset in which each sample has a client.

    A client's samples are (x, y), or a dictionary of both, as arrays or tensors; a torch Dataset, or anything else
    with `len` and `[i]` whose samples are (x, y) or such dictionaries; or a DataLoader of such. All samples are read
    once, in order, into memory: random transforms keep their first draw.

    Args:
        data: a dictionary client -> samples, or a list with an entry for each client; or one Dataset.
        test: test samples, client -> samples; those in `data` are then for training. None: `fractions` split `data`.
        val: validation samples, likewise; it needs `test`.
        client: of one Dataset: the client of each sample [n], whole numbers or strings. None: samples are
            (x, y, client), or a partition deals them.
        columns: names of x, y and, if a Dataset's samples say it, the client, where samples are dictionaries; default:
            "x", "y", "client".
        options: those of `TaskOptions`, `Dealing` and `Splitting`.

    Raises:
        UserError: samples do not fit together, a client has none, or what `FederatedDataModule.from_arrays` refuses.

    Example:
        >>> import torch
        >>> samples = {name: (torch.rand(10, 3), torch.arange(10) % 2) for name in ("Ann", "Bob")}
        >>> TorchDataModule(samples).federation
        Federation(2 clients, 20 samples of shape (3,), classification)

    """

    def __init__(
        self,
        data: Any,
        test: Any = None,
        val: Any = None,
        *,
        client: Any = None,
        columns: Columns | None = None,
        **options: Annotated[Any, TaskOptions, Dealing, Splitting],
    ) -> None:
        task, dealing, splitting = grouped(options, TaskOptions, Dealing, Splitting)
        one = not isinstance(data, Mapping | list)
        if one:
            require(test is None and val is None, "test: it goes with a dictionary or a list of clients as data")
            arrays = _of_dataset(data, client, columns, natural=dealing.partition == "natural")
        else:
            require(client is None, "client: a dictionary or a list of clients says it already")
            require(val is None or test is not None, "val: it needs test; without test, fractions split data")
            arrays = _of_clients({"data": data, "val": val, "test": test}, columns)
        for name in GIVEN:
            self.made_with.pop(name, None)  # it would keep the samples in memory twice
        data = test = val = client = None  # Lightning compares arguments by ==, which arrays cannot
        super().__init__(checked_federation(arrays, task, dealing, splitting))


def _of_dataset(data: Any, client: Any, columns: Columns | None, natural: bool) -> OwnArrays:
    """The samples of one Dataset."""
    known = data is not None and not isinstance(data, tuple | DataLoader)
    expected = "a dictionary or a list with the samples of each client, or a Dataset whose samples have clients"
    hint = "; on the command line dataset.data._target_=MODULE.FUNCTION" if data is None else ""
    require(known, f"data: expected {expected}, got a {type(data).__name__}{hint}")
    says = client is None and natural
    part = samples_of("data", data, columns or (XYC if says else XY))
    return OwnArrays(part.x, part.y, part.client if says else client)


def _of_clients(given: dict[str, Any], columns: Columns | None) -> OwnArrays:
    """The samples of a dictionary, or of one for each split: by split, in a split by client."""
    parts: list[Part] = []
    owner: list[Any] = []
    split: list[int] = []
    known = clients_of("data", given["data"])
    for code, name in enumerate(("data", "val", "test")):  # as in SPLITS
        if given[name] is None:
            continue
        clients = clients_of(name, given[name])
        others = [shown(str(who)) for who in clients if who not in known]
        require(not others, f"{name}: client {', '.join(others[:3])} is not in data")
        for who, samples in clients.items():
            parts.append(part_of(f"{name}: client {shown(str(who))}", samples, columns))
            owner.append(who)
            split.append(code)
    counts = [len(part.y) for part in parts]
    codes = np.repeat(np.array(split, dtype=np.int8), counts) if given["test"] is not None else None
    client = np.repeat(as_array("data: client", owner), counts)
    return OwnArrays(joined("x", parts), joined("y", parts), client, codes)
