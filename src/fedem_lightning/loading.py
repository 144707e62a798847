"""Ctrl-C while modules are loaded."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fedem_lightning.rank import in_another_process


@contextmanager
def loading() -> Iterator[None]:
    """Within it Ctrl-C ends the process at once, with one line and exit code 1.

    A KeyboardInterrupt would not do: some packages catch whatever happens while they import others, and go on without.
    """
    here = threading.current_thread() is threading.main_thread()  # only there can signals be handled
    if not here or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, _stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _stop(*_: Any) -> None:
    if not in_another_process():
        os.write(2, b"stopped while modules were loaded; nothing has been done\n")
    os._exit(1)
