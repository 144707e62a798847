"""The learning rate of each row, with a mark where nobody chose it for the row's data."""

from collections.abc import Sequence

from fedem_lightning.report.cells import Cell, Column, Table
from fedem_lightning.report.groups import Group
from fedem_lightning.report.markup import shorten
from fedem_lightning.run.plain_text import one_line

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
    said = unchosen_line([group for group, _ in table.rows])
    if said:
        table.notes.append(f"{MARK} {said}")


def unchosen(group: Group) -> list[str]:
    """Whose learning rate nobody chose for a row's data: the row's label, or "ADAPTATION of LABEL"."""
    label = shorten(group.label)
    found = []
    for run in group.runs:
        for number, rate in enumerate(run.results.get("learning_rates") or []):
            if rate["chosen_by"] is None:
                found.append(f"{one_line(rate['of'])} of {label}" if number else label)
    return list(dict.fromkeys(found))


def unchosen_line(groups: Sequence[Group]) -> str:
    """What to do about rows whose learning rate is the default; empty if there are none."""
    names = [name for group in groups for name in unchosen(group)]
    if not names:
        return ""
    return (
        f"nobody chose the learning rate of {', '.join(names)} for these data, and another may be much better: "
        "choose one with +tune=learning_rate (docs/trackers.md), in Python with client_optimizer=ClientSGD(lr=...)"
    )
