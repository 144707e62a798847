"""What each method spends until its test score reaches a target: rounds, megabytes and seconds of training."""

from fedem_lightning.report.cells import Table, TableColumn, mean_cells
from fedem_lightning.report.finished_run import Run
from fedem_lightning.report.groups import Setting
from fedem_lightning.report.scores_table import final_scores

_COSTS = {
    "target_rounds": TableColumn("rounds", ".1f", ".1f"),
    "target_megabytes": TableColumn("MB a client", ".3g", ".2g"),
    "target_seconds": TableColumn("seconds of training", ".3g", ".2g"),
}
_SOURCES = {"target_rounds": "round", "target_megabytes": "megabytes", "target_seconds": "training_seconds"}
"""Columns of `Run.curve`."""
_DEFAULT = "fedavg"
"""The method whose last scores are the targets unless the user gives one."""


def target_table(setting: Setting, target: float | None = None) -> Table | None:
    """The costs up to the first evaluated round whose test score (weighted) is the target or better.

    A row has costs if every seed reaches the target; notes count the seeds of the others.

    Args:
        setting: the setting to compare.
        target: in the table's unit; None: the last score of FedAvg with the same seed.

    Returns:
        The table; None if no row has costs, e.g. without a target and without FedAvg.

    """
    measure, factor = setting.measure
    baseline = next((group for group in setting.groups if group.algorithm == _DEFAULT), None)
    if target is not None:
        reaches = f"reaches {target:.1f} %" if factor == 100 else f"reaches {target:.4g}"
        targets = {run.seed: target for run in setting.runs}
    elif baseline is not None:
        reaches = f"reaches that of {baseline.name}'s last round"
        targets = {run.seed: s for run in baseline.runs if (s := final_scores(run).get("weighted")) is not None}
    else:
        return None
    what = f"cost until the test {setting.unit.partition(',')[0]} {reaches}"
    table = Table(
        "target",
        what,
        setting,
        dict(_COSTS),
        notes=["costs are counted up to the first evaluated round with this score"],
    )
    for group in setting.groups:
        goals = [(run, targets[run.seed] / factor) for run in group.runs if run.seed in targets]
        known = [cost for run, goal in goals if (cost := _cost(run, measure, goal)) is not None]
        table.rows.append((group, mean_cells(known) if len(known) == len(group.runs) else {}))
        if len(known) < len(group.runs) and any(run.metrics is not None for run in group.runs):
            table.notes.append(f"{group.in_text}: {len(known)} of {len(group.runs)} seeds reach it")
    return table if table.filled() else None


def _cost(run: Run, measure: str, target: float) -> dict[str, float | None] | None:
    """The costs of a run up to the first evaluation that reaches the target; None if none does."""
    curve = run.curve("round")
    if curve is None or f"test/{measure}" not in curve:
        return None
    scores = curve[f"test/{measure}"]
    reaches = scores * run.sign >= target * run.sign - 1e-6  # metrics.csv has float32, results.json float64
    if not reaches.any():
        return None
    first = curve[reaches].iloc[0]
    return {key: float(first[name]) for key, name in _SOURCES.items() if name in curve}
