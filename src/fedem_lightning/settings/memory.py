"""Whether what settings ask for fits into the memory."""

import os
import resource
from pathlib import Path

from fedem_lightning.errors import require


def memory() -> int:
    """Bytes of memory that this process may have: the machine's, a container's limit, or that of `ulimit -v`."""
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    own = resource.getrlimit(resource.RLIMIT_AS)[0]
    limit = machine if own == resource.RLIM_INFINITY else min(machine, own)
    try:
        return min(limit, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    except (OSError, ValueError):  # no such file, or "max"
        return limit


def require_memory(name: str, n_bytes: float, what: str) -> None:
    """Raises UserError if something would take more bytes than there is memory, before it is made.

    Args:
        name: of the argument that makes it so large; it begins the line.
        n_bytes: a lower bound of what is made.
        what: is made.

    """
    limit = memory()
    said = f"{name}: {what} would take {n_bytes / 1e9:.3g} GB, more than this machine's memory, {limit / 1e9:.3g} GB"
    require(n_bytes <= limit, said)
