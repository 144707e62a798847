"""Shifts between true groups of clients (Mestoukirdi et al. 2021, Section IV-A), kept as ground truth."""

from typing import Literal

import numpy as np

from fedem_lightning.errors import require
from fedem_lightning.randomness import Purpose, generator
from fedem_lightning.settings.check import check_arguments
from fedem_lightning.settings.ranges import PositiveInt, Share


def permute_labels(
    y: np.ndarray, group: np.ndarray, n_groups: int, n_classes: int, rng: np.random.Generator
) -> np.ndarray:
    """Concept shift: each group has its own label permutation; the first group keeps its labels.

    Args:
        y: labels, int [n]; group: group of each sample, int [n]; -1: no group.
        n_groups: number of groups.
        n_classes: Y.
        rng: of the permutations.

    Returns:
        The permuted labels, int64 [n].

    """
    table = np.stack([np.arange(n_classes), *(rng.permutation(n_classes) for _ in range(n_groups - 1))])
    return np.where(group < 0, y, table[group, y])


def rotate_images(x: np.ndarray, group: np.ndarray, n_groups: int) -> np.ndarray:
    """Covariate shift: images of group g are turned by g * 90 degrees. Changes and returns x [n, h, w, ...]."""
    require(x.ndim >= 3, "shift: rotation needs images")
    require(x.shape[1] == x.shape[2], f"shift: rotation needs square images, these are {x.shape[1:3]}")
    for g in range(1, n_groups):
        rows = np.flatnonzero(group == g)
        for part in np.array_split(rows, max(1, len(rows) // 10_000)):  # copies one part at a time
            x[part] = np.rot90(x[part], k=g, axes=(1, 2))
    return x


def invert_images(x: np.ndarray, group: np.ndarray, n_groups: int) -> np.ndarray:
    """Covariate shift: the second group's images are negatives. Changes and returns x uint8 [n, h, w, ...]."""
    require(n_groups <= 2, f"n_groups: inversion makes 2 groups at most, got {n_groups}")
    require(x.dtype == np.uint8, f"shift: inversion needs pixels in uint8, these are {x.dtype}")
    rows = np.flatnonzero(group == 1)
    for part in np.array_split(rows, max(1, len(rows) // 10_000)):  # copies one part at a time
        x[part] = 255 - x[part]
    return x


def shift_groups(
    x: np.ndarray,
    y: np.ndarray,
    client: np.ndarray,
    n_clients: int,
    n_classes: int,
    shift: Literal["rotation", "labels", "inversion"],
    n_groups: PositiveInt,
    seed: int,
    shifted_share: Share = 1.0,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Assigns clients to groups, and shifts all samples of a group in the same way; the first group's stay as they are.

    Args:
        x: [n, ...], changed in place unless labels are permuted; y: int [n]; client: int [n] in 0..T-1, -1: no client.
        n_clients: T.
        n_classes: Y.
        shift: "rotation", "labels" or "inversion".
        n_groups: number of groups.
        seed: of groups and permutations.
        shifted_share: share of the clients that are dealt evenly to all groups; the others are in the first group. From
            0 to 1 it makes a federation more and more heterogeneous.

    Returns:
        x, y, and every client's group, int64 [T].

    """
    check_arguments("", shift_groups, locals())
    require(n_groups <= n_clients, f"n_groups: {n_groups} groups, but there are {n_clients} clients")
    rng = generator(seed, Purpose.GROUPS)
    n_dealt = round(shifted_share * n_clients)
    group = rng.permutation(np.where(np.arange(n_clients) < n_dealt, np.arange(n_clients) % n_groups, 0))
    of_sample = np.where(client >= 0, group[client], -1)
    if shift == "rotation":
        require(n_groups <= 4, f"n_groups: rotation by 90 degrees makes 4 groups at most, got {n_groups}")
        return rotate_images(x, of_sample, n_groups), y, group
    if shift == "inversion":
        return invert_images(x, of_sample, n_groups), y, group
    return x, permute_labels(y, of_sample, n_groups, n_classes, rng), group
