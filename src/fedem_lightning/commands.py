"""What the sub-commands, `python -m fedem_lightning.data` and `.report`, share."""

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from fedem_lightning.cli import user_message
from fedem_lightning.errors import UserError


class Parser(argparse.ArgumentParser):
    """An `ArgumentParser` whose mistakes are a `UserError`."""

    def error(self, message: str) -> NoReturn:
        """One line, as for every mistake."""
        raise UserError(f"{message}; {self.prog} --help explains")


@contextmanager
def one_line_for_mistakes() -> Iterator[None]:
    """Exits with code 2 and one line for what the user can mend; other errors pass."""
    try:
        yield
    except Exception as error:
        message = user_message(error) or (str(error) if isinstance(error, OSError) else None)
        if message is None:
            raise
        print(f"error: {message}", file=sys.stderr)
        sys.exit(2)
