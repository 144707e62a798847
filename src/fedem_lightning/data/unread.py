"""What a file holds beside what is read: a name that looks like one of those read is refused, others are named."""

import difflib
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from fedem_lightning.data.names import shown
from fedem_lightning.errors import UserError, require

SPLITS = {"train", "training", "val", "valid", "validation", "dev", "test", "testing"}
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
        near = meant(name, known)
        if near is not None:
            hint = f"{near} is; leave {shown(name)} out" if near in found else f"did you mean {near}?"
            if near in ("x", "y") and _words(name) & SPLITS:
                hint = f"all samples belong into {near}, and split says 0 train, 1 val, 2 test"
            raise UserError(f"{where}: {shown(name)} is not read; {hint}")
    if others:
        listed = ", ".join(map(shown, others[:5])) + ", ..." * (len(others) > 5)
        warnings.warn(f"{where}: not read: {listed}", stacklevel=3)


def meant(name: str, known: Sequence[str]) -> str | None:
    """The known name that another name looks like."""
    words = _words(name)
    singular = {_singular(word): word for word in known} | {
        word: there for word, there in MEANT.items() if there in known
    }
    rest = words - SPLITS - OTHER_WORDS
    if "split" in known and words and not rest and words & SPLITS:
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


def names_of_clients(arrays: Mapping[str, np.ndarray]) -> np.ndarray | None:
    """The array `client_names`, or `names`, its other name; None if there is neither.

    Raises:
        UserError: there are both.

    """
    both = {"names", "client_names"} <= arrays.keys()
    require(not both, "names: the file has names beside client_names; give one of them")
    return arrays.get("client_names", arrays.get("names"))
