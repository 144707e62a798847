"""The work of `python -m fedem_lightning.report`: it reads folders, then prints and writes the report."""

import argparse
import difflib
import functools
import shlex
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import isfinite
from pathlib import Path

from rich.text import Text

from fedem_lightning.errors import UserError, one_line, require, require_number
from fedem_lightning.report.cells import Table
from fedem_lightning.report.choices import Chosen, choose, recommendation
from fedem_lightning.report.collect import Skipped, find_runs, read_run
from fedem_lightning.report.cost_to_target import target_table
from fedem_lightning.report.diagnostic_tables import components_table
from fedem_lightning.report.equal_cost import check_timed, equal_cost_table
from fedem_lightning.report.figures import by_file_name, report_figures
from fedem_lightning.report.finished_run import Run
from fedem_lightning.report.gains_by_client import client_rows, compared
from fedem_lightning.report.groups import Group, Setting, group_runs
from fedem_lightning.report.page import page
from fedem_lightning.report.papers import Papers
from fedem_lightning.report.ranks import rank_figure, ranked, ranks_csv
from fedem_lightning.report.report_files import REPORT_FILES, Report, check_free, write_report
from fedem_lightning.report.scores_table import scores_table
from fedem_lightning.report.terminal import comparison_parts, print_parts, print_report, watch

_LONGEST = 1e6
"""Seconds between two looks of --watch, above which nobody waits."""
_MainTable = Callable[[Setting, Papers], Table]


def make_report(chosen: argparse.Namespace) -> None:
    """Prints the report that the command's options select, and with `--out` writes it."""
    _check_options(chosen)
    papers = Papers(chosen.table)
    if chosen.watch:
        read = functools.cache(read_run)  # a finished run is read once
        watch(lambda: assemble(*usable_runs(chosen.folders, papers, read), papers)[1], chosen.every)
        return
    if chosen.out is not None:  # before any work; the figures' names are checked once they are known
        check_free(chosen.out, [*REPORT_FILES, *(["compare.csv"] if chosen.compare else [])], chosen.force)
    runs, skipped = usable_runs(chosen.folders, papers)
    if not runs:
        print_report(Report([], 0, skipped))
    require_runs(runs, skipped)
    if chosen.choose is not None:
        runs += choose(runs, chosen.choose)
    settings, report = assemble(runs, skipped, papers, chosen)
    report.main = chosen.main
    known = sorted({group.algorithm for setting in settings for group in setting.groups})
    wrong = f"--main: expected one of {', '.join(known)}, got {one_line(chosen.main)!r}"
    require(chosen.main is None or chosen.main in known, wrong)
    pairs = compared(settings, chosen.compare) if chosen.compare else []
    report.more = {"compare.csv": client_rows(pairs)} if pairs else {}
    report.more |= {"ranks.csv": ranks_csv(report.ranks)} if report.ranks is not None else {}
    print_report(report)
    for setting, a, b in pairs:
        print_parts(comparison_parts(setting, a, b))
    for setting in settings if chosen.recommend else ():
        title = Text(f"\n{setting.title}: recommended by validation scores", style="bold")
        print_parts([title, *(Text(f"  {line}") for line in recommendation(setting))])
    if chosen.out is not None:
        figures, notes = report_figures(settings, papers, chosen.main)
        figures[-1] = ([rank_figure(report.ranks)] if report.ranks is not None else []) + figures.get(-1, [])
        report.notes += notes
        report.figures = by_file_name(drawn for part in figures.values() for drawn in part)
        report.style = chosen.style
        report.page = page(report, settings, figures)
        write_report(report, chosen.out, chosen.force)
        tables = ", ".join([*REPORT_FILES, *report.more])
        print(f"written: {one_line(chosen.out)} ({tables}, and {len(report.figures)} figures as SVG, PNG and PDF)")


def print_sweep(folder: Path) -> None:
    """Prints the table of a sweep's finished runs, if there are any, and the command that makes their page."""
    runs, skipped = usable_runs([folder], Papers()) if folder.is_dir() else ([], [])
    if runs:
        print_report(assemble(runs, skipped, Papers())[1])
        words = shlex.join([str(folder), "--out", str(folder / "report")])
        print(f"a page with figures: python -m fedem_lightning.report {words}")


