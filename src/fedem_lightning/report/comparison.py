"""The work of `python -m fedem_lightning.report`: it reads folders, then prints and writes the report."""

import argparse
import functools
from collections.abc import Callable

from rich.console import Console

from fedem_lightning.errors import UserError, require
from fedem_lightning.report.bounds import bounds_table
from fedem_lightning.report.cells import Table
from fedem_lightning.report.choice import Chosen, choose
from fedem_lightning.report.collect import Skipped, find_runs
from fedem_lightning.report.components import components_table
from fedem_lightning.report.equal_cost import check_timed, equal_cost_table
from fedem_lightning.report.figures import report_figures
from fedem_lightning.report.groups import Setting, group_runs
from fedem_lightning.report.papers import Papers
from fedem_lightning.report.tables import scores_table
from fedem_lightning.report.writing import Report, check_free, print_report, write_report


def compare(chosen: argparse.Namespace) -> None:
    """Prints the report that the command's options select, and with `--out` writes it."""
    require(not chosen.force or chosen.out is not None, "--force: expected --out DIR with it")
    equal = "--equal-communication" if chosen.equal_communication else "--equal-time" if chosen.equal_time else ""
    require(not (chosen.choose and equal), f"--choose: chosen rows have no curve, so leave out {equal}")
    papers = Papers(chosen.table)
    if chosen.out is not None:  # before any work; the figures' names are checked once they are known
        check_free(chosen.out, ["report.md", "report.csv"], chosen.force)
    runs, skipped = find_runs(chosen.folders)
    if not runs:
        _print_skipped(skipped)
        raise UserError(f"{', '.join(chosen.folders)}: no complete run, {len(skipped)} unfinished or broken")
    if chosen.choose is not None:
        runs += choose(runs, chosen.choose)
    settings, notes = group_runs(runs)
    main_table = scores_table
    if chosen.equal_time:
        check_timed(settings, chosen.equal_time)
    if equal:
        main_table = functools.partial(equal_cost_table, network=chosen.equal_time)
    tables, n_runs = _tables(settings, papers, main_table)
    figures = report_figures(settings) if chosen.out is not None else {}
    report = Report(tables, n_runs, skipped, notes, figures)
    print_report(report)
    if chosen.out is not None:
        paths = write_report(report, chosen.out, chosen.force)
        print(f"written: {chosen.out} ({', '.join(path.name for path in paths)})")


def _tables(
    settings: list[Setting], papers: Papers, main_table: Callable[[Setting, Papers], Table]
) -> tuple[list[Table], int]:
    """All tables, and the number of runs in them."""
    tables, n_runs = [], 0
    for setting in settings:
        shown = [run for group in setting.groups for run in group.runs]
        chosen = [run for run in shown if isinstance(run, Chosen)]
        n_runs += len(shown) - len(chosen)
        scores = main_table(setting, papers)
        scores.notes += [run.note for run in chosen]
        others = (components_table(setting, papers), bounds_table(setting))
        tables += [scores, *(table for table in others if table is not None)]
    return tables, n_runs


def _print_skipped(skipped: list[Skipped]) -> None:
    print_report(Report([], 0, skipped), Console())
