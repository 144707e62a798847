"""Federations of labelled images: FEMNIST, EMNIST, MNIST, CIFAR-10, CIFAR-100, and scikit-learn's digits."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch

from fedem_lightning.data.arrays import check_clients, check_labels, listed
from fedem_lightning.data.datamodule import FederatedDataModule
from fedem_lightning.data.federation import Federation
from fedem_lightning.data.partitions import Labels, Partition, Partitioning, PartitionName
from fedem_lightning.data.randomness import Purpose, generator
from fedem_lightning.data.samples import Arrays, Domains
from fedem_lightning.data.sources import SOURCES, load_arrays
from fedem_lightning.data.splits import Splitting
from fedem_lightning.data.tasks import Classification
from fedem_lightning.settings.check import grouped
from fedem_lightning.settings.errors import of_a_file, require
from fedem_lightning.settings.ranges import BelowOne, Positive, PositiveInt, Share, ShareOrNumber


@dataclass(frozen=True)
class Shift:
    """How samples differ between true groups of clients; the first group's stay as they are.

    Args:
        shift: "rotation" (images of group g are turned by g * 90 degrees), "labels" (a permutation for each group) or
            "inversion" (the second group's images are negatives); None: no shift.
        n_groups: number of true groups of the shift.
        shifted_share: share of the clients that are dealt evenly to all groups; the others are in the first group.

    """

    shift: Literal["rotation", "labels", "inversion"] | None = None
    n_groups: PositiveInt = 1
    shifted_share: Share = 1.0

    def apply(
        self, x: np.ndarray, y: np.ndarray, divided: Partition, n_classes: int, seed: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Assigns clients to groups, and shifts all samples of a group in the same way.

        Returns x [n, ...], changed in place unless labels are permuted, y int [n], and every client's group, int64 [T].
        """
        n_clients, most = len(divided.names), {"rotation": 4, "inversion": 2}.get(self.shift or "", self.n_groups)
        require(self.n_groups <= n_clients, f"n_groups: {self.n_groups} groups, but there are {n_clients} clients")
        require(self.n_groups <= most, f"n_groups: {self.shift} makes {most} groups at most, got {self.n_groups}")
        rng = generator(seed, Purpose.GROUPS)
        n_grouped, order = round(self.shifted_share * n_clients), np.arange(n_clients)
        group = rng.permutation(np.where(order < n_grouped, order % self.n_groups, 0))
        of_sample = np.where(divided.client >= 0, group[divided.client], -1)
        if self.shift == "labels":  # the first group keeps its own
            permuted = (rng.permutation(n_classes) for _ in range(self.n_groups - 1))
            table = np.stack([np.arange(n_classes), *permuted])
            return x, np.where(of_sample < 0, y, table[of_sample, y]), group
        if self.shift == "rotation":
            square = x.ndim >= 3 and x.shape[1] == x.shape[2]
            require(square, f"shift: rotation needs square images, these samples are {x.shape[1:]}")
        for g in range(1, self.n_groups):
            rows = np.flatnonzero(of_sample == g)
            for part in np.array_split(rows, max(1, len(rows) // 10_000)):  # copies one part at a time
                if self.shift == "rotation":
                    x[part] = np.rot90(x[part], k=g, axes=(1, 2))
                elif self.shift == "inversion":
                    x[part] = 255 - x[part]
        return x, y, group


class ImageDataModule(FederatedDataModule):
    """Images of a known data set, partitioned into clients, and optionally shifted by true groups of clients.

    The official train and test parts are pooled; every client's samples are split again.

    Args:
        name: femnist, emnist, mnist, cifar10 or cifar100.
        partition, n_clients: see `Partitioning`.
        path: a file or folder with the data, see `sources.load_arrays`.
        data_dir: where downloads are kept.
        sample_fraction: up to 1: fraction of the samples to use, drawn at random; from 2 on: their number.
        invert: whether black and white are exchanged (FEMNIST is black on white, EMNIST white on black).
        mean, std: of each channel in [0, 1], for normalisation.
        domains: name of a domain -> regular expression for the start of its clients' names, for `Agnostic`.
        label_smoothing: in [0, 1), see `Classification`.
        options: those of `Partitioning`, `Shift` and `Splitting`.

    """

    def __init__(
        self,
        name: Literal["femnist", "emnist", "mnist", "cifar10", "cifar100"],
        partition: PartitionName | Callable[..., Partition] = "natural",
        n_clients: ShareOrNumber | None = None,
        *,
        path: str | Path | None = None,
        data_dir: str | Path = "data",
        sample_fraction: ShareOrNumber = 1.0,
        invert: bool = False,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        domains: Mapping[str, str] | None = None,
        label_smoothing: BelowOne = 0.0,
        **options: Annotated[Any, Partitioning, Shift, Splitting],
    ) -> None:
        divided_by = {"partition": partition, "n_clients": n_clients}
        partitioning, shift, splitting = grouped(divided_by | options, Partitioning, Shift, Splitting)
        arrays, origin = load_arrays(name, path, data_dir)
        n_classes, truth = SOURCES[name].n_classes, {}
        x, labels = _checked(arrays, n_classes, origin)
        divided, y = _part_of(labels, sample_fraction, partitioning, splitting.seed), labels.y
        if shift.shift is not None:
            x, y, truth["group"] = shift.apply(x, y, divided, n_classes, splitting.seed)
        super().__init__(
            Federation.from_samples(
                Arrays(torch.from_numpy(x), torch.from_numpy(y), mean, std, invert),
                divided.client,
                splitting.split(divided.client),
                task=Classification(n_classes, label_smoothing=label_smoothing),
                names=divided.names,
                seen=splitting.seen(divided.names),
                truth=truth,
                domains=None if domains is None else domains_by_name(domains, divided.client, divided.names),
                notes={"source": origin, "partition": str(partition), **divided.notes},
            )
        )


def _checked(arrays: dict[str, np.ndarray], n_classes: int, origin: str) -> tuple[np.ndarray, Labels]:
    x, client, names, coarse = arrays["x"], None, None, None
    fits = x.dtype == np.uint8 and x.ndim in (3, 4) and x.size > 0
    expected = f"x: expected uint8 images [n, h, w] or [n, h, w, channels] in {origin}"
    require(fits, f"{expected}, got {x.dtype} of shape {x.shape}")
    y, _ = check_labels(arrays["y"], n_classes, len(x))
    if "client" in arrays:
        client, names = check_clients(arrays["client"], arrays.get("names"), len(x))
    if "coarse" in arrays:
        coarse, _ = check_labels(arrays["coarse"], None, len(x), "coarse")
    return x, Labels(y, coarse, client, names)


def _part_of(labels: Labels, fraction: float, partitioning: Partitioning, seed: int) -> Partition:
    """Partitions a random subset of the samples, without a copy; the other samples belong to no client."""
    if fraction == 1:
        return partitioning.divide(labels, seed)
    n = len(labels.y)
    number = max(1, round(fraction * n)) if fraction <= 1 else int(fraction)
    require(number <= n, f"sample_fraction: {number} samples, but there are only {n}")
    kept = np.sort(generator(seed, Purpose.SUBSAMPLE, 0).permutation(n)[:number])
    coarse, owner = (None if a is None else a[kept] for a in (labels.coarse, labels.client))
    divided = partitioning.divide(Labels(labels.y[kept], coarse, owner, labels.names), seed)
    client = np.full(n, -1, dtype=np.int64)
    client[kept] = divided.client
    return Partition(client, divided.names, {"sample_fraction": fraction, **divided.notes})


def domains_by_name(patterns: Mapping[str, str], client: np.ndarray, names: Sequence[str]) -> Domains:
    """The domain of each sample by its client, int [n] (-1: no client), whose name begins as just one pattern says."""
    with of_a_file("domains: expected regular expressions"):
        result = [[re.match(pattern, name) is not None for name in names] for pattern in patterns.values()]
    matches = np.array(result, dtype=bool).reshape(len(patterns), len(names))
    odd = [f"{names[t]} matches {n}" for t, n in enumerate(matches.sum(axis=0)) if n != 1]
    message = f"domains: expected every client's name to match one of {', '.join(patterns)}"
    require(not odd, f"{message}; {listed(odd, 1)}")
    of_client = np.append(matches.argmax(axis=0), -1)  # the last entry is for samples of no client
    return Domains(tuple(patterns), torch.from_numpy(of_client[client]))


class Digits(FederatedDataModule):
    """scikit-learn's handwritten digits: 1,797 images of 8 x 8 pixels, which ship inside scikit-learn.

    They are partitioned by a Dirichlet draw for each label; with `n_groups` > 1 there is also a concept shift.

    Args:
        n_clients: T.
        alpha: concentration of the Dirichlet draw of each label.
        n_groups: number of true groups of clients, each with its own label permutation (1: none).
        options: those of `Splitting`.

    """

    def __init__(
        self,
        n_clients: PositiveInt = 20,
        alpha: Positive = 0.4,
        n_groups: PositiveInt = 1,
        **options: Annotated[Any, Splitting],
    ) -> None:
        from sklearn.datasets import load_digits  # slow, and of no use to the other images

        (splitting,) = grouped(options, Splitting)
        images, y = load_digits(return_X_y=True)
        x = np.round(images.reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)  # grey levels 0..16 as pixels
        divided = Partitioning("dirichlet", n_clients, alpha).divide(Labels(y), splitting.seed)
        x, y, group = Shift("labels", n_groups).apply(x, y, divided, 10, splitting.seed)
        super().__init__(
            Federation.from_arrays(
                x,
                y,
                divided.client,
                splitting.split(divided.client),
                task=Classification(10),
                names=divided.names,
                seen=splitting.seen(divided.names),
                truth={"group": group} if n_groups > 1 else {},
                notes=divided.notes,
            )
        )
