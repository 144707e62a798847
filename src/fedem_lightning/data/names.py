"""Names that come with data, of clients, classes, domains, columns and arrays: what they may be, how they are shown."""

from collections import Counter
from collections.abc import Iterable, Sequence

from fedem_lightning.settings.errors import require


def checked_names(what: str, names: Sequence[str], unique: bool = False) -> list[str]:
    """Returns the names; UserError for one with a NUL or a surrogate, and if `unique` for a double."""
    for i, name in enumerate(names):
        odd = any(letter == "\0" or "\ud800" <= letter <= "\udfff" for letter in name)
        require(not odd, f"{what}: number {i}, {shown(name)}, has a character that no file can hold")
    if unique:
        twice = [shown(name) for name, n in Counter(names).items() if n > 1]
        require(not twice, f"{what}: expected different names, got {listed(twice)} twice")
    return list(names)


def shown(name: str) -> str:
    """A name as it may stand in a message of one line: long ones are cut, odd characters escaped."""
    cut = name if len(name) <= 60 else f"{name[:57]}..."
    return cut if cut.isprintable() else ascii(cut)


def listed(names: Iterable[str], most: int = 5) -> str:
    """The first names, for a message."""
    all_names = list(names)
    return ", ".join(all_names[:most]) + ", ..." * (len(all_names) > most)


def printable(text: str) -> str:
    """Text of others as any terminal can show it: control characters but line ends, and surrogates, are escaped."""
    whole = text.encode("utf-8", "backslashreplace").decode()
    return "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in whole)