def _check_options(chosen: argparse.Namespace) -> None:
    require(not chosen.force or chosen.out is not None, "--force: expected --out DIR with it")
    equal = "--equal-communication" if chosen.equal_communication else "--equal-time" if chosen.equal_time else ""
    require(not (chosen.choose and equal), f"--choose: chosen rows have no curve, so leave out {equal}")
    others = ("out", "choose", "compare", "recommend", "main", "target", "labels", "style")
    given = [f"--{name}" for name in others if (value := getattr(chosen, name)) is not None and value is not False]
    given += [equal] * bool(equal)
    require(not (chosen.watch and given), f"--watch: draws the table alone, so leave out {', '.join(given)}")
    require_number("--every", chosen.every, above=0.0, below=_LONGEST)
    require(chosen.target is None or isfinite(chosen.target), f"--target: expected a number, got {chosen.target}")
    require(chosen.style is None or chosen.out is not None, "--style: expected --out DIR with it")


def relabelled(settings: Sequence[Setting], labels: Sequence[str]) -> list[Setting]:
    """The settings with the user's names for rows, each as ROW=NAME; ROW is a label, a name of the page, or a method.

    Raises:
        UserError: no row is called ROW, or two rows of a table would have one name.

    """
    names, known = {}, [name for setting in settings for group in setting.groups for name in _names(group)]
    for text in labels:
        row, _, shown = (part.strip() for part in text.rpartition("="))
        require(bool(row and shown), f"--labels: expected ROW=NAME, got {one_line(text)!r}")
        nearest = difflib.get_close_matches(row, known, 1, cutoff=0)[0]
        require(row in known, f"--labels: no row {one_line(row)!r}; the nearest is {nearest!r}")
        names[row] = one_line(shown)
    found = []
    for setting in settings:
        own = [next((names[name] for name in _names(group) if name in names), "") for group in setting.groups]
        groups = [replace(group, shown=shown) for group, shown in zip(setting.groups, own, strict=True)]
        counts = Counter(group.name for group in groups)
        double = next((name for name, count in counts.items() if count > 1), "")
        require(not double, f"--labels: two rows of {setting.title} would be called {double!r}")
        found.append(replace(setting, groups=groups))
    return found


def _names(group: Group) -> tuple[str, str, str]:
    return group.label, group.name, group.algorithm


def require_runs(runs: Sequence[Run], skipped: Sequence[Skipped]) -> None:
    """Raises UserError, with the first folder that was skipped, if there is no complete run."""
    if not runs:
        first = f"{one_line(skipped[0].folder)}: {skipped[0].reason}"
        raise UserError(f"no complete run: {first}" + f", and {len(skipped) - 1} more" * (len(skipped) > 1))


def usable_runs(
    folders: Sequence[str | Path], papers: Papers, read: Callable[[Path], Run] = read_run
) -> tuple[list[Run], list[Skipped]]:
    """The runs below some folders of which tables can be made, and the others; see `find_runs`."""
    runs, bad = find_runs(folders, read)
    good = []
    for run in runs:
        try:
            assemble([run], [], papers)
        except Exception as error:  # whatever a damaged file leads to: it must not end the report of the others
            bad.append(Skipped(run.folder, f"broken: its files hold something unexpected ({type(error).__name__})"))
        else:
            good.append(run)
    return good, bad


def assemble(
    runs: Sequence[Run],
    skipped: Sequence[Skipped],
    papers: Papers,
    chosen: argparse.Namespace | None = None,
) -> tuple[list[Setting], Report]:
    """All tables of some runs: the settings, and the report without figures.

    Args:
        runs: complete runs.
        skipped: runs that are named only.
        papers: published numbers to compare with.
        chosen: the command's options about costs; None: scores after the last round.

    """
    settings, notes = group_runs(runs)
    if chosen is not None and chosen.labels:
        settings = relabelled(settings, chosen.labels)
    main_table: _MainTable = scores_table
    if chosen is not None and chosen.equal_time:
        check_timed(settings, chosen.equal_time)
    if chosen is not None and (chosen.equal_time or chosen.equal_communication):
        main_table = functools.partial(equal_cost_table, network=chosen.equal_time)
    tables, n_runs = [], 0
    for setting in settings:
        scores = main_table(setting, papers)
        by_client = [run.note for run in setting.runs if isinstance(run, Chosen)]
        scores.notes += by_client
        n_runs += len(setting.runs) - len(by_client)
        target = None if chosen is None else chosen.target
        others = (target_table(setting, target), components_table(setting, papers))
        tables += [scores, *(table for table in others if table is not None)]
    return settings, Report(tables, n_runs, list(skipped), notes, ranks=ranked(tables))
