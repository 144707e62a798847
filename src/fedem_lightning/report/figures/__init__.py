"""Figures over several runs: each is a file, and part of the page."""

import functools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence

from fedem_lightning.report.diagnostic_tables import final_weights
from fedem_lightning.report.figures.drawing import Drawn, DrawnRows
from fedem_lightning.report.figures.mixture_and_clusters import (
    entropy_figure,
    has_structure,
    mixture_figures,
    structure_figures,
)
from fedem_lightning.report.figures.score_figures import all_curves, pair_figure, percentile_figure
from fedem_lightning.report.figures.sweeps import families, sweep, varied_numbers
from fedem_lightning.report.gains_by_client import compare_clients
from fedem_lightning.report.groups import Setting
from fedem_lightning.report.looks import looks
from fedem_lightning.report.papers import Papers

_ROWS_SHOWN = 4
"""Rows of a table whose own figures are drawn: mixture weights, clusters, collaboration weights."""

_Maker = Callable[[], Drawn | list[Drawn] | None]
"""Draws figures, if the runs have data for them."""


def report_figures(settings: Sequence[Setting], papers: Papers) -> tuple[dict[int, list[Drawn]], list[str]]:
    """All figures for which the runs have data, and a line for each that could not be drawn.

    Returns:
        Figures by the index of their setting, those over several settings with -1; lines.

    """
    found, figures, notes = looks(settings), {}, []
    for i, setting in enumerate(settings):
        figures[i], failed = _drawn(_of_setting(DrawnRows(setting, found), papers))
        notes += [f"{setting.title}: {line}" for line in failed]
    figures[-1], failed = _drawn(
        functools.partial(sweep, family, key, found)
        for family in families(settings)
        for key in varied_numbers(family)
        if key.startswith("dataset.")  # other keys are varied within a setting
    )
    return figures, notes + failed


def _drawn(makers: Iterable[_Maker]) -> tuple[list[Drawn], list[str]]:
    """Calls the functions that draw; a damaged file of a run costs its figure, and a line, but not the report."""
    figures, notes = [], []
    for make in makers:
        try:
            made = make()
        except Exception as error:  # whatever a file holds
            notes.append(f"a figure could not be drawn ({type(error).__name__}: {error})")
            continue
        figures += made if isinstance(made, list) else [made] if made is not None else []
    return figures, notes


def by_file_name(figures: Iterable[Drawn]) -> dict[str, Drawn]:
    """The figures by the names of their files, without endings; names that differ only in odd characters stay apart."""
    found: dict[str, Drawn] = {}
    for drawn in figures:
        name = re.sub(r"[^A-Za-z0-9_.=]+", "-", drawn.name).strip("-")[:80]
        while name in found:
            name += "-"
        found[name] = drawn
    return found


def _of_setting(rows: DrawnRows, papers: Papers) -> Iterator[_Maker]:
    """The functions that draw a setting's figures, in their order on the page."""
    setting = rows.setting
    yield functools.partial(all_curves, rows, papers)
    yield functools.partial(percentile_figure, rows)
    yield functools.partial(_main_pair, rows)
    yield functools.partial(entropy_figure, rows)
    with_own = [g for g in setting.groups if final_weights(g.runs[0]) is not None or has_structure(g.runs[0])]
    for group in with_own[:_ROWS_SHOWN]:
        yield functools.partial(mixture_figures, rows, group)
        yield functools.partial(structure_figures, rows, group)
    for key in varied_numbers(setting):
        yield functools.partial(sweep, setting, key, rows.looks)


def _main_pair(rows: DrawnRows) -> Drawn | None:
    """The main method and its rival client by client."""
    first, second = rows.main_pair()
    pairs = compare_clients(first, second) if first is not second else None
    return None if pairs is None or pairs.empty else pair_figure(rows, first, second, pairs)
