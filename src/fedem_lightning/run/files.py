"""Writing files whole or not at all."""

import os
from pathlib import Path


def write_atomically(path: Path, content: bytes) -> None:
    """Replaces `path` by `content` in one step: a reader, or a run killed meanwhile, never meets half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.write_bytes(content)
    os.replace(temporary, path)
