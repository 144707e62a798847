"""Names from runs as text: whatever they hold, nothing of it is read as markup, as a command or as a formula."""

import re
import unicodedata
from typing import Any

from fedem_lightning.run.plain_text import one_line

plain = one_line

LONGEST = 80
"""Letters of a name that are shown; tables in CSV have it in full."""
_LATEX = {c: f"\\{c}" for c in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': "''",  # the sign itself needs another font encoding
}


_LATEX_LETTERS = "ÄÖÜäöüßÀÁÂÃÅÆÇÈÉÊËÌÍÎÏÑÒÓÔÕØÙÚÛÝàáâãåæçèéêëìíîïñòóôõøùúûýÿ"


def shorten(text: str, longest: int = LONGEST) -> str:
    """A text of at most `longest` letters; beginning and end are kept, because labels often differ at their end."""
    if len(text) <= longest:
        return text
    end = longest // 3
    return f"{text[: longest - end - 3]}...{text[-end:]}"


def markdown_text(text: str) -> str:
    """A text in Markdown that shows as it is, on one line, also in a table."""
    text = re.sub(r"([\\`*\[\]<>|$~])", r"\\\1", plain(text)).replace("&", "&amp;")
    text = re.sub(r"(?<![^\W_])_|_(?![^\W_])", r"\\_", text)  # within a word it has no meaning
    return re.sub(r"^([#+-])", r"\\\1", text)


def latex_text(text: str) -> str:
    """A text in LaTeX that shows as it is; letters that the default fonts lack lose their accents, or become "?"."""
    return "".join(_LATEX.get(c) or (c if c.isascii() or c in _LATEX_LETTERS else _ascii(c)) for c in plain(text))


def _ascii(letter: str) -> str:
    base = unicodedata.normalize("NFKD", letter).encode("ascii", "ignore").decode()
    return "".join(_LATEX.get(c, c) for c in base) or "?"


def cell_text(text: Any) -> str:
    """A name in a CSV file; one that a spreadsheet would take for a formula begins with an apostrophe."""
    text = plain(text)
    return f"'{text}" if text[:1] in ("=", "+", "-", "@") else text
