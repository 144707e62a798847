"""What the sub-commands, `python -m fedem_lightning.data` and `.report`, share."""

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from fedem_lightning.errors import UserError


class Parser(argparse.ArgumentParser):
    """An `ArgumentParser` whose mistakes are a `UserError`."""

    def error(self, message: str) -> NoReturn:
        """One line, as for every mistake."""
        raise UserError(f"{message}; {self.prog} --help explains")


@contextmanager
def one_line_for_mistakes() -> Iterator[None]:
    """Exits with code 2 and one line for what the user can mend, with code 1 after Ctrl-C; other errors pass."""
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
