"""Threads that end a run which does not end itself: after a signal, or because another of its processes is gone."""

import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from fedem_lightning.callbacks.between_rounds import SIGNALS
from fedem_lightning.startup.rank import PARENT

FORCE_SECONDS = 1.0
"""What a run has to end by itself after a second signal."""
_EVERY = 0.2
"""Seconds between two looks."""
_GRACE = 5.0
"""What the first process has to end by itself once another is gone: its next exchange fails."""


class StartedProcesses(threading.Thread):
    """Watches the processes that the first one has started, in place of Lightning, which would kill all by SIGKILL.

    Args:
        started: the processes so far; the first process of a run has rank 0 and is not among them.
        end: ends this process, with the name of what has happened.

    """

    def __init__(self, started: Callable[[], Sequence["subprocess.Popen[bytes]"]], end: Callable[[str], None]) -> None:
        super().__init__(daemon=True, name="started-processes")
        self._processes, self._end = started, end
        self._closed = threading.Event()
        os.environ[PARENT] = str(os.getpid())
        self.start()

    def run(self) -> None:
        """Looks until one has failed."""
        while not self._closed.wait(_EVERY):
            name = self.failed()
            if name is not None:
                if not self._closed.wait(_GRACE):
                    self._end(name)
                return

    def failed(self, patience: float = 0.0) -> str | None:
        """What became of a process that has failed; None: none has, for `patience` seconds."""
        deadline = time.monotonic() + patience
        while True:
            processes = list(self._processes())
            for rank, process in enumerate(processes, start=1):
                if process.poll():
                    how = _how_it_ended(process.returncode)
                    return f"the end of process {rank + 1} of {len(processes) + 1} (pid {process.pid}, {how})"
            if time.monotonic() >= deadline:
                return None
            time.sleep(_EVERY / 4)

    def close(self) -> None:
        """Stops watching: the others have done their part."""
        self._closed.set()


def _how_it_ended(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"


def kill(processes: Sequence["subprocess.Popen[bytes]"], seconds: float) -> None:
    """Kills processes, and waits for each so many seconds at most."""
    for process in processes:
        process.kill()
    for process in processes:
        with suppress(subprocess.TimeoutExpired):
            process.wait(seconds)


class Watchdog(threading.Thread):
    """Ends a run that does not end itself.

    A thread, because Python's handlers run in the main one, and wait while that waits for another process.
    """

    def __init__(self, patience: Callable[[int], float], end: Callable[[str], None]) -> None:
        super().__init__(daemon=True, name="stop-signals")
        self.first: str | None = None  # signal that came
        self._patience, self._end = patience, end
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        self._previous = signal.set_wakeup_fd(self._writer)
        self.start()

    def close(self) -> None:
        """Stops watching."""
        signal.set_wakeup_fd(self._previous)
        os.close(self._writer)

    def run(self) -> None:
        """Waits for signals, then for the run's end or the deadline."""
        deadline = float("inf")
        while True:
            left = None if deadline == float("inf") else max(0.0, deadline - time.monotonic())
            if not select.select([self._reader], [], [], left)[0]:
                assert self.first is not None
                self._end(self.first)
                break
            received = os.read(self._reader, 1)
            if not received:
                break
            deadline = min(deadline, time.monotonic() + self._seconds(received[0]))
        os.close(self._reader)

    def _seconds(self, number: int) -> float:
        if number not in SIGNALS:
            return float("inf")
        if self.first is not None:
            return FORCE_SECONDS
        self.first = SIGNALS[number]
        return self._patience(number)
