"""Figures over several runs: each is a file, and part of the page."""

from collections.abc import Iterable, Sequence

from fedem_lightning.report.figures.base import Drawn, Rows
from fedem_lightning.report.figures.clients import percentiles, scatter
from fedem_lightning.report.figures.curves import all_curves
from fedem_lightning.report.figures.mixture import entropies, mixture_figures
from fedem_lightning.report.figures.structure import structure_figures
from fedem_lightning.report.figures.sweeps import families, sweep, varied_numbers
from fedem_lightning.report.groups import Setting, file_name
from fedem_lightning.report.looks import looks
from fedem_lightning.report.names import row_names
from fedem_lightning.report.paired import compare_clients
from fedem_lightning.report.papers import Papers

ROWS_SHOWN = 8
"""Rows of a table whose own figures are drawn: mixture weights, clusters, collaboration weights."""

__all__ = ["Drawn", "Rows", "by_file_name", "report_figures"]


def report_figures(settings: Sequence[Setting], papers: Papers) -> dict[int, list[Drawn]]:
    """All figures for which the runs have data, by the index of their setting; figures over settings have -1."""
    found = looks(settings)
    figures = {i: _of_setting(Rows(s, row_names(s), found), papers) for i, s in enumerate(settings)}
    over = [
        sweep(family, key, found)
        for family in families(settings)
        for key in varied_numbers(family)
        if key.startswith("dataset.")  # other keys are varied within a setting
    ]
    return figures | {-1: [drawn for drawn in over if drawn is not None]}


def by_file_name(figures: Iterable[Drawn]) -> dict[str, Drawn]:
    """The figures by the names of their files, without endings; names that differ only in odd characters stay apart."""
    found: dict[str, Drawn] = {}
    for drawn in figures:
        name = file_name(drawn.name)
        while name in found:
            name += "-"
        found[name] = drawn
    return found


def _of_setting(rows: Rows, papers: Papers) -> list[Drawn]:
    setting = rows.setting
    drawn = [*all_curves(rows, papers), percentiles(rows), _main_pair(rows), entropies(rows)]
    own = [[*mixture_figures(rows, g), *structure_figures(rows, g)] for g in setting.groups]
    drawn += [figure for figures in [o for o in own if o][:ROWS_SHOWN] for figure in figures]
    drawn += [sweep(setting, key, rows.looks) for key in varied_numbers(setting)]
    return [figure for figure in drawn if figure is not None]


def _main_pair(rows: Rows) -> Drawn | None:
    """The main method and its rival client by client."""
    first, second = rows.main_pair()
    pairs = compare_clients(first, second) if first is not second else None
    return None if pairs is None or pairs.empty else scatter(rows, first, second, pairs)
