"""Atomic writing of files."""

import io
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from fedem_lightning.records.writing import replacing


def write_atomically(path: Path, content: bytes) -> None:
    """Replaces `path` by `content` in one step, so that no reader ever sees half a file, even if the run is killed.

    Raises:
        UserError: the system refuses; an earlier file stays as it was.

    """
    with replacing(path) as temporary:
        temporary.write_bytes(content)


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Writes arrays by name as a compressed .npz, in one step; `numpy.load` reads it without pickle."""
    content = io.BytesIO()
    np.savez_compressed(content, allow_pickle=False, **arrays)
    write_atomically(path, content.getvalue())
