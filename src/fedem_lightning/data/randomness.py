"""Randomness as a function of (seed, purpose, round, client), without a global stream.

So results depend neither on the blocks of clients, nor on their order, nor on whether a run was resumed.
"""

import contextlib
import hashlib
import math
import os
import random
from collections.abc import Callable, Iterator
from enum import IntEnum

import numpy as np
import torch
from scipy.special import ndtri
from torch import Tensor

from fedem_lightning.settings.errors import require


class Purpose(IntEnum):
    """Separates streams of the same (seed, round, client). The values determine what a seed means: never renumber."""

    COHORT = 0
    SHUFFLE = 1
    DROPOUT = 2
    SPLIT = 3
    UNSEEN = 4
    PARTITION = 5
    SYNTHETIC = 6
    GROUPS = 7
    COMPONENT = 8
    SUBSAMPLE = 10
    SCORED = 11
    TOPOLOGY = 12
    LOCAL_STEPS = 14
    INITIAL = 15
    THINNED = 16
    DENSITY = 17
    DAPPER = 18
    NETWORK = 19
    COLLABORATION = 20
    DOWNLOADS = 21
    FAULTS = 23
    ALA = 24
    PRIVACY = 25
    COMPRESSION = 26
    GLOBAL = 28
    PROFILE = 29


def generator(seed: int, purpose: Purpose, *key: int) -> np.random.Generator:
    """A NumPy generator determined by its arguments alone, e.g. `generator(seed, Purpose.SHUFFLE, round, client)`."""
    return np.random.default_rng((seed, int(purpose), *key))


def secret_uniforms(secret: str, n: int, *key: int) -> np.ndarray:
    """Uniform numbers in (0, 1), float64 [n]: a function of a secret and a key, which tells nothing of the secret."""
    return _uniforms(hashlib.shake_256(f"{secret} {key}".encode()).digest(8 * n))


class SystemNoise:
    """Normal numbers from the system's entropy: nobody can draw them again, and so subtract them."""

    def normal(self, size: tuple[int, ...] = ()) -> np.ndarray:
        """Float64, of the shape `size`."""
        return ndtri(_uniforms(os.urandom(8 * math.prod(size)))).reshape(size)


def _uniforms(data: bytes) -> np.ndarray:
    """Numbers in (0, 1) from random bytes, eight for each."""
    return ((np.frombuffer(data, dtype="<u8") >> 12) + 0.5) / 2**52


@contextlib.contextmanager
def global_streams(device: torch.device) -> Iterator[Callable[[int], None]]:
    """Lends the global generators of torch, NumPy and Python to a user's network, which may draw from them.

    Yields a function that seeds all of them by a key, an integer in [0, 2^32). Afterwards they are as before.
    """
    torchs = [torch.default_generator]
    if device.type == "cuda":
        torchs.append(torch.cuda.default_generators[device.index or 0])

    def seed(key: int) -> None:
        random.seed(key)
        np.random.seed(key)
        for stream in torchs:
            stream.manual_seed(key)

    python, numpy, states = random.getstate(), np.random.get_state(), [s.get_state() for s in torchs]
    try:
        yield seed
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        for stream, state in zip(torchs, states, strict=True):
            stream.set_state(state)


@contextlib.contextmanager
def keyed_streams(device: torch.device, seed: int, round_: int) -> Iterator[None]:
    """Inside, `global_streams` are a function of the seed and of the round."""
    with global_streams(device) as seed_all:
        seed_all(int(fold(seed, Purpose.GLOBAL, round_)))
        yield


def draws_globally(run: Callable[[], object], device: torch.device) -> bool:
    """Whether `run` draws from one of the generators of `global_streams`, which are as before afterwards."""

    def position() -> list[object]:
        of_torch = [torch.get_rng_state(), *([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])]
        return [random.getstate(), str(np.random.get_state()), *(state.tolist() for state in of_torch)]

    with global_streams(device):
        before = position()
        run()
        return position() != before


def hash32(value: Tensor) -> Tensor:
    """A bijective mix of 32-bit integers (int64 tensors with values in [0, 2^32)), of any shape.

    It uses tensor operations only, so that it runs under `torch.func.vmap` with a key per learner: two rounds of
    xor-shift and multiplication with the constants of "lowbias32" (C. Wellons, Prospecting for hash functions, 2018).
    """
    value = value ^ (value >> 16)
    value = (value * 0x7FEB352D) & 0xFFFFFFFF
    value = value ^ (value >> 15)
    value = (value * 0x846CA68B) & 0xFFFFFFFF
    return value ^ (value >> 16)


def fold(key: Tensor | int, *parts: Tensor | int) -> Tensor:
    """Hashes `parts` (integers or int64 tensors that broadcast) into `key`, one after the other; int64 in [0, 2^32)."""
    folded = torch.as_tensor(key)
    for part in parts:
        folded = hash32((folded ^ part) & 0xFFFFFFFF)
    return folded


def passes(key: Tensor, position: Tensor, share: float) -> Tensor:
    """Whether `fold(key, position) >= int(share * 2**32)`, for each entry; bool, `key` and `position` broadcast.

    The same hash as `hash32`, in 32-bit arithmetic, whose products wrap. It is faster for the millions of entries of a
    layer's output; `hash32` has fewer operations, and is faster for a few keys. `key` is int64 in [0, 2^32),
    `position` int32 and not negative, `share` in [0, 1).
    """
    value = ((key ^ 2**31) - 2**31).to(torch.int32) ^ position  # the same 32 bits with a sign
    value = _shifted(value, 16).bitwise_xor_(value).mul_(0x7FEB352D)
    value = _shifted(value, 15).bitwise_xor_(value).mul_(0x846CA68B - 2**32)
    value = _shifted(value, 16).bitwise_xor_(value)
    return value.bitwise_xor_(-(2**31)) >= int(share * 2**32) - 2**31  # the order of unsigned integers


def _shifted(value: Tensor, bits: int) -> Tensor:
    """int32 shifted right, with zeros from the left."""
    return (value >> bits).bitwise_and_(2 ** (32 - bits) - 1)


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
    n, key = len(clients), (Purpose.COHORT, round_)
    drawn = secret_uniforms(secret, n, *key) if secret else generator(seed, *key).random(n)
    chosen = drawn < expected_size(participation, n) / n
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
