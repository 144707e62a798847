"""Which clients take part in a round."""

import numpy as np
import torch
from torch import Tensor

from fedem_lightning.errors import require
from fedem_lightning.randomness import Purpose, generator


def sample_cohort(
    clients: Tensor, participation: float | int, seed: int, round_: int, odds: Tensor | None = None
) -> Tensor:
    """The clients of a round, drawn without replacement: a function of (seed, round).

    Args:
        clients: ids of all that take part in training, int64 [T].
        participation: up to 1: a fraction of them (at least one client); from 2 on: a number of them.
        seed, round_: of the draw.
        odds: of each client to be drawn, [T], any scale; None: all alike.

    Returns:
        int64, ascending.

    """
    number = cohort_size(participation, len(clients))
    return draw_clients(clients, number, generator(seed, Purpose.COHORT, round_), odds)


def cohort_size(participation: float | int, n_clients: int) -> int:
    """Clients of a round; UserError if there are not as many."""
    number = share_of(participation, n_clients)
    require(number <= n_clients, f"algorithm.participation: {number} clients a round, but only {n_clients} train")
    return number


def share_of(participation: float | int, n_clients: int) -> int:
    """Up to 1 a fraction of the clients (at least one of them), from 2 on their number."""
    return max(1, round(participation * n_clients)) if participation <= 1 else int(participation)


def draw_clients(clients: Tensor, number: int, rng: np.random.Generator, odds: Tensor | None = None) -> Tensor:
    """`number` of the clients without replacement, ascending."""
    if number >= len(clients):
        return clients
    p = None if odds is None else odds.double().cpu().numpy() / float(odds.sum())
    drawn = rng.choice(len(clients), size=number, replace=False, p=p)
    return clients[torch.from_numpy(drawn).to(clients.device)].sort().values
