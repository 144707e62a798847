"""Comparison at equal communication: every method at the bytes that the cheapest one used in total."""

import pandas as pd

from fedem_lightning.report.cells import Table
from fedem_lightning.report.collect import Run
from fedem_lightning.report.groups import Group, Setting
from fedem_lightning.report.papers import Papers
from fedem_lightning.report.tables import build

_SLACK = 1 + 1e-6  # metrics.csv has float32 megabytes


def curve(run: Run) -> pd.DataFrame | None:
    """metrics.csv with a column `megabytes`, up and down together, for each client that trains; None without it."""
    metrics = run.metrics
    if metrics is None or not {"round", "up_megabytes", "down_megabytes"} <= set(metrics):
        return None
    total = metrics["up_megabytes"] + metrics["down_megabytes"]
    return metrics.assign(megabytes=total / max(1, run.results["n_clients"]))


def budget(setting: Setting) -> tuple[float, Group] | None:
    """Megabytes a client of the cheapest method that communicates at all, and that method; None if none does.

    The largest of its seeds counts, so that every one of them is compared at its own last round.
    """
    totals = []
    for group in setting.groups:
        curves = [c for run in group.runs if (c := curve(run)) is not None and len(c)]
        used = max((float(c["megabytes"].max()) for c in curves), default=0.0)
        if used > 0:
            totals.append((used, group))
    return min(totals, key=lambda pair: pair[0], default=None)


def equal_communication_table(setting: Setting, papers: Papers) -> Table:
    """Scores at the last evaluated round within the budget; nothing is interpolated.

    Args:
        setting: what to compare.
        papers: what to compare it with.

    """
    found = budget(setting)
    limit = float("inf") if found is None else found[0]
    what = "scores at equal communication"
    table = build(setting, papers, what, lambda run: _scores_within(run, limit), equal_communication=True)
    table.columns["rounds"] = type(table.columns["rounds"])("round used", ".0f")
    if found is not None:
        table.notes.insert(0, f"budget: {found[0]:.4g} MB a client, up and down, all that {found[1].label} used")
    for group, _ in table.rows:
        used = {run.seed: _scores_within(run, limit) for run in group.runs}
        rounds = {seed: scores["rounds"] for seed, scores in used.items() if scores is not None}
        missing = [str(seed) for seed, scores in used.items() if scores is None]
        if missing:
            table.notes.append(f"{group.label}: no evaluated round within the budget (seed {', '.join(missing)})")
        elif len(set(rounds.values())) > 1:
            listed = ", ".join(f"{r:.0f} (seed {s})" for s, r in rounds.items())
            table.notes.append(f"{group.label}: rounds used {listed}; the table shows their mean")
    return table


def _scores_within(run: Run, limit: float) -> dict[str, float | None] | None:
    measure, factor = run.measure
    metrics = curve(run)
    if metrics is None or f"test/{measure}" not in metrics:
        return None
    within = metrics[metrics[f"test/{measure}"].notna() & (metrics["megabytes"] <= limit * _SLACK)]
    if within.empty:
        return None
    last = within.iloc[-1]
    columns = {
        "weighted": f"test/{measure}",
        "bottom_decile": f"test/{measure}_bottom_decile",
        "train": f"train/{measure}",
    }
    scores = {key: factor * float(last[name]) for key, name in columns.items() if name in metrics}
    return {"rounds": float(last["round"]), **scores, "megabytes": float(last["megabytes"])}
