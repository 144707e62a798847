"""The figures of a report by their names: the first four by default, the others if the user names them."""

from collections.abc import Callable, Sequence
from functools import partial

import matplotlib as mpl

from fedem_lightning.errors import one_line, require
from fedem_lightning.report.curves import curves
from fedem_lightning.report.drawing import STYLE, Drawn, looks
from fedem_lightning.report.groups import Group, Setting
from fedem_lightning.report.mixture_figures import weights_figure
from fedem_lightning.report.score_figures import gains_figure, main_pair, percentile_figure, seeds_figure
from fedem_lightning.report.scores_table import Table

DEFAULT = ("curves", "seeds", "clients", "mixture")


def figures_of(
    tables: Sequence[Table], names: Sequence[str] | None, pairs: Sequence[tuple[Setting, Group, Group]] = ()
) -> tuple[list[Drawn], list[str]]:
    """The figures with these names, and a line for each that could not be drawn.

    Args:
        tables: the tables of the report; figures have a panel for each.
        names: of the figures; None: the default ones for which the runs have data.
        pairs: the rows of the figure `gains`; none: the main method and a baseline.

    Raises:
        UserError: there is no such name.

    """
    settings = [table.setting for table in tables]
    rows, found, notes = looks(settings), [], []
    makers: dict[str, Callable[[], Drawn | None]] = {
        "curves": lambda: curves("curves", settings, rows),
        "seeds": lambda: seeds_figure("seeds", tables, rows),
        "clients": lambda: percentile_figure("clients", settings, rows),
        "mixture": lambda: weights_figure("mixture", settings),
        "gains": lambda: gains_figure("gains", pairs or [p for s in settings if (p := main_pair(s))], rows),
        "megabytes": lambda: curves("megabytes", settings, rows, "megabytes"),
    }
    columns = {str(name) for s in settings for run in s.runs if run.metrics is not None for name in run.metrics}
    for name in sorted(name for name in columns if name.startswith("time_")):
        makers[name] = partial(curves, name, settings, rows, name)
    for name in names or ():
        require(name in makers, f"--figures: no figure {one_line(name)!r}; expected some of {', '.join(makers)}")
    with mpl.rc_context(STYLE):
        for name in dict.fromkeys(DEFAULT if names is None else names):
            try:
                drawn = makers[name]()
            except Exception as error:  # whatever a damaged file holds: it costs its figure, and not the report
                notes.append(f"the figure {name} could not be drawn ({type(error).__name__}: {one_line(error)})")
            else:
                found += [] if drawn is None else [drawn]
                notes += [f"no run has data for the figure {name}"] if names is not None and drawn is None else []
    return found, notes
