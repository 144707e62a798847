"""Names that come with data, of clients, classes, domains, columns and arrays: what they may be, how they are shown.

Any text is a name, within limits. What a file holds beside what is read must not look like it: a name that looks like
one of those read is refused, others are named in a warning.
"""

import difflib
import re
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from fedem_lightning.errors import UserError, require

if TYPE_CHECKING:
    import numpy as np

LONGEST_NAME = 1000
"""Characters of a name; a longer one is no name but a text that got into the wrong place."""
OF_SPLITS = {"train", "training", "val", "valid", "validation", "dev", "test", "testing"}
OTHER_WORDS = {"id", "index", "idx", "mask", "is", "number", "all", "data", "my"}
"""Words that stand beside a known one, as in client_id."""
MEANT = {
    "label": "y",
    "target": "y",
    "feature": "x",
    "image": "x",
    "user": "client",
    "writer": "client",
    "owner": "client",
    "subset": "split",
    "fold": "split",
    "superclass": "coarse",
}
"""Other words for the arrays of a federation."""


def checked_names(what: str, names: Sequence[str], unique: bool = False) -> list[str]:
    """Returns the names.

    Raises:
        UserError: a name is longer than `LONGEST_NAME`, or no file can hold it: it has a NUL, or a half of a character
            (a surrogate). With `unique`: two are the same.

    """
    for i, name in enumerate(names):
        odd = "\0" in name or any("\ud800" <= letter <= "\udfff" for letter in name if letter > "\u07ff")
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


def strings(what: str, values: "np.ndarray") -> "np.ndarray":
    """Bytes as the UTF-8 text that they are; other arrays as they are.

    Raises:
        UserError: they are no UTF-8.

    """
    import numpy as np  # `data list` answers without it

    if values.dtype.kind != "S":
        return values
    try:
        decoded: np.ndarray = np.char.decode(values, "utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{what}: bytes that are no UTF-8 text ({error.object[:60]!r})") from error
    return decoded


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
        UserError: a name is a known one in another case, in the plural, misspelt, or with `test` or `id` beside it.

    Example:
        >>> check_unread("a.npz", ["x", "y", "Splits"], ["x", "y", "split"])
        Traceback (most recent call last):
        fedem_lightning.errors.UserError: a.npz: Splits is not read; did you mean split?

    """
    found = list(found)
    others = [name for name in found if name not in known]
    for name in others:
        near = name_meant(name, known)
        if near is not None:
            hint = f"{near} is; leave {shown(name)} out" if near in found else f"did you mean {near}?"
            if near in ("x", "y") and _words(name) & OF_SPLITS:
                hint = f"all samples belong into {near}, and split says 0 train, 1 val, 2 test"
            raise UserError(f"{where}: {shown(name)} is not read; {hint}")
    if others:
        listed = ", ".join(map(shown, others[:5])) + ", ..." * (len(others) > 5)
        warnings.warn(f"{where}: not read: {listed}", stacklevel=3)


def name_meant(name: str, known: Sequence[str]) -> str | None:
    """The known name that another name looks like."""
    words = _words(name)
    singular = {_singular(word): word for word in known} | {
        word: there for word, there in MEANT.items() if there in known
    }
    rest = words - OF_SPLITS - OTHER_WORDS
    if "split" in known and words and not rest and words & OF_SPLITS:
        return "split"
    if rest and rest <= singular.keys():
        return singular[min(rest, key=lambda word: word in MEANT)]
    plain = "".join(re.findall(r"[a-z0-9]", name.lower()))
    long = {word.replace("_", ""): there for word, there in singular.items() if len(word) > 3}
    near = difflib.get_close_matches(_singular(plain), long, n=1, cutoff=0.8)
    return long[near[0]] if near else None


def looks_like_split(name: str) -> bool:
    """Whether a column's name has the word split in it, or is that word misspelt."""
    return "split" in _words(name) or bool(difflib.get_close_matches(name.strip().lower(), ["split"], cutoff=0.8))


def _words(name: str) -> set[str]:
    """The words of a name in small letters and the singular, as x and test of xTest, x_tests or ../x.test."""
    parts = re.findall(r"[A-Z]?[a-z]+|[A-Z]+|[0-9]+", name)
    return {_singular(part.lower()) for part in parts}


def _singular(word: str) -> str:
    return word[:-1] if word.endswith("s") and len(word) > 2 else word


def names_of_clients(arrays: Mapping[str, "np.ndarray"]) -> "np.ndarray | None":
    """The array `client_names`, or `names`, its other name; None if there is neither.

    Raises:
        UserError: there are both.

    """
    both = {"names", "client_names"} <= arrays.keys()
    require(not both, "names: the file has names beside client_names; give one of them")
    return arrays.get("client_names", arrays.get("names"))
