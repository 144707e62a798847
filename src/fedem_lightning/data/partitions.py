"""Partitions as pure functions: labels and a seed in, the client of each sample out."""

import numpy as np

from fedem_lightning.errors import UserError, require_number, require_whole
from fedem_lightning.randomness import Purpose, generator


def dirichlet_by_label(y: np.ndarray, n_clients: int, alpha: float, seed: int, min_samples: int = 10) -> np.ndarray:
    """Deals the samples of each label y to the clients by proportions p_y ~ Dirichlet(alpha, ..., alpha).

    FedEM, Section 4 (EMNIST, CIFAR10). Every sample is used exactly once. A draw that leaves a client with fewer than
    `min_samples` is drawn anew from the next sub-seed.

    Args:
        y: labels, int [n].
        n_clients: T.
        alpha: concentration; small means each label sits with few clients.
        seed: of the draw.
        min_samples: a client's least number of samples.

    Returns:
        int64 [n] in 0..T-1.

    Raises:
        UserError: impossible sizes, or 1,000 draws without success.

    """
    require_whole("dataset.n_clients", n_clients, at_least=1)
    require_number("dataset.alpha", alpha, above=0)
    for attempt in range(1000):
        rng = generator(seed, Purpose.PARTITION, attempt)
        client = np.empty(len(y), dtype=np.int64)
        for label in np.unique(y):
            positions = rng.permutation(np.flatnonzero(y == label))
            counts = rng.multinomial(len(positions), rng.dirichlet(np.full(n_clients, alpha)))
            client[positions] = np.repeat(np.arange(n_clients), counts)
        if np.bincount(client, minlength=n_clients).min() >= min_samples:
            return client
    raise UserError(
        f"dataset.n_clients: no Dirichlet({alpha}) partition of {len(y)} samples gave each of {n_clients} clients "
        f"{min_samples} samples in 1,000 draws: use fewer clients or a larger dataset.alpha"
    )


def permute_labels_by_group(
    y: np.ndarray, client: np.ndarray, n_groups: int, n_classes: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Concept shift: clients fall into hidden groups of equal size, each with a label permutation of its own.

    Args:
        y: labels, int [n]; client: int [n] in 0..T-1.
        n_groups: groups; the first keeps its labels.
        n_classes: Y.
        seed: of the draws.

    Returns:
        The new labels, int64 [n], and every client's group, int64 [T].

    """
    n_clients = int(client.max()) + 1
    require_whole("dataset.n_groups", n_groups, at_least=1, below=n_clients + 1)
    rng = generator(seed, Purpose.GROUPS)
    group = rng.permutation(np.arange(n_clients) % n_groups)
    permutations = np.stack([np.arange(n_classes), *(rng.permutation(n_classes) for _ in range(n_groups - 1))])
    return permutations[group[client], y], group
