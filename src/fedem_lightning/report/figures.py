"""The figures of a report by their names: the first four by default, the others if the user names them."""

from collections.abc import Callable, Sequence

import matplotlib as mpl

from fedem_lightning.errors import one_line, require
from fedem_lightning.report.curves import curves
from fedem_lightning.report.drawing import STYLE, Drawn, Looks, looks
from fedem_lightning.report.groups import Group, Setting
from fedem_lightning.report.mixture_figures import weights_by_round_figure, weights_figure
from fedem_lightning.report.score_figures import gains_figure, main_pair, percentile_figure, seeds_figure
from fedem_lightning.report.scores_table import Table

DEFAULT = ("curves", "seeds", "clients", "mixture")
_Maker = Callable[[str, Sequence[Table], Looks], Drawn | None]


def _settings(tables: Sequence[Table]) -> list[Setting]:
    return [table.setting for table in tables]


FIGURES: dict[str, _Maker] = {
    "curves": lambda name, tables, looks: curves(name, _settings(tables), looks),
    "seeds": seeds_figure,
    "clients": lambda name, tables, looks: percentile_figure(name, _settings(tables), looks),
    "mixture": lambda name, tables, _: weights_figure(name, _settings(tables)),
    "mixture_by_round": lambda name, tables, _: weights_by_round_figure(name, _settings(tables)),
    "gains": lambda name, tables, looks: gains_figure(name, [p for t in tables if (p := main_pair(t.setting))], looks),
    "megabytes": lambda name, tables, looks: curves(name, _settings(tables), looks, "megabytes"),
    "air_megabytes": lambda name, tables, looks: curves(name, _settings(tables), looks, "air_megabytes"),
    "seconds": lambda name, tables, looks: curves(name, _settings(tables), looks, "training_seconds"),
    "train": lambda name, tables, looks: curves(name, _settings(tables), looks, split="train"),
    "val": lambda name, tables, looks: curves(name, _settings(tables), looks, split="val"),
    "loss": lambda name, tables, looks: curves(name, _settings(tables), looks, measure="loss"),
}
"""Functions from a name, tables and looks to a figure; None if the runs have no data for it."""


def figures_of(
    tables: Sequence[Table], names: Sequence[str] | None, pairs: Sequence[tuple[Setting, Group, Group]] = ()
) -> tuple[list[Drawn], list[str]]:
    """The figures with these names, and a line for each that could not be drawn.

    Args:
        tables: the tables of the report; figures have a panel for each.
        names: names of `FIGURES`, or time_NETWORK; None: the default ones for which the runs have data.
        pairs: the rows of the figure `gains`; none: the main method and a baseline.

    Raises:
        UserError: there is no such name.

    """
    found, notes = [], []
    times = {str(n) for t in tables for r in t.setting.runs if r.metrics is not None for n in r.metrics}
    times = {name for name in times if name.startswith("time_")}
    makers = FIGURES | dict.fromkeys(
        sorted(times), lambda name, tables, looks: curves(name, _settings(tables), looks, name)
    )
    if pairs:
        makers["gains"] = lambda name, _, looks: gains_figure(name, pairs, looks)
    for name in names or ():
        require(name in makers, f"--figures: no figure {one_line(name)!r}; expected some of {', '.join(makers)}")
    with mpl.rc_context(STYLE):
        rows = looks(_settings(tables))
        for name in dict.fromkeys(DEFAULT if names is None else names):
            try:
                drawn = makers[name](name, tables, rows)
            except Exception as error:  # whatever a damaged file holds: it costs its figure, and not the report
                notes.append(f"the figure {name} could not be drawn ({type(error).__name__}: {one_line(error)})")
            else:
                found += [] if drawn is None else [drawn]
                notes += [f"no run has data for the figure {name}"] if names is not None and drawn is None else []
    return found, notes
