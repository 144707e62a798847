"""`dataset=npz dataset.path=FILE`: anyone's federation from one file."""

from collections.abc import Sequence
from pathlib import Path

from fedem_lightning.data.arrays import checked_federation, load_npz
from fedem_lightning.data.datamodule import FederatedDataModule
from fedem_lightning.errors import require


class NpzFederation(FederatedDataModule):
    """Reads x, y, client and, if there, split and names; see `FederatedDataModule.from_arrays` for what they hold.

    Args:
        path: the .npz file.
        n_classes: Y; default: the largest label plus 1.
        fractions: of each client's samples for train, val, test, where the file has no split.
        unseen_fraction: share of the clients that take no part in training.
        seed: of the split and of the choice of unseen clients.

    Raises:
        UserError: the file is missing or broken, or its arrays are wrong.

    """

    def __init__(
        self,
        path: str | Path | None,
        n_classes: int | None = None,
        fractions: Sequence[float] = (0.6, 0.2, 0.2),
        unseen_fraction: float = 0.0,
        seed: int = 0,
    ) -> None:
        require(path is not None, "dataset.path: expected an .npz file, e.g. dataset.path=my.npz")
        arrays = load_npz(str(path))
        super().__init__(
            checked_federation(
                arrays["x"],
                arrays["y"],
                arrays["client"],
                arrays.get("split"),
                arrays.get("names"),
                n_classes=n_classes,
                fractions=fractions,
                unseen_fraction=unseen_fraction,
                seed=seed,
            )
        )
