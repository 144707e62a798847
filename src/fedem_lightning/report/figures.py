"""All figures of a report, each a file and part of the page."""

import functools
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence

import matplotlib as mpl

from fedem_lightning.report.client_figures import main_pair_figure, percentile_figure, size_figure, spread_figure
from fedem_lightning.report.curves import all_curves
from fedem_lightning.report.data_card import data_figures
from fedem_lightning.report.diagnostic_tables import final_weights
from fedem_lightning.report.drawing import STYLE, Drawn, DrawnRows, looks
from fedem_lightning.report.groups import Setting
from fedem_lightning.report.mixture_figures import entropy_figure, has_structure, mixture_figures, structure_figures
from fedem_lightning.report.papers import Papers
from fedem_lightning.report.score_figures import families, seeds_figure, sweep, varied_numbers

_ROWS_SHOWN = 4
"""Rows of a table whose own figures are drawn: mixture weights, clusters, collaboration weights."""
_Maker = Callable[[], Drawn | list[Drawn] | None]
"""Draws figures, if the runs have data for them."""


def report_figures(
    settings: Sequence[Setting], papers: Papers, main: str | None = None
) -> tuple[dict[int, list[Drawn]], list[str]]:
    """All figures for which the runs have data, and a line for each that could not be drawn.

    Args:
        settings: the settings of the report.
        papers: published numbers.
        main: see `looks`.

    Returns:
        Figures by the index of their setting, those over several settings with -1; lines.

    """
    found, notes = looks(settings, main), []
    figures: dict[int, list[Drawn]] = defaultdict(list)
    makers = [(i, make) for i, s in enumerate(settings) for make in _of_setting(DrawnRows(s, found), papers)]
    for family in families(settings):  # keys that are not the data's are varied within a setting
        keys = [key for key in varied_numbers(family) if key.startswith("dataset.")]
        makers += [(-1, functools.partial(sweep, DrawnRows(family, found), key)) for key in keys]
    with mpl.rc_context(STYLE):
        for i, make in makers:
            try:
                made = make()
            except Exception as error:  # whatever a damaged file holds: it costs its figure, and not the report
                where = f"{settings[i].title}: " if i >= 0 else ""
                notes.append(f"{where}a figure could not be drawn ({type(error).__name__}: {error})")
            else:
                figures[i] += made if isinstance(made, list) else [made] if made is not None else []
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
    yield functools.partial(seeds_figure, rows)
    yield functools.partial(data_figures, rows)
    yield functools.partial(all_curves, rows, papers)
    for draw in (percentile_figure, spread_figure, size_figure, main_pair_figure, entropy_figure):
        yield functools.partial(draw, rows)
    with_own = [g for g in rows.setting.groups if final_weights(g.runs[0]) is not None or has_structure(g.runs[0])]
    for group in with_own[:_ROWS_SHOWN]:
        yield functools.partial(mixture_figures, rows, group)
        yield functools.partial(structure_figures, rows, group)
    for key in varied_numbers(rows.setting):
        yield functools.partial(sweep, rows, key)
