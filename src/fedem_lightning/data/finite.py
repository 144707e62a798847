"""Samples must be finite in float32, in which models compute: what is not is refused, and its first client named."""

from collections.abc import Sequence

import numpy as np

from fedem_lightning.data.names import shown
from fedem_lightning.errors import UserError, require

PIECE = 2**24
"""Bytes that are looked at a time, so that a large array needs no second one of its size."""


def check_finite(
    name: str, array: np.ndarray, client: np.ndarray | None = None, names: Sequence[str] | None = None
) -> None:
    """Raises UserError if a sample [n, ...] has a value that is not finite, or too large for float32.

    Args:
        name: of the array, for the message.
        array: the samples; anything but floats is finite.
        client: the client of each sample, int [n], if it is known.
        names: names of the clients, [T].

    """
    if array.dtype.kind != "f" or not array.size:
        return
    require(array.dtype.itemsize <= 8, f"{name}: expected float64 or smaller, got {array.dtype}")
    rows = max(1, PIECE // array[:1].nbytes)
    parts = [array[start : start + rows] for start in range(0, len(array), rows)]
    bad = np.concatenate([_not_finite(part) for part in parts])
    if not bad.any():
        return
    first, n = int(bad.argmax()), int(bad.sum())
    what = "numbers too large for float32" if np.isfinite(array[bad]).all() else "NaN or infinity"
    whose = ""
    if client is not None and names is not None:
        n_clients = len(np.unique(client[bad]))
        whose = f", of client {shown(names[client[first]])}; {n_clients} of {len(names)} clients have such samples"
    raise UserError(f"{name}: {what} in {n} sample{'s' * (n != 1)}, the first is number {first}{whose}")


def _not_finite(part: np.ndarray) -> np.ndarray:
    """Whether a sample has such a value, bool [rows]."""
    with np.errstate(over="ignore"):
        single = part.astype(np.float32, copy=False)
    return np.logical_not(np.isfinite(single).reshape(len(part), -1).all(axis=1))
