"""Start of the package: what Lightning leaves unsaid; of its commands: freed memory, which process of a run this is.

Imports are light.
"""

import gc
import logging
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager


def quieten_lightning() -> None:
    """Leaves out what Lightning recommends to install, and a warning that its own code gets of torch."""
    warnings.filterwarnings("ignore", message=".*LeafSpec.*is deprecated")
    for name in ("pytorch_lightning", "lightning_fabric"):
        logging.getLogger(f"{name}.utilities.rank_zero").addFilter(lambda record: "Tip: " not in str(record.msg))


@contextmanager
def loading() -> Iterator[None]:
    """Within it Python does not look for garbage, a quarter of the time of loading; nor later among what was loaded."""
    new = "numpy" not in sys.modules
    gc.disable()
    try:
        yield
    finally:
        if new:
            gc.freeze()
        gc.enable()


TRIM_THRESHOLD, TOP_PAD, MMAP_THRESHOLD = -1, -2, -3  # options of glibc's mallopt, from malloc.h


def keep_freed_memory() -> bool:
    """Lets glibc keep freed memory for the next local step, which spares up to half of a round; whether it does."""
    if not sys.platform.startswith("linux") or any(name.startswith(("MALLOC_", "GLIBC_TUN")) for name in os.environ):
        return False
    import ctypes

    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # another C library has none
    kept = {MMAP_THRESHOLD: 2**30, TRIM_THRESHOLD: 2**31 - 1, TOP_PAD: 2**26}  # bytes
    return mallopt is not None and all([mallopt(option, value) == 1 for option, value in kept.items()])


_RANKS = ("RANK", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK", "SLURM_PROCID", "JSM_NAMESPACE_RANK")  # as Lightning reads
_EVERY = 0.2  # seconds between two looks at the process that has started this one


def is_worker_rank() -> bool:
    """Whether this is not the first process of a run."""
    return any(os.environ.get(name, "0") != "0" for name in _RANKS)


def end_with_the_first() -> None:
    """In every process but the first: it ends once the one that has started it is gone, however that went.

    Ctrl-C, which a terminal sends to all, is then a matter of the first one; `FinishRoundOnInterrupt` hears it, too.
    """
    parent = os.getppid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_EVERY)
        os._exit(1)

    threading.Thread(target=watch, daemon=True, name="first-process").start()
