"""Names from runs in Markdown, LaTeX and CSV, and tables in LaTeX: no name is read as a command or as a formula."""

import re
import textwrap
import unicodedata
from typing import Any

from fedem_lightning.errors import one_line
from fedem_lightning.report.cells import Table

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
_NOT_IN_LATEX = ("seeds", "rounds", "mean", "train", "val", "seconds", "unseen_train")
"""Columns that a page in print has no room for; report.csv has them."""


def shorten(text: str, longest: int = 80) -> str:
    """A text of at most `longest` letters; beginning and end are kept, because labels often differ at their end.

    Tables in CSV have it in full.
    """
    if len(text) <= longest:
        return text
    end = longest // 3
    return f"{text[: longest - end - 3]}...{text[-end:]}"


def markdown_text(text: str) -> str:
    """A text in Markdown that shows as it is, on one line, also in a table."""
    text = re.sub(r"([\\`*\[\]<>|$~])", r"\\\1", one_line(text)).replace("&", "&amp;")
    text = re.sub(r"(?<![^\W_])_|_(?![^\W_])", r"\\_", text)  # within a word it has no meaning
    return re.sub(r"^([#+-])", r"\\\1", text)


def latex_text(text: str) -> str:
    """A text in LaTeX that shows as it is; letters that the default fonts lack lose their accents, or become "?"."""
    return "".join(_LATEX.get(c) or (c if c.isascii() or c in _LATEX_LETTERS else _ascii(c)) for c in one_line(text))


def _ascii(letter: str) -> str:
    base = unicodedata.normalize("NFKD", letter).encode("ascii", "ignore").decode()
    return "".join(_LATEX.get(c, c) for c in base) or "?"


def cell_text(text: Any) -> str:
    """A name in a CSV file; one that a spreadsheet would take for a formula begins with an apostrophe."""
    text = one_line(text)
    return f"'{text}" if text[:1] in ("=", "+", "-", "@") else text


def latex_tables(tables: list[Table]) -> str:
    """All tables of a report, for a document that loads the package booktabs."""
    return "\n".join(["% needs \\usepackage{booktabs}", *(_table(table) for table in tables)])


def _table(table: Table) -> str:
    columns = {key: column for key, column in table.filled().items() if key not in _NOT_IN_LATEX}
    lines = [r"\begin{table}", r"\centering", r"\footnotesize", r"\setlength{\tabcolsep}{4pt}"]
    lines.append(rf"\caption{{{latex_text(table.title)}}}")
    lines += [rf"\begin{{tabular}}{{l{'r' * len(columns)}}}", r"\toprule"]
    lines += [*_headers(["algorithm", *(column.header for column in columns.values())]), r"\midrule"]
    for group, cells in table.rows:
        row = [latex_text(shorten(group.label))]
        for key, column in columns.items():
            number = _number(column.show(cells.get(key)))
            row.append(rf"\textbf{{{number}}}" if table.is_leader(group, key) else number)
        lines.append(_row(row))
    lines += [r"\bottomrule", r"\end{tabular}"]
    lines += [rf"\par\smallskip {{\footnotesize {latex_text(note)}}}" for note in table.notes]
    return "\n".join([*lines, r"\end{table}", ""])


def _headers(headers: list[str]) -> list[str]:
    """The headers, with words below one another, so that columns are as narrow as their numbers."""
    words = [textwrap.wrap(header, 9, break_long_words=False) for header in headers]
    depth = max(map(len, words))
    stacked = [[""] * (depth - len(parts)) + [latex_text(part) for part in parts] for parts in words]
    return [_row([parts[line] for parts in stacked]) for line in range(depth)]


def _number(text: str) -> str:
    """A number as the tables show it; a missing one is a dash, a minus sign is set as one."""
    if text == "-":
        return "--"
    value = f"$-${latex_text(text[1:])}" if text.startswith("-") else latex_text(text)
    return value if text.startswith("-") else value.replace("-", "--")  # a range


def _row(cells: list[str]) -> str:
    return " & ".join(cells) + r" \\"
