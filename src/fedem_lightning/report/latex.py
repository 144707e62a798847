"""Tables in LaTeX, with booktabs alone."""

from fedem_lightning.report.cells import Table
from fedem_lightning.report.text import latex_text, shorten


def latex(tables: list[Table]) -> str:
    """All tables of a report, for a document that loads the package booktabs."""
    return "\n".join(["% needs \\usepackage{booktabs}", *(_table(table) for table in tables)])


def _table(table: Table) -> str:
    columns = table.filled()
    lines = [r"\begin{table}", r"\centering", r"\small", rf"\caption{{{latex_text(table.title)}}}"]
    lines += [rf"\begin{{tabular}}{{l{'r' * len(columns)}}}", r"\toprule"]
    lines += [_row(["algorithm", *(latex_text(column.header) for column in columns.values())]), r"\midrule"]
    for group, cells in table.rows:
        row = [latex_text(shorten(group.label))]
        for key, column in columns.items():
            number = _number(column.show(cells.get(key)))
            row.append(rf"\textbf{{{number}}}" if group.label in table.leaders.get(key, ()) else number)
        lines.append(_row(row))
    lines += [r"\bottomrule", r"\end{tabular}"]
    lines += [rf"\par\smallskip {{\footnotesize {latex_text(note)}}}" for note in table.notes]
    return "\n".join([*lines, r"\end{table}", ""])


def _number(text: str) -> str:
    """A number as the tables show it; a missing one is a dash, a minus sign is set as one."""
    if text == "-":
        return "--"
    value = f"$-${latex_text(text[1:])}" if text.startswith("-") else latex_text(text)
    return value if text.startswith("-") else value.replace("-", "--")  # a range


def _row(cells: list[str]) -> str:
    return " & ".join(cells) + r" \\"
