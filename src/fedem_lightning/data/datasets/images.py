"""Federations of labelled images: FEMNIST, EMNIST, MNIST, CIFAR-10, CIFAR-100."""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from fedem_lightning.data.arrays import check_clients, check_images, check_labels
from fedem_lightning.data.augmentation import Augmentation
from fedem_lightning.data.catalogue import SOURCES
from fedem_lightning.data.datamodule import FederatedDataModule
from fedem_lightning.data.federation import Domains, Federation
from fedem_lightning.data.partitions import Labels, Partition, PartitionName, deal
from fedem_lightning.data.samples import Arrays
from fedem_lightning.data.shifts import shift_groups
from fedem_lightning.data.sources import load
from fedem_lightning.data.splits import seen_clients, split_samples
from fedem_lightning.data.unread import names_of_clients
from fedem_lightning.errors import UserError, require
from fedem_lightning.randomness import Purpose, generator
from fedem_lightning.settings.ranges import (
    BelowOne,
    Count,
    Fractions,
    Names,
    Positive,
    PositiveInt,
    Seed,
    Share,
    ShareOrNumber,
)
from fedem_lightning.tasks import Classification


class ImageDataModule(FederatedDataModule):
    """Images of a known data set, partitioned into clients, and optionally shifted by true groups of clients.

    The official train and test parts are pooled; every client's samples are split again.

    Args:
        name: femnist, emnist, mnist, cifar10 or cifar100.
        partition: natural, iid, dirichlet, pachinko, shards or quantity_skew, see `fedem_lightning.data.partitions`; or
            the user's own function (labels, seed, ...).
        n_clients, alpha, beta, n_label_groups, shards_per_client, min_samples: passed to the partition if it has them.
        path: a file or folder with the data, see `sources.load`.
        data_dir: where downloads are kept.
        sample_fraction: up to 1: fraction of the samples to use, drawn at random; from 2 on: their number.
        shift: "rotation" (images of group g are turned by g * 90 degrees), "labels" (a permutation for each group) or
            "inversion" (the second group's images are negatives).
        n_groups: number of true groups of the shift.
        shifted_share: share of the clients that are dealt evenly to the groups; the others are in the first one, which
            is not shifted.
        invert: whether black and white are exchanged (FEMNIST is black on white, EMNIST white on black).
        mean, std: of each channel in [0, 1], for normalisation.
        augmentation: of training batches.
        domains: name of a domain -> regular expression for the start of its clients' names, for `Agnostic`.
        label_smoothing: in [0, 1), see `Classification`.
        fractions: of each client's samples for train, val, test.
        unseen_fraction: share of the clients that take no part in training.
        unseen: names of clients that take no part in training, in place of a share.
        mmap: whether the images are mapped from the file instead of read.
        seed: of everything drawn.

    Raises:
        UserError: the data is missing or broken, or an argument is out of its range.

    """

    def __init__(
        self,
        name: Literal["femnist", "emnist", "mnist", "cifar10", "cifar100"],
        partition: PartitionName | Callable[..., Partition] = "natural",
        n_clients: ShareOrNumber | None = None,
        alpha: Positive = 0.4,
        beta: Positive = 10.0,
        n_label_groups: PositiveInt | None = None,
        shards_per_client: PositiveInt = 2,
        min_samples: Count = 10,
        path: str | Path | None = None,
        data_dir: str | Path = "data",
        sample_fraction: ShareOrNumber = 1.0,
        shift: Literal["rotation", "labels", "inversion"] | None = None,
        n_groups: PositiveInt = 1,
        shifted_share: Share = 1.0,
        invert: bool = False,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        augmentation: Augmentation | None = None,
        domains: Mapping[str, str] | None = None,
        label_smoothing: BelowOne = 0.0,
        fractions: Fractions = (0.6, 0.2, 0.2),
        unseen_fraction: BelowOne = 0.0,
        unseen: Names = (),
        mmap: bool = False,
        seed: Seed = 0,
    ) -> None:
        arrays, origin = load(name, path, data_dir, mmap)
        x, labels = _checked(arrays, SOURCES[name].n_classes, origin)
        options = {
            "n_clients": n_clients,
            "alpha": alpha,
            "beta": beta,
            "n_label_groups": n_label_groups,
            "shards_per_client": shards_per_client,
            "min_samples": min_samples,
        }
        dealt = _deal_share(labels, sample_fraction, seed, partition, options)
        y, n_classes, truth = labels.y, SOURCES[name].n_classes, {}
        if shift is not None:
            n_clients = len(dealt.names)
            shifted = shift_groups(x, y, dealt.client, n_clients, n_classes, shift, n_groups, seed, shifted_share)
            x, y, truth["group"] = shifted
        super().__init__(
            Federation.from_samples(
                Arrays(torch.from_numpy(x), torch.from_numpy(y), mean, std, invert),
                dealt.client,
                split_samples(dealt.client, seed, fractions),
                task=Classification(n_classes, label_smoothing=label_smoothing),
                names=dealt.names,
                seen=seen_clients(dealt.names, unseen_fraction, unseen, seed),
                truth=truth,
                augmentation=augmentation,
                domains=None if domains is None else domains_by_name(domains, dealt.client, dealt.names),
                notes={"source": origin, "partition": str(partition), **dealt.notes},
            )
        )


