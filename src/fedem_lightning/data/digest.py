"""The digest of a federation, by which a resumed run knows its data, and reports know runs on the same data."""

import hashlib
import warnings
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from fedem_lightning.data.federation import Federation

PIECE = 2**24
"""Bytes of an array that are looked at or hashed at a time, so that it needs no second one of its size."""


def hash_without_x(federation: "Federation") -> "hashlib._Hash":
    """The hash of labels, seen clients, splits, groups and domains, tensors of known shapes and dtypes."""
    positions = [t for split in federation.splits.values() for t in split.fingerprint()]
    group = [torch.as_tensor(federation.truth["group"])] if "group" in federation.truth else []
    domain = [] if federation.domains is None else [federation.domains.of_sample]
    sha = hashlib.sha256()
    for tensor in (federation.samples.fingerprint()[0], federation.seen, *positions, *group, *domain):
        _add(sha, tensor)
    return sha


def is_earlier_digest(federation: "Federation", saved: str) -> bool:
    """Whether `saved` is the federation's digest of an earlier version, which leaves out x; warns if it is."""
    equal = saved == hash_without_x(federation).hexdigest()
    if equal:
        what = "labels, clients and splits are the same, x was not compared"
        warnings.warn(f"ckpt_path: the checkpoint is of an earlier version: {what}", stacklevel=1)
    return equal


def with_shapes(tensors: Sequence[Tensor]) -> str:
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
