"""Names that come with data, of clients, classes, domains, columns and arrays: what they may be, how they are shown."""

import difflib
import re
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from fedem_lightning.errors import require

if TYPE_CHECKING:
    import numpy as np

LONGEST_NAME = 1000
"""Characters of a name; a longer one is no name but a text that got into the wrong place."""


def checked_names(what: str, names: Sequence[str], unique: bool = False) -> list[str]:
    """Returns the names.

    Raises:
        UserError: a name is longer than `LONGEST_NAME`, or no file can hold it: it has a NUL, or a half of a character
            (a surrogate). With `unique`: two are the same.

    """
    for i, name in enumerate(names):
        odd = any(letter == "\0" or "\ud800" <= letter <= "\udfff" for letter in name)
        require(not odd, f"{what}: number {i}, {shown(name)}, has a character that no file can hold")
        require(len(name) <= LONGEST_NAME, f"{what}: number {i} has {len(name)} characters, more than {LONGEST_NAME}")
    twice = [name for name, n in Counter(names).items() if n > 1] if unique else []
    require(not twice, f"{what}: expected different names, got {shown(twice[0]) if twice else ''} twice")
    return list(names)


def check_ids(what: str, names: Sequence[str]) -> None:
    """Raises UserError if a client's name is empty, or none that `checked_names` allows."""
    checked_names(what, names)
    empty = [i for i, name in enumerate(names) if not name.strip()]
    require(not empty, f"{what}: number {empty[0] if empty else 0} is empty")


def shown(name: str) -> str:
    """A name as it may stand in a message of one line: long ones are cut, odd characters escaped."""
    cut = name if len(name) <= 60 else f"{name[:57]}..."
    return cut if cut.isprintable() else ascii(cut)


def printable(text: str) -> str:
    """Text of others as any terminal can show it: control characters but line ends, and surrogates, are escaped."""
    whole = text.encode("utf-8", "backslashreplace").decode()
    return "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in whole)


def check_unread(where: str, found: Iterable[str], known: Sequence[str]) -> None:
    """Refuses a name that looks like a known one, and warns of all other names that are not known.

    Args:
        where: begins the line.
        found: the names in the file.
        known: the names that are read.

    Raises:
        UserError: a name has a known one as a word, or is one in another case, or misspelt.

    Example:
        >>> check_unread("a", ["x", "client_id"], ["x", "y", "client"])
        Traceback (most recent call last):
        fedem_lightning.errors.UserError: a: client_id is not read, but looks like client; rename it, or leave it out

    """
    others = [name for name in found if name not in known]
    for name in others:
        words = re.findall(r"[a-z0-9]+", name.lower())
        near = [one for one in known if one in words] or difflib.get_close_matches(name.lower(), known, 1, cutoff=0.8)
        hint = "; all samples belong into x and y, and split says which are for testing" * ({"x", "y"} >= set(near[:1]))
        said = f"{shown(name)} is not read, but looks like {''.join(near[:1])}; rename it, or leave it out{hint}"
        require(not near, f"{where}: {said}")
    if others:
        listed = ", ".join(map(shown, others[:5])) + ", ..." * (len(others) > 5)
        warnings.warn(f"{where}: not read: {listed}", stacklevel=3)


def names_of_clients(arrays: Mapping[str, "np.ndarray"]) -> "np.ndarray | None":
    """The array `client_names`, or `names`, its other name; None if there is neither.

    Raises:
        UserError: there are both.

    """
    both = {"names", "client_names"} <= arrays.keys()
    require(not both, "names: the file has names beside client_names; give one of them")
    return arrays.get("client_names", arrays.get("names"))
