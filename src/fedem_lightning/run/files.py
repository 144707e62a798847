"""Atomic writing of files."""

import io
import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np


def write_atomically(path: Path, content: bytes) -> None:
    """Replaces `path` by `content` in one step, so that no reader ever sees half a file, even if the run is killed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.write_bytes(content)
    os.replace(temporary, path)


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Writes arrays by name as a compressed .npz, in one step; `numpy.load` reads it without pickle."""
    content = io.BytesIO()
    np.savez_compressed(content, allow_pickle=False, **arrays)
    write_atomically(path, content.getvalue())
