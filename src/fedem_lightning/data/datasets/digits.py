"""scikit-learn's handwritten digits (1,797 images of 8 x 8 pixels; they ship inside scikit-learn) as a federation."""

import numpy as np
from sklearn.datasets import load_digits

from fedem_lightning.data.datamodule import FederatedDataModule
from fedem_lightning.data.federation import Federation
from fedem_lightning.data.partitions import Labels, dirichlet
from fedem_lightning.data.shifts import shift_groups
from fedem_lightning.data.splits import seen_clients, split_samples
from fedem_lightning.settings.ranges import BelowOne, Fractions, Names, Positive, PositiveInt, Seed
from fedem_lightning.tasks import Classification


class Digits(FederatedDataModule):
    """Digits, partitioned by a Dirichlet draw for each label; with `n_groups` > 1 there is also a concept shift.

    Args:
        n_clients: T.
        alpha: concentration of the Dirichlet draw of each label.
        n_groups: number of true groups of clients, each with its own label permutation (1: none).
        fractions: of each client's samples for train, val, test.
        unseen_fraction: share of the clients that take no part in training.
        unseen: names of clients that take no part in training, in place of a share.
        seed: of the partition, the splits and the groups.

    """

    def __init__(
        self,
        n_clients: PositiveInt = 20,
        alpha: Positive = 0.4,
        n_groups: PositiveInt = 1,
        fractions: Fractions = (0.6, 0.2, 0.2),
        unseen_fraction: BelowOne = 0.0,
        unseen: Names = (),
        seed: Seed = 0,
    ) -> None:
        images, y = load_digits(return_X_y=True)
        x = np.round(images.reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)  # grey levels 0..16 as pixels
        partition = dirichlet(Labels(y), seed, n_clients, alpha)
        x, y, group = shift_groups(x, y, partition.client, n_clients, 10, "labels", n_groups, seed)
        super().__init__(
            Federation.from_arrays(
                x,
                y,
                partition.client,
                split_samples(partition.client, seed, fractions),
                task=Classification(10),
                names=partition.names,
                seen=seen_clients(partition.names, unseen_fraction, unseen, seed),
                truth={"group": group} if n_groups > 1 else {},
                notes=partition.notes,
            )
        )
