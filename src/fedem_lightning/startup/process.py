"""Which process of a run this is, and its end with the first one. The module imports nothing slow."""

import os
import signal
import threading
import time

_RANKS = ("RANK", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK", "SLURM_PROCID", "JSM_NAMESPACE_RANK")  # as Lightning reads
_EVERY = 0.2
"""Seconds between two looks at the process that has started this one."""


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
