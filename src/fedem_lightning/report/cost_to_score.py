"""What each method spends until its test score reaches a target: rounds, megabytes, seconds, simulated time."""

import pandas as pd

from fedem_lightning.report.finished_run import Run
from fedem_lightning.report.groups import Setting, shorten

_COLUMNS = {"round": "target_rounds", "megabytes": "target_megabytes", "training_seconds": "target_seconds"}
"""Columns of the table by columns of `Run.curve`; those of simulated time, time_NETWORK, are target_time_NETWORK."""
_BASELINE = "fedavg"
"""The method whose last scores are the targets unless the user gives one."""


def costs(setting: Setting, target: float | None = None) -> tuple[pd.DataFrame, list[str]]:
    """The costs up to the first evaluated round whose test score (weighted) is the target or better.

    Args:
        setting: the setting to compare.
        target: in the table's unit; None: the last score of FedAvg with the same seed.

    Returns:
        Costs by label and seed, without the seeds that do not reach the target; and notes: what the target is, and
        rows of which some seeds reach it.

    """
    measure, factor = setting.measure
    baseline = next((group for group in setting.groups if group.algorithm == _BASELINE), None)
    last = {run.seed: run.results["test"].get(measure, {}).get("weighted") for run in baseline.runs} if baseline else {}
    targets = {run.seed: last.get(run.seed) if target is None else target / factor for run in setting.runs}
    found: dict[tuple[str, int], dict[str, float]] = {}
    for group in setting.groups:
        for run in group.runs:
            goal = targets[run.seed]
            if goal is not None and (spent := _spent(run, measure, goal)):
                found[group.label, run.seed] = spent
    if not found:
        return pd.DataFrame(), []
    score = f"test {setting.unit.partition(',')[0]}"
    own = f"a {score} of {target:g}{' %' if factor == 100 else ''}" if target is not None else ""
    reached = own or f"the {score} of {_BASELINE}'s last round"
    notes = [f"target: {reached}; costs are counted up to the first evaluated round that has it"]
    for group in setting.groups:
        n = sum((group.label, run.seed) in found for run in group.runs)
        if n < len(group.runs) and any(run.metrics is not None for run in group.runs):
            notes.append(f"{shorten(group.label)}: {n} of {len(group.runs)} seeds reach the target")
    return pd.DataFrame.from_dict(found, orient="index"), notes


def _spent(run: Run, measure: str, target: float) -> dict[str, float]:
    """The costs of a run up to the first evaluation that reaches the target; empty if none does."""
    curve = run.curve("round")
    if curve is None or f"test/{measure}" not in curve:
        return {}
    reaches = curve[f"test/{measure}"] * run.sign >= target * run.sign - 1e-6  # metrics.csv has float32
    names = _COLUMNS | {name: f"target_{name}" for name in map(str, curve) if name.startswith("time_")}
    first = curve[reaches].head(1)
    return {} if first.empty else {key: float(first[name].iloc[0]) for name, key in names.items() if name in curve}
