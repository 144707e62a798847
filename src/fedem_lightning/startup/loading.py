"""Ctrl-C and SIGTERM outside of a run: while packages load, while Hydra composes, between the jobs of a sweep."""

import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from fedem_lightning.startup.rank import in_another_process

_line: str | None = None  # see `say_at_a_stop`
_clean_up: Callable[[], None] = lambda: None  # noqa: E731


@contextmanager
def listening(line: str) -> Iterator[None]:
    """Within it Ctrl-C and SIGTERM end the process at once, with this line and exit code 1."""
    global _line
    earlier, before = _line, _ours()
    _line = line
    for number in before:
        signal.signal(number, stop)
    try:
        yield
    finally:
        _line = earlier
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def loading() -> Iterator[None]:
    """Within it Ctrl-C and SIGTERM end the process at once, with one line and exit code 1.

    Warnings then have the form that they had before: Lightning puts its own in its place.
    """
    form = warnings.formatwarning
    os.environ["MPLBACKEND"] = "agg"  # commands draw into files; Matplotlib would fail with an unknown name here
    with listening("stopped while Python packages were loading; nothing has been done"):
        yield
    warnings.formatwarning = form


def say_at_a_stop(line: str | None) -> None:
    """What the command says if it is stopped from here on; None: it goes on, because it ends by itself."""
    global _line
    _line = line


def clean_up_at_a_stop(clean_up: Callable[[], None]) -> None:
    """What is called first if the command is stopped from here on."""
    global _clean_up
    _clean_up = clean_up


def stop(*_: Any) -> None:
    """Handles both signals.

    It ends the process itself. An exception would not do: some packages catch whatever happens while they import
    others, Python drops what is raised while it collects garbage, and the command would go on.
    """
    if _line is None:
        return
    if not in_another_process():  # the first one says it
        _clean_up()
        with suppress(RuntimeError):  # the signal came while something was printed
            sys.stdout.flush()
        os.write(2, f"{_line}\n".encode())
    os._exit(1)


def raise_at_a_stop() -> None:
    """From here on both signals raise KeyboardInterrupt: a launcher that has workers then ends them."""
    for number in _ours():
        signal.signal(number, signal.default_int_handler)


def ignore_stops() -> None:
    """For the seconds that the process needs to end."""
    for number in _ours():
        signal.signal(number, signal.SIG_IGN)


def _ours() -> dict[int, Any]:
    """The handlers that may be replaced: none under nohup, and none in other threads, where Python hears no signal."""
    if threading.current_thread() is not threading.main_thread():
        return {}
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    return {n: h for n, h in handlers.items() if h in (signal.default_int_handler, signal.SIG_DFL, stop)}