def _checked(arrays: dict[str, np.ndarray], n_classes: int, origin: str) -> tuple[np.ndarray, Labels]:
    x = check_images(arrays["x"], origin)
    y, _ = check_labels(arrays["y"], n_classes, len(x))
    client, names = None, None
    if "client" in arrays:
        client, names = check_clients(arrays["client"], names_of_clients(arrays), len(x))
    coarse = check_labels(arrays["coarse"], None, len(x), "coarse")[0] if "coarse" in arrays else None
    return x, Labels(y, coarse, client, None if names is None else tuple(names))


def _deal_share(
    labels: Labels,
    fraction: float,
    seed: int,
    partition: PartitionName | Callable[..., Partition],
    options: dict[str, Any],
) -> Partition:
    """Partitions a random subset of the samples, without a copy; the other samples belong to no client."""
    if fraction == 1:
        return deal(labels, seed, partition, options)
    n = len(labels.y)
    number = max(1, round(fraction * n)) if fraction <= 1 else int(fraction)
    require(number <= n, f"sample_fraction: {number} samples, but there are only {n}")
    kept = np.sort(generator(seed, Purpose.SUBSAMPLE, 0).permutation(n)[:number])
    coarse, owner = (None if a is None else a[kept] for a in (labels.coarse, labels.client))
    dealt = deal(Labels(labels.y[kept], coarse, owner, labels.names), seed, partition, options)
    client = np.full(n, -1, dtype=np.int64)
    client[kept] = dealt.client
    return Partition(client, dealt.names, {"sample_fraction": fraction, **dealt.notes})


def domains_by_name(patterns: Mapping[str, str], client: np.ndarray, names: Sequence[str]) -> Domains:
    """The domain of each sample, which the name of its client determines.

    Args:
        patterns: domain -> regular expression, matched at the start of a client's name.
        client: the client of each sample, int [n]; -1: no client.
        names: names of the T clients.

    Raises:
        UserError: an expression is invalid, or a client's name matches none of the domains, or several.

    """
    matches = np.zeros((len(patterns), len(names)), dtype=bool)
    for i, (domain, pattern) in enumerate(patterns.items()):
        try:
            matches[i] = [re.match(pattern, name) is not None for name in names]
        except re.error as error:
            raise UserError(f"domains.{domain}: {pattern!r} is no regular expression ({error})") from error
    n_matches = matches.sum(axis=0)  # [T]
    odd, known = int((n_matches != 1).argmax()), ", ".join(patterns)
    require(
        n_matches[odd] == 1,
        f"domains: expected every client's name to match one of {known}; {names[odd]} matches {n_matches[odd]}",
    )
    of_client = np.append(matches.argmax(axis=0), -1)  # the last entry is for samples of no client
    return Domains(tuple(patterns), torch.from_numpy(of_client[client]))
