"""More columns of the table of scores: clients served worse than by a baseline, learning rates, least possible loss."""

from collections.abc import Sequence

import numpy as np

from fedem_lightning.errors import one_line
from fedem_lightning.report.cells import Cell, Table, TableColumn, mean_cells
from fedem_lightning.report.finished_run import Run
from fedem_lightning.report.gains_by_client import compare_clients, gains_and_losses
from fedem_lightning.report.groups import BASELINES, Group
from fedem_lightning.report.markup import shorten

_UNCHOSEN = "*"


def add_baselines(table: Table) -> None:
    """Adds the columns `worse_than_NAME` and, as a detail, `loses_to_NAME`: clients beyond chance; both in percent.

    A setting with several rows of a baseline takes the first one without an adaptation.
    """
    for name in BASELINES:
        baseline = next((group for group in table.setting.groups if group.algorithm == name), None)
        if baseline is None:
            continue
        table.columns[f"worse_than_{name}"] = TableColumn(f"worse than {name}, %", ".0f")
        table.columns[f"loses_to_{name}"] = TableColumn(f"worse than {name} beyond chance, %", ".1f", is_detail=True)
        for group, cells in table.rows:
            cells |= {} if group is baseline else _shares(group, baseline, name)


def _shares(group: Group, baseline: Group, name: str) -> dict[str, Cell]:
    """The two cells of a row, with mean and deviation over the common seeds."""
    clients = compare_clients(group, baseline)
    if clients is None:
        return {}
    seeds = [gains_and_losses(part) for _, part in clients.groupby("seed")]
    return mean_cells([{f"worse_than_{name}": 100 * s.worse, f"loses_to_{name}": 100 * s.loses} for s in seeds])


def add_rates(table: Table) -> None:
    """Adds the columns `learning_rate` and, as a detail, `rate_chosen`, and the note on the marks.

    Runs of older versions do not say who chose their rate; their rows have no cell.
    """
    first = dict(list(table.columns.items())[:2])  # seeds and rounds
    columns = {
        "learning_rate": TableColumn("learning rate", ".3g"),
        "rate_chosen": TableColumn("whether the rate was chosen for the data", ".0f", is_detail=True),
    }
    table.columns = first | columns | table.columns
    for group, cells in table.rows:
        rates = group.runs[0].results.get("learning_rates")
        if rates:
            mark = _UNCHOSEN if _unchosen(group) else ""
            cells["learning_rate"] = Cell(float(rates[0]["rate"]), n=len(group.runs), mark=mark)
            cells["rate_chosen"] = Cell(float(not mark), n=len(group.runs))
    said = unchosen_line([group for group, _ in table.rows])
    if said:
        table.notes.append(f"{_UNCHOSEN} {said}")


def _unchosen(group: Group) -> list[str]:
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
    names = [name for group in groups for name in _unchosen(group)]
    if not names:
        return ""
    return (
        f"nobody chose the learning rate of {', '.join(names)} for these data, and another may be much better: "
        "choose one with +tune=learning_rate (docs/trackers.md), in Python with client_optimizer=ClientSGD(lr=...)"
    )


def minimum_cell(runs: list[Run]) -> Cell | None:
    """The least expected test loss, a mean over seeds; None if a run does not have it.

    If each client predicts with one of q models (`n_served_models` in results.json) it is a range, from the best to the
    worst way to merge the true groups into q. Otherwise it is the loss of one model for each client.
    """
    ranges = [_least_losses(run) for run in runs]
    if any(found is None for found in ranges):
        return None
    low, high = np.mean([found for found in ranges if found is not None], axis=0).tolist()
    return Cell(low, n=len(runs), high=high if high > low else None)


def _least_losses(run: Run) -> tuple[float, float] | None:
    minimum = (run.results.get("reference") or {}).get("minimum_loss")
    if minimum is None:
        return None
    n_models = run.results.get("n_served_models")
    by_models = (run.results.get("data") or {}).get("minimum_loss_by_models") or {}
    if n_models is not None and str(n_models) not in by_models:
        return None  # more models than true groups
    low, high = by_models.get(str(n_models), (minimum, minimum))
    return low, high
