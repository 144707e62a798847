"""`dataset=npz dataset.path=FILE`: anyone's federation from one file."""

from collections.abc import Callable
from pathlib import Path

from fedem_lightning.data.arrays import checked_federation
from fedem_lightning.data.class_weights import ClassWeights
from fedem_lightning.data.datamodule import FederatedDataModule
from fedem_lightning.data.formats.npz import read_npz
from fedem_lightning.data.partitions import Partition, PartitionName
from fedem_lightning.data.unread import names_of_clients
from fedem_lightning.errors import require
from fedem_lightning.settings.ranges import (
    BelowOne,
    Count,
    Fractions,
    Names,
    Positive,
    PositiveInt,
    Seed,
    ShareOrNumber,
    TwoOrMore,
)
from fedem_lightning.tasks import TaskName

ARRAYS = ("x", "y", "client", "split", "names", "client_names", "domain", "coarse")


class NpzDataModule(FederatedDataModule):
    """Reads x, y and, if there, client, split, names, domain, coarse, as `FederatedDataModule.from_arrays` has them.

    Args:
        path: the .npz file.
        task: "classification" (one logit a class), "binary" (one logit), or "regression" (real y [n] or [n, k]).
        n_classes: Y; default: the largest label plus 1.
        noise_scale: standard deviation of real targets around their mean, in units of y.
        label_smoothing: of a classification, in [0, 1); see `Classification`.
        class_weights: of the loss in training: "balanced", or a number for each class; see `class_weights`.
        partition: "natural": the clients that the file says. "iid", "dirichlet", "pachinko", "shards", "quantity_skew"
            or a function (labels, seed, ...) deals the samples anew: see `fedem_lightning.data.partitions`.
        n_clients, alpha, beta, n_label_groups, shards_per_client, min_samples: passed to the partition if it has them.
        mmap: map the arrays from the file instead of reading them.
        fractions: of each client's samples for train, val, test, where the file has no split.
        unseen_fraction: share of the clients that take no part in training.
        unseen: names of clients that take no part in training, in place of a share.
        seed: of the split and of the choice of unseen clients.

    Raises:
        UserError: the file is missing or broken, or its arrays are wrong.

    """

    def __init__(
        self,
        path: str | Path | None,
        task: TaskName = "classification",
        n_classes: TwoOrMore | None = None,
        noise_scale: Positive = 1.0,
        label_smoothing: BelowOne = 0.0,
        class_weights: ClassWeights | None = None,
        partition: PartitionName | Callable[..., Partition] = "natural",
        n_clients: ShareOrNumber | None = None,
        alpha: Positive = 0.4,
        beta: Positive = 10.0,
        n_label_groups: PositiveInt | None = None,
        shards_per_client: PositiveInt = 2,
        min_samples: Count = 10,
        fractions: Fractions = (0.6, 0.2, 0.2),
        unseen_fraction: BelowOne = 0.0,
        unseen: Names = (),
        mmap: bool = False,
        seed: Seed = 0,
    ) -> None:
        require(path is not None, "path: expected an .npz file, e.g. path=my.npz")
        arrays = read_npz(Path(str(path)).expanduser(), ARRAYS, mmap)
        needed = ("x", "y", "client") if partition == "natural" else ("x", "y")
        missing = [name for name in needed if name not in arrays]
        expected = "expected x, y, client (or partition=iid, dirichlet, ...), optional split, names, domain"
        require(not missing, f"path: {path} lacks {', '.join(missing)}; {expected}")
        options = {
            "n_clients": n_clients,
            "alpha": alpha,
            "beta": beta,
            "n_label_groups": n_label_groups,
            "shards_per_client": shards_per_client,
            "min_samples": min_samples,
        }
        super().__init__(
            checked_federation(
                arrays["x"],
                arrays["y"],
                arrays.get("client"),
                arrays.get("split"),
                names_of_clients(arrays),
                arrays.get("domain"),
                arrays.get("coarse"),
                task=task,
                n_classes=n_classes,
                noise_scale=noise_scale,
                label_smoothing=label_smoothing,
                weights=class_weights,
                partition=partition,
                options=options,
                fractions=fractions,
                unseen_fraction=unseen_fraction,
                unseen=unseen,
                seed=seed,
                notes={"source": str(path)},
            )
        )
