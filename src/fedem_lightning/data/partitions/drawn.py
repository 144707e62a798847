"""Partitions drawn at random: by number of samples (iid, quantity_skew) or by label (dirichlet, shards)."""

import numpy as np

from fedem_lightning.data.partitions.base import Labels, Partition, numbered
from fedem_lightning.errors import UserError, require
from fedem_lightning.randomness import Purpose, generator
from fedem_lightning.settings.check import check_arguments
from fedem_lightning.settings.ranges import Count, Positive, PositiveInt


def iid(labels: Labels, seed: int, n_clients: PositiveInt) -> Partition:
    """Deals shuffled samples to clients of equal size (sizes differ by one at most).

    Example:
        >>> iid(Labels(y=np.zeros(8)), seed=0, n_clients=3).client
        array([0, 1, 2, 0, 0, 1, 1, 2])

    """
    check_arguments("", iid, locals())
    n = len(labels.y)
    require(n_clients <= n, f"n_clients: {n} samples are too few for {n_clients} clients")
    client = generator(seed, Purpose.PARTITION).permutation(np.arange(n) % n_clients)
    return Partition(client, numbered(n_clients))


def quantity_skew(
    labels: Labels, seed: int, n_clients: PositiveInt, alpha: Positive, min_samples: Count = 10
) -> Partition:
    """Deals random samples in different numbers: `min_samples` each, and shares ~ Dirichlet(alpha) of the rest.

    Example:
        >>> np.bincount(quantity_skew(Labels(y=np.zeros(100)), seed=0, n_clients=4, alpha=0.5).client)
        array([30, 45, 14, 11])

    """
    check_arguments("", quantity_skew, locals())
    n = len(labels.y)
    spare = n - n_clients * min_samples
    require(n_clients <= n, f"n_clients: {n} samples are too few for {n_clients} clients")
    require(spare >= 0, f"n_clients: {n} samples are too few for {n_clients} clients with {min_samples} each")
    rng = generator(seed, Purpose.PARTITION)
    counts = min_samples + rng.multinomial(spare, rng.dirichlet(np.full(n_clients, alpha)))
    return Partition(rng.permutation(np.repeat(np.arange(n_clients), counts)), numbered(n_clients))


def dirichlet(
    labels: Labels,
    seed: int,
    n_clients: PositiveInt,
    alpha: Positive,
    n_label_groups: PositiveInt | None = None,
    min_samples: Count = 10,
) -> Partition:
    """Deals the samples of each label y to the clients in proportions p_y ~ Dirichlet(alpha, ..., alpha).

    See FedEM, Section 4 (EMNIST, CIFAR10). Every sample is used exactly once. A draw that leaves a client with fewer
    than `min_samples` samples is repeated with the next sub-seed.

    Args:
        labels: y.
        seed: of the draw.
        n_clients: T.
        alpha: concentration; if it is small, few clients have each label.
        n_label_groups: number of random groups of labels, with one draw for each group, as in the public FedEM code;
            None: one draw for each label.
        min_samples: a client's least number of samples.

    Raises:
        UserError: the sizes are impossible, or 1,000 draws have failed.

    Example:
        Samples of two labels by client, with a small and a large alpha.

        >>> y = np.repeat([0, 1], 50)
        >>> def table(partition):
        ...     return np.array([np.bincount(partition.client[y == label], minlength=4) for label in (0, 1)])
        >>> table(dirichlet(Labels(y), seed=0, n_clients=4, alpha=0.5))
        array([[31,  4,  2, 13],
               [30,  7, 12,  1]])
        >>> table(dirichlet(Labels(y), seed=0, n_clients=4, alpha=100))
        array([[13, 16, 12,  9],
               [ 7, 12, 17, 14]])

    """
    check_arguments("", dirichlet, locals())
    n = len(labels.y)
    few = f"n_clients: {n} samples are too few for {n_clients} clients with {min_samples} each"
    require(n_clients * max(1, min_samples) <= n, few)
    group = _label_groups(labels.y, n_label_groups, seed)
    by_group = [np.flatnonzero(group == g) for g in np.unique(group)]
    for attempt in range(1000):
        rng = generator(seed, Purpose.PARTITION, attempt)
        client = np.empty(len(labels.y), dtype=np.int64)
        for members in by_group:
            positions = rng.permutation(members)
            counts = rng.multinomial(len(positions), rng.dirichlet(np.full(n_clients, alpha)))
            client[positions] = np.repeat(np.arange(n_clients), counts)
        if np.bincount(client, minlength=n_clients).min() >= min_samples:
            return Partition(client, numbered(n_clients), {"redraws": attempt} if attempt else {})
    raise UserError(
        f"n_clients: no Dirichlet({alpha}) partition of {len(labels.y)} samples gave each of {n_clients} "
        f"clients {min_samples} samples in 1,000 draws: use fewer clients or a larger alpha"
    )


def _label_groups(y: np.ndarray, n_groups: int | None, seed: int) -> np.ndarray:
    if n_groups is None:
        return y
    values, codes = np.unique(y, return_inverse=True)
    fits = n_groups <= len(values)
    require(fits, f"n_label_groups: {n_groups} groups, but the data has {len(values)} labels")
    return generator(seed, Purpose.PARTITION, 0, 1).permutation(np.arange(len(values)) % n_groups)[codes]


def shards(labels: Labels, seed: int, n_clients: PositiveInt, shards_per_client: PositiveInt = 2) -> Partition:
    """Cuts samples sorted by label into shards of equal size, a few for each client: the pathological partition.

    See McMahan et al. 2017. Sizes differ by `shards_per_client` at most.

    Example:
        >>> y = np.repeat([0, 1, 2], 4)
        >>> client = shards(Labels(y), seed=0, n_clients=3, shards_per_client=1).client
        >>> [np.bincount(y[client == t], minlength=3).tolist() for t in range(3)]
        [[0, 0, 4], [0, 4, 0], [4, 0, 0]]

    """
    check_arguments("", shards, locals())
    n_shards = n_clients * shards_per_client
    require(n_shards <= len(labels.y), f"n_clients: {n_shards} shards of {len(labels.y)} samples")
    rng = generator(seed, Purpose.PARTITION)
    order = np.lexsort((rng.random(len(labels.y)), labels.y))
    owner = rng.permutation(np.arange(n_shards) % n_clients)  # owner of each shard
    client = np.empty(len(labels.y), dtype=np.int64)
    client[order] = owner[np.arange(len(order)) * n_shards // len(order)]
    return Partition(client, numbered(n_clients))
