"""Atomic writing of files."""

import os
from pathlib import Path


def write_atomically(path: Path, content: bytes) -> None:
    """Replaces `path` by `content` in one step, so that no reader ever sees half a file, even if the run is killed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.write_bytes(content)
    os.replace(temporary, path)
