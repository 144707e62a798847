"""Start of the package's commands: memory and processes. Imports are light."""

import os
import sys

TRIM_THRESHOLD, TOP_PAD, MMAP_THRESHOLD = -1, -2, -3  # options of glibc's mallopt, from malloc.h


def keep_freed_memory() -> bool:
    """Lets glibc keep freed memory for the next local step, which spares up to half of a round; whether it does."""
    if not sys.platform.startswith("linux") or any(name.startswith(("MALLOC_", "GLIBC_TUN")) for name in os.environ):
        return False
    import ctypes

    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # another C library has none
    kept = {MMAP_THRESHOLD: 2**30, TRIM_THRESHOLD: 2**31 - 1, TOP_PAD: 2**26}  # bytes
    return mallopt is not None and all([mallopt(option, value) == 1 for option, value in kept.items()])
