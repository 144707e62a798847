"""Code that the commands `python -m fedem_lightning.data` and `.report` share."""

import argparse
import io
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from fedem_lightning.errors import UserError


class Parser(argparse.ArgumentParser):
    """An `ArgumentParser` that raises a `UserError` for wrong arguments."""

    def error(self, message: str) -> NoReturn:
        """Raises the error as one line, as for every mistake of the user."""
        raise UserError(f"{message}; {self.prog} --help explains")


@contextmanager
def one_line_for_mistakes() -> Iterator[None]:
    """Exits with one line: with code 2 for a user's mistake, with code 1 after Ctrl-C; other errors pass.

    A warning is one line, too.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # paths may have bytes that are no text
    before, warnings.formatwarning = warnings.formatwarning, lambda message, *_, **__: f"warning: {message}\n"
    try:
        yield
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        sys.exit(1)
    except Exception as error:
        from fedem_lightning.run.cli import user_message  # loads Hydra

        message = user_message(error) or (str(error) if isinstance(error, OSError) else None)
        if message is None:
            raise
        print(f"error: {message}", file=sys.stderr)
        sys.exit(2)
    finally:
        warnings.formatwarning = before
