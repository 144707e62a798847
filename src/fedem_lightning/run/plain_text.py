"""Names that users give, as text in a figure."""

import unicodedata

_REMOVED = ("Cc", "Cf", "Cs", "Zl", "Zp")  # control and format characters, half of a pair, line and paragraph ends


def plain(text: str, limit: int = 80) -> str:
    """Text on one line that matplotlib draws as it is: without control characters, and with each dollar sign escaped.

    Args:
        text: any text; matplotlib would read what stands between two dollar signs as a formula.
        limit: the most characters that are kept; an ellipsis stands for the others.

    """
    visible = "".join(" " if unicodedata.category(c) in _REMOVED else c for c in text)
    line = " ".join(visible.split())
    shown = line if len(line) <= limit else line[: limit - 1] + "…"
    return shown.replace("$", r"\$")
