"""What all commands share: their arguments, one line for a mistake, and an output that may be closed.

A reader that goes away, as in `... | head -1`, does not end a command: it goes on, and prints no more. A disk that is
full ends it, because what it prints would be lost.
"""

import argparse
import errno
import io
import os
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from fedem_lightning.errors import UserError
from fedem_lightning.startup.rank import decide

_STDERR = 2


class Parser(argparse.ArgumentParser):
    """An `ArgumentParser` that raises a `UserError` for wrong arguments."""

    def error(self, message: str) -> NoReturn:
        """Raises the error as one line, as for every mistake of the user."""
        raise UserError(f"{message}; {self.prog} --help explains")


@contextmanager
def one_line_for_mistakes() -> Iterator[None]:
    """Exits with one line: with code 2 for a user's mistake, with code 1 after Ctrl-C or an error nobody foresaw.

    A warning is one line, too. HYDRA_FULL_ERROR=1 shows the trace, as for a run.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # paths may have bytes that are no text
    survive_closed_output()
    decide(1)  # the rank of another launch is none of theirs
    before, warnings.formatwarning = warnings.formatwarning, lambda message, *_, **__: f"warning: {message}\n"
    try:
        require_working_directory()
        with printed():
            yield
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        sys.exit(1)
    except Exception as error:
        from fedem_lightning.run.failures import unexpected, user_message  # loads Hydra

        message = user_message(error)
        if os.environ.get("HYDRA_FULL_ERROR") == "1":
            traceback.print_exception(error)
        print(f"error: {message or unexpected(error)}", file=sys.stderr)
        sys.exit(2 if message else 1)
    finally:
        warnings.formatwarning = before


def require_working_directory() -> None:
    """Raises UserError if somebody has deleted it: PyTorch's libraries would end the process without a word of it."""
    try:
        os.getcwd()
    except FileNotFoundError:
        raise UserError("the working directory is gone; change to a folder that is there") from None


@contextmanager
def printed() -> Iterator[None]:
    """At its end stdout has been written, also where --help has ended the command.

    Raises:
        OSError: the disk is full; the exit code of Python, which notices it later, would tell nobody.

    """
    try:
        yield
    finally:
        if sys.stdout is not None:
            sys.stdout.flush()


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
