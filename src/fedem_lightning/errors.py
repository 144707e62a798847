"""What the user gave is wrong: one readable line, no traceback on the command line, exit code 2."""


class UserError(ValueError):
    """A mistake in a configuration, a file or an array. The message names it and says what was expected."""


def require(condition: bool, message: str) -> None:
    """Raises UserError(message) unless `condition` holds."""
    if not condition:
        raise UserError(message)
