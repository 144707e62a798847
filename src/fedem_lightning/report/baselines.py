"""Columns of the table of scores: the share of clients that a method serves worse than Local and than FedAvg do."""

from fedem_lightning.report.cells import Cell, Column, Table, cell
from fedem_lightning.report.groups import BASELINES, Group, Setting
from fedem_lightning.report.paired import compare_clients, gains_and_losses


def add_baselines(table: Table) -> None:
    """Adds the columns `worse_than_NAME` and, as a detail, `loses_to_NAME`: clients beyond chance; both in percent.

    A setting with several rows of a baseline takes the first one without an adaptation.
    """
    for name in BASELINES:
        baseline = _baseline(table.setting, name)
        if baseline is None:
            continue
        table.columns[f"worse_than_{name}"] = Column(f"worse than {name}, %", ".0f")
        table.columns[f"loses_to_{name}"] = Column(f"worse than {name} beyond chance, %", ".1f", is_detail=True)
        for group, cells in table.rows:
            cells |= {} if group is baseline else _shares(group, baseline, name)


def _baseline(setting: Setting, name: str) -> Group | None:
    return next((group for group in setting.groups if group.algorithm == name), None)


def _shares(group: Group, baseline: Group, name: str) -> dict[str, Cell]:
    """The two cells of a row, with mean and deviation over the common seeds."""
    clients = compare_clients(group, baseline)
    if clients is None:
        return {}
    seeds = [gains_and_losses(part) for _, part in clients.groupby("seed")]
    columns = {
        f"worse_than_{name}": cell(100 * shares.worse for shares in seeds),
        f"loses_to_{name}": cell(100 * shares.loses for shares in seeds),
    }
    return {key: found for key, found in columns.items() if found is not None}
