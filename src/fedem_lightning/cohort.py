"""Client sampling: the clients that take part in a round."""

import secrets

import numpy as np
import torch
from torch import Tensor

from fedem_lightning.aggregation import Sampling
from fedem_lightning.data.federation import Federation
from fedem_lightning.errors import require
from fedem_lightning.method import Method
from fedem_lightning.randomness import Purpose, generator, secret_uniforms


def draw_cohort(algorithm: Method, federation: Federation, round_: int) -> Tensor:
    """The cohort of an algorithm's round, int64, ascending."""
    clients, share, seed = federation.clients(), algorithm.participation, algorithm.seed
    if algorithm.samples_by_size:
        return sample_cohort(clients, share, seed, round_, federation.splits["train"].counts(clients))
    if not algorithm.aggregation.samples_independently:
        return sample_cohort(clients, share, seed, round_)
    if algorithm.remote is not None and not algorithm.cohort_secret:  # clients are sent the seed
        algorithm.cohort_secret = secrets.token_hex(32)
    return sample_independently(clients, share, seed, round_, algorithm.cohort_secret)


def sampling_of(algorithm: Method, n_clients: int, rounds: int) -> Sampling:
    """How n_clients clients take part in a number of rounds."""
    size = expected_size(algorithm.participation, n_clients)
    return Sampling(size / n_clients, size, rounds, algorithm.remote is not None)


def sample_cohort(
    clients: Tensor, participation: float | int, seed: int, round_: int, odds: Tensor | None = None
) -> Tensor:
    """The cohort of a round, int64, ascending, drawn without replacement: a function of (seed, round).

    It is a share (`share_of`) of all `clients` that train, int64 [T]; `odds` are their weights [T], None: equal ones.
    """
    number = cohort_size(participation, len(clients))
    return draw_clients(clients, number, generator(seed, Purpose.COHORT, round_), odds)


def sample_independently(
    clients: Tensor, participation: float | int, seed: int, round_: int, secret: str = ""
) -> Tensor:
    """A cohort in which each client is with the same probability, whoever else is; it may be empty.

    It is a function of (seed, round), or of (secret, round) if there is a secret. For the others see `sample_cohort`.
    """
    if secret:
        drawn = secret_uniforms(secret, len(clients), Purpose.COHORT, round_)
    else:
        drawn = generator(seed, Purpose.COHORT, round_).random(len(clients))
    chosen = drawn < expected_size(participation, len(clients)) / len(clients)
    return clients[torch.from_numpy(chosen).to(clients.device)]


def expected_size(participation: float | int, n_clients: int) -> float:
    """q T, the mean size of a cohort that is drawn independently."""
    return participation * n_clients if participation <= 1 else float(cohort_size(participation, n_clients))


def cohort_size(participation: float | int, n_clients: int) -> int:
    """Number of clients in a round; UserError if there are fewer clients than that."""
    number = share_of(participation, n_clients)
    require(number <= n_clients, f"algorithm.participation: {number} clients a round, but only {n_clients} train")
    return number


def share_of(participation: float | int, n_clients: int) -> int:
    """The number of clients in a share: up to 1 a fraction of them (at least one client), from 2 on their number."""
    return max(1, round(participation * n_clients)) if participation <= 1 else int(participation)


def draw_clients(clients: Tensor, number: int, rng: np.random.Generator, odds: Tensor | None = None) -> Tensor:
    """`number` of the clients without replacement, ascending."""
    if number >= len(clients):
        return clients
    p = None if odds is None else odds.double().cpu().numpy() / float(odds.sum())
    drawn = rng.choice(len(clients), size=number, replace=False, p=p)
    return clients[torch.from_numpy(drawn).to(clients.device)].sort().values
