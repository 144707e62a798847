"""A reader that goes away, as in `... | head -1`, does not end the command: it goes on, and prints no more.

A disk that is full ends it, because what it prints would be lost.
"""

import errno
import io
import os
import sys
from typing import Any

_STDERR = 2


def survive_closed_output() -> None:
    """From here on stdout and stderr may be closed by whoever reads them, or lose their terminal."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not getattr(sys, f"__{name}__") or not isinstance(stream, io.TextIOWrapper):
            continue  # there is none, or somebody captures it
        if isinstance(getattr(stream.buffer, "raw", stream.buffer), _Patient):
            continue
        stream.flush()
        raw = _Patient(stream.fileno(), "wb", closefd=False)
        buffer: Any = raw if isinstance(stream.buffer, io.FileIO) else io.BufferedWriter(raw)  # raw: of `python -u`
        kept = {option: getattr(stream, option) for option in ("encoding", "errors", "line_buffering", "write_through")}
        again = io.TextIOWrapper(buffer, **kept)
        setattr(sys, name, again)
        setattr(sys, f"__{name}__", again)


class _Patient(io.FileIO):
    """A file that becomes /dev/null when nobody reads it any more, or when it cannot be written."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            number = self.fileno()
            nothing = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nothing, number)
            os.close(nothing)
            if number != _STDERR and error.errno not in (errno.EPIPE, errno.EIO):
                raise OSError(error.errno, error.strerror, "stdout") from None  # once; nobody could hear of stderr
            return memoryview(data).nbytes
