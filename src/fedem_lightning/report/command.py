"""The work of `python -m fedem_lightning.report`: it reads folders, then prints and writes the report."""

import argparse
import shlex
from collections.abc import Sequence
from pathlib import Path

from fedem_lightning.errors import UserError, one_line, require
from fedem_lightning.report.collect import find_runs
from fedem_lightning.report.figures import figures_of
from fedem_lightning.report.finished_run import Run
from fedem_lightning.report.gains_by_client import compared
from fedem_lightning.report.groups import group_runs
from fedem_lightning.report.papers import Papers
from fedem_lightning.report.report_files import Report, check_free, write_report
from fedem_lightning.report.scores_table import check_columns, scores_table
from fedem_lightning.report.terminal import comparison_parts, print_parts, report_parts


def make_report(chosen: argparse.Namespace) -> None:
    """Prints the report that the command's options select, and with `--out` writes it.

    Raises:
        UserError: an option is wrong, a file would be written over, or no folder has a run that can be read.

    """
    for option in ("force", "figures"):
        require(not getattr(chosen, option) or chosen.out is not None, f"--{option}: expected --out DIR with it")
    papers = Papers(chosen.table)
    if chosen.out is not None:  # before any work
        check_free(chosen.out, ["report.html", "report.csv", "report.tex"], chosen.force)
    report = assemble(chosen.folders, papers)
    report.left_out += check_columns(chosen.columns, report.tables)
    report.columns = chosen.columns
    settings = [table.setting for table in report.tables]
    report.pairs = compared(settings, chosen.compare) if chosen.compare else []
    if chosen.out is not None:
        report.figures, notes = figures_of(report.tables, chosen.figures, report.pairs)
        report.left_out += notes
    print_parts(report_parts(report.tables, report.left_out, chosen.columns))
    for pair in report.pairs:
        print_parts(comparison_parts(*pair))
    if chosen.out is not None:
        written = write_report(report, chosen.out, chosen.force)
        print(f"written: {one_line(chosen.out)} ({', '.join(written)})")


def print_sweep(folder: Path) -> None:
    """Prints the table of a sweep's finished runs, if there are any, and the command that makes their page."""
    if not folder.is_dir() or not find_runs([folder])[0]:
        return
    report = assemble([folder], Papers())
    print_parts(report_parts(report.tables, report.left_out))
    words = shlex.join([str(folder), "--out", str(folder / "report")])
    print(f"a page with figures: python -m fedem_lightning.report {words}")


def assemble(folders: Sequence[str | Path], papers: Papers) -> Report:
    """The tables of all runs below some folders, and a line for each folder that has no readable run.

    Args:
        folders: any folders.
        papers: published numbers to compare with.

    Raises:
        UserError: a folder is missing, or none has a run that can be read.

    """
    runs, skipped = find_runs(folders)
    good: list[Run] = []
    for run in runs:
        try:
            scores_table(group_runs([run])[0][0], papers)
        except Exception as error:  # whatever a damaged file leads to: it must not end the report of the others
            said = one_line(error)[:80]
            unexpected = f"its files lack or hold something unexpected ({type(error).__name__}: {said})"
            skipped.append(f"{one_line(run.folder)}: broken: {unexpected}")
        else:
            good.append(run)
    if not good:
        more = f", and {len(skipped) - 1} more" if len(skipped) > 1 else ""
        raise UserError(f"no run can be read: {skipped[0]}{more}")
    settings, repeated = group_runs(good)
    unreadable = [
        f"{one_line(run.folder)}: {' and '.join(run.unreadable)} cannot be read, so what needs it is missing"
        for run in good
        if run.unreadable
    ]
    lines = [*skipped, *unreadable, *repeated]
    return Report([scores_table(setting, papers) for setting in settings], left_out=lines)
