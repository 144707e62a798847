"""Memory: what a process may have, and what it keeps for its next tensors."""

import ctypes
import os
import resource
import sys
from pathlib import Path

from fedem_lightning.errors import require

TRIM_THRESHOLD, TOP_PAD, MMAP_THRESHOLD = -1, -2, -3  # options of glibc's mallopt, from malloc.h
KEPT = {MMAP_THRESHOLD: 2**30, TRIM_THRESHOLD: 2**31 - 1, TOP_PAD: 2**26}  # bytes


def keep_freed_memory() -> bool:
    """Lets glibc keep freed memory instead of giving it back to the system; whether it does.

    Each local step makes tensors of megabytes and frees them. Without this the system takes their pages back and clears
    them for the next step, which takes up to half of a round on a CPU. The user's own settings are kept.
    """
    own = any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ)
    if own or not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library
        return False
    return all([mallopt(option, value) == 1 for option, value in KEPT.items()])


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
