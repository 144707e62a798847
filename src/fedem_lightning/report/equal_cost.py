"""Comparison at equal cost: every method is scored at the total bytes or simulated time of the cheapest method."""

import functools
import math

from fedem_lightning.errors import require
from fedem_lightning.report.cells import Table, TableColumn
from fedem_lightning.report.finished_run import Run
from fedem_lightning.report.groups import Group, Setting
from fedem_lightning.report.papers import Papers, tables_for
from fedem_lightning.report.scores_table import scores_table

_SLACK = 1 + 1e-6  # metrics.csv has float32 megabytes and times


def networks_of(setting: Setting) -> list[str]:
    """The names of all networks in which any of the runs was timed, in alphabetical order."""
    names = {str(name) for run in setting.runs if run.metrics is not None for name in run.metrics}
    return sorted(name.removeprefix("time_") for name in names if name.startswith("time_"))


def check_timed(settings: list[Setting], network: str) -> None:
    """Raises UserError unless some run was timed in `network`."""
    known = sorted({name for setting in settings for name in networks_of(setting)})
    expected = f"expected one of {', '.join(known)}" if known else "no run was timed (docs/communication.md)"
    require(network in known, f"--equal-time {network}: {expected}")


def budget(setting: Setting, cost: str) -> tuple[float, Group] | None:
    """The total cost of the cheapest method that communicates, and this method; None if no method communicates.

    It is the largest cost of the method's seeds, so that each seed is compared at its own last round.

    Args:
        setting: the setting to compare.
        cost: a column of `Run.curve`.

    """
    totals = []
    for group in setting.groups:
        curves = [c for run in group.runs if (c := run.curve(cost)) is not None and c["megabytes"].any()]
        if curves:
            totals.append((max(float(c[cost].max()) for c in curves), group))
    return min(totals, key=lambda pair: pair[0], default=None)


def equal_cost_table(setting: Setting, papers: Papers, network: str | None = None) -> Table:
    """The table of scores at the last evaluated round within the budget; nothing is interpolated.

    Args:
        setting: the setting to compare.
        papers: published numbers to compare with.
        network: network in whose simulated time costs are compared; None: at equal megabytes.

    """
    cost = "megabytes" if network is None else f"time_{network}"
    found = budget(setting, cost)
    limit = math.inf if found is None else found[0]
    scores = functools.partial(_scores_within, cost=cost, limit=limit)
    if network is None:
        what, amount = "scores at equal communication", f"{limit:.4g} MB a client, up and down"
        table = scores_table(setting, papers, what, scores, lambda run: tables_for(run, equal_communication=True))
    else:  # no paper has numbers at equal time
        what, amount = f"scores at equal time ({network})", f"{limit:.4g} of simulated time"
        table = scores_table(setting, papers, what, scores, lambda run: ())
        table.columns[cost] = TableColumn(f"time, {network}")
    table.columns["rounds"] = TableColumn("round used", ".0f")
    if found is not None:
        table.notes.insert(0, f"budget: {amount}, all that {found[1].in_text} used")
    for group, _ in table.rows:
        used = {run.seed: scores(run) for run in group.runs}
        rounds = {seed: last["rounds"] for seed, last in used.items() if last is not None}
        missing = [str(seed) for seed, last in used.items() if last is None]
        if missing:
            table.notes.append(f"{group.in_text}: no evaluated round within the budget (seed {', '.join(missing)})")
        elif len(set(rounds.values())) > 1:
            listed = ", ".join(f"{r:.0f} (seed {s})" for s, r in rounds.items())
            table.notes.append(f"{group.in_text}: rounds used {listed}; the table shows their mean")
    return table


def _scores_within(run: Run, cost: str, limit: float) -> dict[str, float | None] | None:
    measure, factor = run.measure
    metrics = run.curve(cost)
    if metrics is None or f"test/{measure}" not in metrics:
        return None
    within = metrics[metrics[f"test/{measure}"].notna() & (metrics[cost] <= limit * _SLACK)]
    if within.empty:
        return None
    last = within.iloc[-1]
    columns = {
        "weighted": f"test/{measure}",
        "bottom_decile": f"test/{measure}_bottom_decile",
        "train": f"train/{measure}",
        "val": f"val/{measure}",
    }
    scores = {key: factor * float(last[name]) for key, name in columns.items() if name in metrics}
    return {"rounds": float(last["round"]), **scores, "megabytes": float(last["megabytes"]), cost: float(last[cost])}
