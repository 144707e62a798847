"""Ctrl-C and SIGTERM while modules are loaded."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from fedem_lightning.startup.rank import in_another_process


def interrupt(*_: Any) -> None:
    """Handles SIGTERM as Python handles Ctrl-C."""
    raise KeyboardInterrupt


_MAY_BE_REPLACED: tuple[Any, ...] = (signal.default_int_handler, signal.SIG_DFL, interrupt)


@contextmanager
def loading(clean_up: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Within it Ctrl-C and SIGTERM end the process at once, with one line and exit code 1.

    An exception would not do: some packages catch whatever happens while they import others, and go on without.

    Args:
        clean_up: called before the end.

    """

    def stop(*_: Any) -> None:
        if not in_another_process():
            clean_up()
            os.write(2, b"stopped while modules were loaded; nothing has been done\n")
        os._exit(1)

    here = threading.current_thread() is threading.main_thread()  # only there can signals be handled
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM) if here}
    ours = {number: handler for number, handler in before.items() if handler in _MAY_BE_REPLACED}
    for number in ours:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in ours.items():
            signal.signal(number, handler)
