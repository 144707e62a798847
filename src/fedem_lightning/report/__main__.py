"""`python -m fedem_lightning.report DIR...`: compare finished runs with one another and with the papers."""

import argparse
import functools
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from fedem_lightning.commands import Parser, one_line_for_mistakes
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


def main(arguments: list[str] | None = None) -> None:
    """Entry point; exit code 2 and one line for a user's mistake.

    Args:
        arguments: of the command line; None: the process's own.

    """
    with one_line_for_mistakes():
        _report(_parser().parse_args(arguments))


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="python -m fedem_lightning.report", description=__doc__)
    parser.add_argument("folders", nargs="+", metavar="DIR", help="a run's folder, or any folder above runs")
    parser.add_argument("--out", type=Path, metavar="DIR", help="also write report.md, report.csv and figures there")
    parser.add_argument("--force", action="store_true", help="with --out: write over an earlier report")
    parser.add_argument(
        "--table", metavar="NAME", help="the paper's table to compare with, e.g. fedem-table-7; default: what fits"
    )
    equal = parser.add_mutually_exclusive_group()
    equal.add_argument(
        "--equal-communication",
        action="store_true",
        help="compare at the megabytes that the cheapest method used, not after the last round",
    )
    equal.add_argument(
        "--equal-time", metavar="NETWORK", help="compare at the simulated time that the cheapest method used"
    )
    parser.add_argument(
        "--choose",
        metavar="KEY",
        help="adds rows in which every client takes the value of KEY with its lowest validation loss, "
        "e.g. algorithm.n_components",
    )
    return parser


def _report(chosen: argparse.Namespace) -> None:
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
    """All tables, and how many runs are in them."""
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


if __name__ == "__main__":
    main()
