"""The data module for Lightning: an epoch is a round, its only batch the federation; and the one of an .npz."""

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pytorch_lightning as pl
import torch

from fedem_lightning.data.arrays import printable
from fedem_lightning.data.federation import Federation
from fedem_lightning.data.formats import read_npz
from fedem_lightning.data.own_data import OwnArrays, OwnOptions, checked_federation
from fedem_lightning.data.samples import InShape
from fedem_lightning.settings.check import check_arguments, grouped
from fedem_lightning.settings.errors import require
from fedem_lightning.settings.recipes import Recorded, arguments_with_defaults, recipe


class OneBatch(tuple[Federation]):
    """The one federation; Lightning would read a list or a plain tuple as several data loaders."""


class FederatedDataModule(Recorded, pl.LightningDataModule):
    """Passes a federation to the Trainer. The algorithm draws the round's cohort; evaluation uses all clients."""

    remote: Any = None  # `protocol.RemoteClients`, where the samples are elsewhere

    def __init__(self, federation: Federation) -> None:
        super().__init__()
        self._describe(arguments_with_defaults(self))
        self.federation = federation
        self._on_device = federation

    @classmethod
    def from_arrays(
        cls,
        x: np.ndarray,
        y: np.ndarray,
        client: np.ndarray | None = None,
        *,
        split: np.ndarray | None = None,
        names: np.ndarray | None = None,
        domain: np.ndarray | None = None,
        **options: Annotated[Any, OwnOptions],
    ) -> "FederatedDataModule":
        """A data module from a user's own arrays, lists or pandas columns.

        Args:
            x: features [n, ...]: floats, whole numbers, uint8 images [n, height, width], [n, height, width, channels]
                or [n, channels, height, width]; or a dictionary of such arrays.
            y: labels [n]: whole numbers in 0..n_classes-1, or strings, which are numbered in alphabetical order; for a
                regression real targets [n] or [n, k].
            client: the client of each sample [n]: whole numbers or strings. None: `partition` deals the samples.
            split: 0 train, 1 val, 2 test (or these words) [n]; default: drawn per client by `fractions`.
            names: names of the clients, [T]; `client` must then be whole numbers in 0..T-1.
            domain: the domain of each sample [n], whole numbers or strings; `Agnostic` needs it.
            options: those of `TaskOptions`, `Partitioning` and `OwnSplitting`.

        Raises:
            UserError: arrays do not fit together, x has NaN, or a client has no training samples.

        """
        check_arguments("", cls.from_arrays, options)
        (own,) = grouped(options, OwnOptions)
        data = FederatedDataModule(checked_federation(OwnArrays(x, y, client, split, names, domain), own))
        data._describe(vars(own))
        return data

    def _describe(self, arguments: dict[str, Any]) -> None:
        """Saves hyper-parameters under one name: Lightning refuses a name that the model has too, such as seed."""
        arguments = {name: recipe(value) for name, value in arguments.items() if name != "federation"}
        self.save_hyperparameters({"data": {"class": type(self).__name__, **arguments}})

    def __repr__(self) -> str:
        """The class with its arguments (None and empty ones left out), and below it the federation."""
        reason = dict(self.hparams.get("data", {"class": type(self).__name__}))
        kind = reason.pop("class")
        arguments = ", ".join(f"{name}={value!r:.100}" for name, value in reason.items() if value not in (None, []))
        return printable(f"{kind}({arguments})\n{getattr(self, 'federation', 'not made yet')}")

    __str__ = __repr__  # Lightning's asks the data loaders for lengths that a federation does not have

    @property
    def n_clients(self) -> int:
        """T, the unseen clients included."""
        return self.federation.n_clients

    @property
    def in_shape(self) -> InShape:
        """Shape of one sample as the backbone's input."""
        return self.federation.in_shape

    @property
    def n_outputs(self) -> int:
        """Number of outputs that a backbone must have."""
        return self.federation.task.n_outputs

    def setup(self, stage: str) -> None:
        """Raises UserError for a LightningModule that is no federated algorithm: it would get the whole federation."""
        model = self.trainer.lightning_module if self.trainer is not None else None
        kind = type(model).__name__
        message = f"the Trainer's model: {kind} would get all clients as one batch; expected a method of this package"
        wanted = model is None or hasattr(model, "client_update")
        require(wanted, f"{message}, with {kind} as its network: FedAvg({kind}(...), data.n_clients)")

    def train_dataloader(self) -> OneBatch:
        """A loader of one batch, the federation; so are the others."""
        return OneBatch((self.federation,))

    val_dataloader = test_dataloader = predict_dataloader = train_dataloader

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        """Moves the federation to the device once, not every round."""
        if batch is not self.federation:
            return super().transfer_batch_to_device(batch, device, dataloader_idx)
        self._on_device = self._on_device.to(device)
        return self._on_device


ARRAYS = ("x", "y", "client", "split", "names", "client_names", "domain")
"""Of an .npz file."""


class NpzDataModule(FederatedDataModule):
    """Reads x, y and, if there, client, split, names, domain, as `FederatedDataModule.from_arrays` has them.

    Args:
        path: the .npz file.
        options: those of `TaskOptions`, `Partitioning` and `OwnSplitting`.

    """

    def __init__(self, path: str | Path | None, **options: Annotated[Any, OwnOptions]) -> None:
        (own,) = grouped(options, OwnOptions)
        require(path is not None, "path: expected an .npz file, e.g. path=my.npz")
        by = [name for name in own.parts[1:2] if name]
        result = read_npz(Path(str(path)).expanduser(), (*ARRAYS, *by))
        needed = ["x", "y", *["client"] * (own.partition == "natural"), *by]
        missing = [name for name in needed if name not in result]
        expected = "expected x, y, client (or partition=iid, dirichlet, ...), optional split, names, domain"
        require(not missing, f"path: {path} lacks {', '.join(missing)}; {expected}")
        known: dict[str, Any] = {name: array for name, array in result.items() if name in ARRAYS}
        arrays = OwnArrays(**known, by=result[by[0]] if by else None)
        super().__init__(checked_federation(arrays, own, notes={"source": str(path)}))
