"""Memory that the process keeps for its next tensors."""

import ctypes
import os
import sys

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
