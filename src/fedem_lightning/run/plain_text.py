"""Names that users give, as text: nothing of them is read as markup or as a formula."""

import unicodedata
from typing import Any

_REMOVED = ("Cc", "Cf", "Zl", "Zp")  # control and format characters (some turn the direction of writing), line ends


def one_line(text: Any) -> str:
    """A text on one line, without control characters; bytes that are no text (of a folder's name) become "?"."""
    letters = (
        "?" if "\ud800" <= c <= "\udfff" else " " if unicodedata.category(c) in _REMOVED else c for c in str(text)
    )
    return " ".join("".join(letters).split())


def plain(text: Any, limit: int = 80) -> str:
    """A text on one line that Matplotlib draws as it is.

    Args:
        text: any text; Matplotlib would read what stands between two dollar signs as a formula.
        limit: the most characters that are kept; an ellipsis stands for the others.

    """
    line = one_line(text)
    shown = line if len(line) <= limit else line[: limit - 1] + "…"
    return shown.replace("$", r"\$")
