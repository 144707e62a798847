"""Anyone's federation from one file: `dataset=npz dataset.path=FILE`, and `dataset=table` with a row a sample.

And a single client's samples in a file of its own.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from fedem_lightning.data.datamodule import FederatedDataModule
from fedem_lightning.data.dealing import Dealing
from fedem_lightning.data.federation import Federation
from fedem_lightning.data.formats import read_npz
from fedem_lightning.data.names import names_of_clients
from fedem_lightning.data.own_data import OwnArrays, TaskOptions, checked_federation
from fedem_lightning.data.schema import Schema
from fedem_lightning.data.splits import Splitting
from fedem_lightning.errors import require
from fedem_lightning.settings.check import grouped
from fedem_lightning.tasks import TaskName

ARRAYS = ("x", "y", "client", "split", "names", "client_names", "domain", "coarse")


class NpzDataModule(FederatedDataModule):
    """Reads x, y and, if there, client, split, names, domain, coarse, as `FederatedDataModule.from_arrays` has them.

    Args:
        path: the .npz file.
        options: those of `TaskOptions`, `Dealing` and `Splitting`.

    Raises:
        UserError: the file is missing or broken, or its arrays are wrong.

    """

    def __init__(self, path: str | Path | None, **options: Annotated[Any, TaskOptions, Dealing, Splitting]) -> None:
        task, dealing, splitting = grouped(options, TaskOptions, Dealing, Splitting)
        require(path is not None, "path: expected an .npz file, e.g. path=my.npz")
        arrays = read_npz(Path(str(path)).expanduser(), ARRAYS)
        needed = ("x", "y", "client") if dealing.partition == "natural" else ("x", "y")
        missing = [name for name in needed if name not in arrays]
        expected = "expected x, y, client (or partition=iid, dirichlet, ...), optional split, names, domain"
        require(not missing, f"path: {path} lacks {', '.join(missing)}; {expected}")
        found = {name: arrays.get(name) for name in OwnArrays._fields} | {"names": names_of_clients(arrays)}
        super().__init__(checked_federation(OwnArrays(**found), task, dealing, splitting, notes={"source": str(path)}))


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
