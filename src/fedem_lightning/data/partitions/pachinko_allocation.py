"""Pachinko allocation: clients drawn from a hierarchy of coarse and fine labels."""

import numpy as np

from fedem_lightning.data.partitions.base import Labels, Partition, numbered
from fedem_lightning.errors import UserError, require
from fedem_lightning.randomness import Purpose, generator
from fedem_lightning.settings.check import check_arguments
from fedem_lightning.settings.ranges import Positive, PositiveInt


def pachinko(labels: Labels, seed: int, n_clients: PositiveInt, alpha: Positive, beta: Positive) -> Partition:
    """Pachinko allocation in two stages (CIFAR100; steps of Reddi et al. 2021, arXiv 2003.00295).

    A client draws its shares of the coarse labels from Dirichlet(alpha), its shares of the fine labels in each from
    Dirichlet(beta), and then n / T samples one by one without replacement. A label without samples is removed for all
    clients; the current client's shares are then normalised (drawn again if all of them are 0).

    Args:
        labels: y and coarse.
        seed: of the draws.
        n_clients: T; the remainder of n / T is not used.
        alpha, beta: concentrations.

    Raises:
        UserError: the data has no coarse labels.

    Example:
        Two clients, two coarse labels with two fine ones each: 0, 1 and 2, 3.

        >>> y = np.repeat([0, 1, 2, 3], 10)
        >>> client = pachinko(Labels(y, coarse=y // 2), seed=0, n_clients=2, alpha=0.5, beta=10).client
        >>> [np.bincount(y[client == t], minlength=4).tolist() for t in (0, 1)]
        [[3, 2, 5, 10], [7, 8, 5, 0]]

    """
    check_arguments("", pachinko, locals())
    if labels.coarse is None:
        raise UserError("partition: pachinko needs data with coarse labels, as cifar100 has them")
    n = len(labels.y)
    require(n_clients <= n, f"n_clients: {n} samples are too few for {n_clients} clients")
    rng = generator(seed, Purpose.PARTITION)
    coarse_values, coarse = np.unique(labels.coarse, return_inverse=True)
    fine = [np.unique(labels.y[coarse == c]) for c in range(len(coarse_values))]  # the fine labels of each coarse one
    stock = [
        [list(rng.permutation(np.flatnonzero((labels.y == y) & (coarse == c)))) for y in fine[c]]
        for c in range(len(fine))
    ]
    client = np.full(len(labels.y), -1, dtype=np.int64)
    for t in range(n_clients):
        shares = _Shares(rng, alpha, beta, stock)
        for _ in range(len(labels.y) // n_clients):
            client[shares.draw()] = t
    left_out = int((client < 0).sum())
    notes = {"left_out_samples": left_out, "why": f"n is no multiple of {n_clients} clients"} if left_out else {}
    return Partition(client, numbered(n_clients), notes)


class _Shares:
    """One client's shares of the coarse and fine labels that still have samples."""

    def __init__(self, rng: np.random.Generator, alpha: float, beta: float, stock: list[list[list[int]]]) -> None:
        self.rng, self.stock, self.alpha, self.beta = rng, stock, alpha, beta
        self.fine = [self._fresh(beta, np.array([len(s) > 0 for s in fine])) for fine in stock]
        self.coarse = self._fresh(alpha, np.array([share.any() for share in self.fine]))

    def _fresh(self, concentration: float, alive: np.ndarray) -> np.ndarray:
        shares = np.zeros(len(alive))
        for _ in range(100 if alive.any() else 0):  # tiny concentrations may underflow to zeros
            shares[alive] = self.rng.dirichlet(np.full(alive.sum(), concentration))
            if shares.sum() > 0:
                return shares
        require(not alive.any(), f"alpha, beta: no Dirichlet draw is possible with {concentration:g}")
        return shares

    def draw(self) -> int:
        """Draws one sample without replacement; returns its position."""
        c = self._pick(self.coarse)
        y = self._pick(self.fine[c])
        position = self.stock[c][y].pop()
        if not self.stock[c][y]:
            self.fine[c] = self._without(self.fine[c], y, self.beta, np.array([len(s) > 0 for s in self.stock[c]]))
            if not any(self.stock[c]):
                self.coarse = self._without(self.coarse, c, self.alpha, np.array([any(fine) for fine in self.stock]))
        return position

    def _pick(self, shares: np.ndarray) -> int:
        total = shares.cumsum()
        return int(np.searchsorted(total, self.rng.random() * total[-1], side="right"))

    def _without(self, shares: np.ndarray, removed: int, concentration: float, alive: np.ndarray) -> np.ndarray:
        shares[removed] = 0.0
        return shares if shares.sum() > 0 else self._fresh(concentration, alive)
