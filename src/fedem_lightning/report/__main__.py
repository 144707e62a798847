"""`python -m fedem_lightning.report DIR...`: compare finished runs with one another and with the papers."""

import argparse
from pathlib import Path

from rich.console import Console

from fedem_lightning.commands import Parser, one_line_for_mistakes
from fedem_lightning.errors import UserError, require
from fedem_lightning.report.bounds import bounds_table
from fedem_lightning.report.choice import Chosen, choose
from fedem_lightning.report.collect import Run, Skipped, find_runs
from fedem_lightning.report.components import components_table
from fedem_lightning.report.equal_communication import equal_communication_table
from fedem_lightning.report.figures import report_figures
from fedem_lightning.report.groups import group_runs
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
    parser.add_argument(
        "--equal-communication",
        action="store_true",
        help="compare at the megabytes that the cheapest method used, not after the last round",
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
    both = chosen.choose is not None and chosen.equal_communication
    require(not both, "--choose: chosen rows have no curve, so leave out --equal-communication")
    papers = Papers(chosen.table)
    if chosen.out is not None:  # before any work; the figures' names are checked once they are known
        check_free(chosen.out, ["report.md", "report.csv"], chosen.force)
    runs, skipped = find_runs(chosen.folders)
    if not runs:
        _print_skipped(skipped)
        raise UserError(f"{', '.join(chosen.folders)}: no complete run, {len(skipped)} unfinished or broken")
    if chosen.choose is not None:
        runs += choose(runs, chosen.choose)
    report = _build(runs, skipped, papers, chosen.equal_communication, figures=chosen.out is not None)
    print_report(report)
    if chosen.out is not None:
        paths = write_report(report, chosen.out, chosen.force)
        print(f"written: {chosen.out} ({', '.join(path.name for path in paths)})")


def _build(runs: list[Run], skipped: list[Skipped], papers: Papers, equal_communication: bool, figures: bool) -> Report:
    settings, notes = group_runs(runs)
    main_table = equal_communication_table if equal_communication else scores_table
    tables, n_runs = [], 0
    for setting in settings:
        shown = [run for group in setting.groups for run in group.runs]
        chosen = [run for run in shown if isinstance(run, Chosen)]
        n_runs += len(shown) - len(chosen)
        scores = main_table(setting, papers)
        scores.notes += [run.note for run in chosen]
        others = (components_table(setting, papers), bounds_table(setting))
        tables += [scores, *(table for table in others if table is not None)]
    return Report(tables, n_runs, skipped, notes, report_figures(settings) if figures else {})


def _print_skipped(skipped: list[Skipped]) -> None:
    print_report(Report([], 0, skipped), Console())


if __name__ == "__main__":
    main()
