"""The tie between the first process of a run and those that it starts; the module imports nothing slow."""

import os
import threading
import time

PARENT = "FEDEM_LIGHTNING_PARENT"
"""Environment variable by which the first process tells the others its process id."""
_EVERY = 0.2
"""Seconds between two looks."""


def started_by_the_first() -> bool:
    """Whether the first process of a run has started this one, and no launcher such as torchrun."""
    return PARENT in os.environ and os.environ.get("LOCAL_RANK", "0") != "0"


def end_with_the_first() -> None:
    """In every process but the first: from here on it ends, without a word, once the process that started it is gone.

    A process that torchrun or SLURM started ends with those.
    """
    parent = int(os.environ[PARENT]) if started_by_the_first() else os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_EVERY)
        os._exit(1)

    threading.Thread(target=watch, daemon=True, name="first-process").start()
