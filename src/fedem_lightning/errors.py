"""What the user gave is wrong: one readable line, no traceback on the command line, exit code 2."""

import math
from typing import Any


class UserError(ValueError):
    """A mistake in a configuration, a file or an array. The message names it and says what was expected."""


class Interrupted(BaseException):
    """The run was told to stop; the message says how to go on.

    Not an `Exception`, as KeyboardInterrupt is none: whoever catches those for another reason lets it pass.
    """


def require(condition: bool, message: str) -> None:
    """Raises UserError(message) unless `condition` holds."""
    if not condition:
        raise UserError(message)


def require_whole(name: str, value: Any, at_least: int, below: int | None = None) -> None:
    """Raises UserError unless `value` is a whole number from `at_least` on (and under `below`)."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    upper = "" if below is None else f" and below {below}"
    require(
        whole and value >= at_least and (below is None or value < below),
        f"{name}: expected a whole number of at least {at_least}{upper}, got {value!r}",
    )


def require_number(
    name: str, value: Any, at_least: float = -math.inf, above: float = -math.inf, below: float = math.inf
) -> None:
    """Raises UserError unless `value` is a number, at_least <= value, and above < value < below."""
    bounds = [f"at least {at_least:g}"] * (at_least > -math.inf) + [f"above {above:g}"] * (above > -math.inf)
    bounds += [f"below {below:g}"] * (below < math.inf)
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    require(
        number and at_least <= value and above < value < below,
        f"{name}: expected a number {' and '.join(bounds)}, got {value!r}",
    )
