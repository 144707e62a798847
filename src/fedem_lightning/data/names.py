"""Checks of names that come with data: of clients, classes, domains, columns. Any text is a name, within limits."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from fedem_lightning.errors import UserError, require

LONGEST = 1000
"""Characters of a name; a longer one is no name but a text that got into the wrong place."""


def check_names(what: str, names: Sequence[str], unique: bool = False) -> list[str]:
    """Returns the names.

    Raises:
        UserError: a name is longer than `LONGEST`, or no file can hold it: it has a NUL, or a half of a character
            (a surrogate). With `unique`: two are the same.

    """
    for i, name in enumerate(names):
        odd = "\0" in name or any("\ud800" <= letter <= "\udfff" for letter in name if letter > "\u07ff")
        require(not odd, f"{what}: number {i}, {shown(name)}, has a character that no file can hold")
        require(len(name) <= LONGEST, f"{what}: number {i} has {len(name)} characters, more than {LONGEST}")
    twice = [name for name, n in Counter(names).items() if n > 1] if unique else []
    require(not twice, f"{what}: expected different names, got {shown(twice[0]) if twice else ''} twice")
    return list(names)


def check_ids(what: str, names: Sequence[str]) -> None:
    """Raises UserError if a client's name is empty, or none that `check_names` allows."""
    check_names(what, names)
    empty = [i for i, name in enumerate(names) if not name.strip()]
    require(not empty, f"{what}: number {empty[0] if empty else 0} is empty")


def shown(name: str) -> str:
    """A name as it may stand in a message of one line: long ones are cut, odd characters escaped."""
    cut = name if len(name) <= 60 else f"{name[:57]}..."
    return cut if cut.isprintable() else ascii(cut)


def strings(what: str, values: np.ndarray) -> np.ndarray:
    """Bytes as the UTF-8 text that they are; other arrays as they are.

    Raises:
        UserError: they are no UTF-8.

    """
    if values.dtype.kind != "S":
        return values
    try:
        decoded: np.ndarray = np.char.decode(values, "utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{what}: bytes that are no UTF-8 text ({error.object[:60]!r})") from error
    return decoded
