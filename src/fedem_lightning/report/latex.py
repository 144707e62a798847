"""Tables in LaTeX, with booktabs alone."""

import textwrap

from fedem_lightning.report.cells import Table
from fedem_lightning.report.text import latex_text, shorten

LEFT_OUT = ("seeds", "rounds", "mean", "train", "val", "seconds", "unseen_train")
"""Columns that a page in print has no room for; report.csv has them."""


def latex(tables: list[Table]) -> str:
    """All tables of a report, for a document that loads the package booktabs."""
    return "\n".join(["% needs \\usepackage{booktabs}", *(_table(table) for table in tables)])


def _table(table: Table) -> str:
    columns = {key: column for key, column in table.filled().items() if key not in LEFT_OUT}
    lines = [r"\begin{table}", r"\centering", r"\footnotesize", r"\setlength{\tabcolsep}{4pt}"]
    lines.append(rf"\caption{{{latex_text(table.title)}}}")
    lines += [rf"\begin{{tabular}}{{l{'r' * len(columns)}}}", r"\toprule"]
    lines += [*_headers(["algorithm", *(column.header for column in columns.values())]), r"\midrule"]
    for group, cells in table.rows:
        row = [latex_text(shorten(group.label))]
        for key, column in columns.items():
            number = _number(column.show(cells.get(key)))
            row.append(rf"\textbf{{{number}}}" if group.label in table.leaders.get(key, ()) else number)
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
