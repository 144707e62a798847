"""The digest of a federation, by which a resumed run knows its data, and reports know runs on the same data."""

import hashlib
from collections.abc import Iterable, Iterator

import numpy as np
from torch import Tensor

PIECE = 2**24
"""Bytes that are hashed at a time: a copy from a device, or of samples stored in another order, is no larger."""


def sha256_of(tensors: Iterable[Tensor]) -> "hashlib._Hash":
    """The hash of the tensors' bytes, one after the other; the tensors are of known shapes and dtypes."""
    sha = hashlib.sha256()
    for tensor in tensors:
        _add(sha, tensor)
    return sha


def with_shapes(tensors: Iterable[Tensor]) -> str:
    """The digest of the tensors' bytes, shapes and dtypes."""
    sha = hashlib.sha256()
    for tensor in tensors:
        sha.update(f"{tensor.dtype} {list(tensor.shape)}".encode())
        _add(sha, tensor)
    return sha.hexdigest()


def _add(sha: "hashlib._Hash", tensor: Tensor) -> None:
    for rows in _pieces(tensor):
        sha.update(np.ascontiguousarray(rows.cpu().numpy()).data)


def _pieces(tensor: Tensor) -> Iterator[Tensor]:
    """Its rows, as many as `PIECE` holds at a time."""
    if tensor.ndim == 0:
        yield tensor
        return
    n_bytes = tensor[:1].numel() * tensor.element_size()  # of a row
    yield from tensor.split(max(1, PIECE // max(1, n_bytes)))
