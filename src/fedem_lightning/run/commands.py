"""Code that the commands `python -m fedem_lightning.data` and `.report` share."""

import argparse
import io
import os
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from fedem_lightning.errors import UserError
from fedem_lightning.startup.closed_output import survive_closed_output
from fedem_lightning.startup.rank import decide


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
