"""The learning rate of each row, with a mark where nobody chose it for the row's data."""

from fedem_lightning.report.cells import Cell, Column, Table
from fedem_lightning.report.groups import Group
from fedem_lightning.report.text import plain, shorten

MARK = "*"


def add_rates(table: Table) -> None:
    """Adds the columns `learning_rate` and, as a detail, `rate_chosen`, and the note on the marks.

    Runs of older versions do not say who chose their rate; their rows have no cell.
    """
    first = dict(list(table.columns.items())[:2])  # seeds and rounds
    columns = {
        "learning_rate": Column("learning rate", ".3g"),
        "rate_chosen": Column("whether the rate was chosen for the data", ".0f", is_detail=True),
    }
    table.columns = first | columns | table.columns
    for group, cells in table.rows:
        rates = group.runs[0].results.get("learning_rates")
        if rates:
            mark = MARK if unchosen(group) else ""
            cells["learning_rate"] = Cell(float(rates[0]["rate"]), n=len(group.runs), mark=mark)
            cells["rate_chosen"] = Cell(float(not mark), n=len(group.runs))
    marked = [shorten(group.label) for group, _ in table.rows if unchosen(group)]
    if marked:
        table.notes.append(f"{MARK} {unchosen_line(marked)}")


def unchosen(group: Group) -> list[str]:
    """The algorithm or the adaptation of a row, by name, whose learning rate nobody chose for the row's data."""
    rates = [rate for run in group.runs for rate in run.results.get("learning_rates") or []]
    return list(dict.fromkeys(plain(rate["of"]) for rate in rates if rate["chosen_by"] is None))


def unchosen_line(labels: list[str]) -> str:
    """What to do about rows whose learning rate is the default."""
    return (
        f"nobody chose the learning rate of {', '.join(labels)} for these data, and another may be much better: "
        "choose one with +tune=learning_rate (docs/trackers.md), in Python with client_optimizer=ClientSGD(lr=...)"
    )
