"""The table of generalisation bounds: differences between clients, and the number of clients for each suggestion."""

from typing import Any

from fedem_lightning.report.cells import Cell, Column, Table, cell
from fedem_lightning.report.finished_run import Run
from fedem_lightning.report.groups import Setting
from fedem_lightning.report.markup import shorten

_COLUMNS = {
    "seeds": Column("seeds", ".0f"),
    "dimension": Column("dimension"),
    "skewness": Column("skewness", ".3g"),
    "discrepancy_smallest": Column("discrepancy: smallest", ".3g"),
    "discrepancy_median": Column("median", ".3g", ".1g"),
    "discrepancy_top_decile": Column("90 %", ".3g", ".1g"),
    "discrepancy_largest": Column("largest", ".3g"),
    "suggest_local": Column("clients for local", ".4g", ".2g"),
    "suggest_global": Column("global", ".4g", ".2g"),
    "suggest_cluster": Column("cluster", ".4g", ".2g"),
    "suggest_interpolate": Column("interpolate", ".4g", ".2g"),
}


def bounds_table(setting: Setting) -> Table | None:
    """Skewness, discrepancies and suggestions of runs with `callbacks=bounds`; None if there is no such run."""
    table = Table("bounds", f"{shorten(setting.title)}: generalisation bounds as diagnostics", setting, dict(_COLUMNS))
    for group in setting.groups:
        runs = [_measures(run) for run in group.runs]
        if all(runs):
            found = {key: c for key in runs[0] if (c := cell(r.get(key) for r in runs)) is not None}
            table.rows.append((group, {"seeds": Cell(len(runs)), **found}))
    if table.rows:
        table.notes.append("bounds: their terms without constants, to be compared with one another; no guarantees")
    return table if table.rows else None


def _measures(run: Run) -> dict[str, float | None]:
    bounds: dict[str, Any] = run.results.get("bounds") or {}
    found: dict[str, float | None] = {key: bounds[key] for key in ("dimension", "skewness") if key in bounds}
    found |= {f"discrepancy_{name}": value for name, value in bounds.get("discrepancy", {}).items()}
    return found | {f"suggest_{name}": value for name, value in bounds.get("suggestions", {}).items()}
