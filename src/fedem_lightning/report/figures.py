"""The figures of a report: scores by round and cost, by seed, over clients, client by client; mixture weights."""

from collections.abc import Callable, Sequence
from functools import partial

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba

from fedem_lightning.errors import one_line, require
from fedem_lightning.report.drawing import FIRST, HEIGHT, STYLE, Drawn, Looks, draw_over_seeds, looks, with_panels
from fedem_lightning.report.finished_run import Run
from fedem_lightning.report.gains_by_client import CHANCE_LEVEL, compare_clients, t_interval
from fedem_lightning.report.groups import Group, Setting
from fedem_lightning.report.scores_table import Table
from fedem_lightning.run.figures import GROUPS_SHOWN, by_round_axis, drawn_text, heat_map

DEFAULT = ("curves", "seeds", "clients", "mixture")
_COSTS = {"round": "communication round", "megabytes": "megabytes a client, up and down"}
"""Labels of the x-axis by column of `Run.curve`."""
_MOST_ROWS = 6  # whose mixture weights are drawn
_PERCENTILES = np.arange(1, 101)
_NAME = 200  # letters of a row's name in a legend, which breaks it into lines


def figures_of(
    tables: Sequence[Table], names: Sequence[str] | None, pairs: Sequence[tuple[Setting, Group, Group]] = ()
) -> tuple[list[Drawn], list[str]]:
    """The figures with these names, None for the default ones, and a line for each that could not be drawn."""
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


def curves(name: str, settings: Sequence[Setting], looks: Looks, x: str = "round") -> Drawn | None:
    """Draws scores by `x`, a column of `Run.curve`: the mean over seeds as a line, the range as a band."""
    drawn = [setting for setting in settings if any(_over_seeds(group, x) is not None for group in setting.groups)]
    if not drawn:
        return None
    axis = _COSTS.get(x) or f"simulated time, {drawn_text(x.removeprefix('time_'))}"
    caption = (
        "Mean of the clients that train, weighted by their training samples; "
        f"{drawn[0].seeds}; a band reaches from the least to the largest seed."
    )
    panels = [(setting.title, partial(_draw_curves, setting=setting, looks=looks, x=x, axis=axis)) for setting in drawn]
    return with_panels(name, f"Test {drawn[0].unit.partition(',')[0]} by {axis}", caption, panels)


def _draw_curves(axes: Axes, setting: Setting, looks: Looks, x: str, axis: str) -> None:
    for i, group in enumerate(setting.groups):
        points, look, label = _over_seeds(group, x), looks[group.label], drawn_text(group.name, _NAME)
        if points is None:
            continue
        if x == "megabytes" and not points["x"].any():  # sends nothing: its last score is a level
            axes.axhline(points["mean"].iloc[-1], label=f"{label}, 0 MB", **look)
            continue
        draw_over_seeds(axes, points["x"], points, label, {**look, "zorder": 3 - i / 100})
        if x == "megabytes":
            axes.set_xscale("log")  # a graph of clients sends a hundred times as much as a server
    best = [run.results["reference"].get("bayes_accuracy") for run in setting.runs]
    if setting.measure[0] == "accuracy" and None not in best:
        axes.axhline(100 * np.mean(best), color="black", linewidth=0.8, linestyle=":", label="Bayes")
    axes.set(xlabel=axis, ylabel=f"test {setting.unit}, weighted")
    if x == "round":
        by_round_axis(axes, max(run.results["rounds"] for run in setting.runs))


def _over_seeds(group: Group, x: str) -> pd.DataFrame | None:
    """Points of the curve for each round that all seeds evaluated: x, mean, min, max; None if a seed has no curve."""
    measure, factor = group.runs[0].measure
    column = f"test/{measure}"
    found = [c for run in group.runs if (c := run.curve(x)) is not None and column in c]
    parts = [pd.DataFrame({"round": c["round"], "x": c[x], "y": factor * c[column]}).dropna(subset="y") for c in found]
    if len(parts) < len(group.runs) or any(part.empty for part in parts):
        return None
    by_round = pd.concat(parts).groupby("round")
    points = by_round["y"].agg(["mean", "min", "max", "size"]).assign(x=by_round["x"].mean())
    points = points[points["size"] == len(parts)]
    return None if points.empty else points


def seeds_figure(name: str, tables: Sequence[Table], looks: Looks) -> Drawn | None:
    """Draws each seed's test score as a point, a line a method, with the mean and its 95 % interval; best on top."""
    drawn = [table for table in tables if "weighted" in table.columns]
    height = 0.9 + 0.24 * max((len(table.setting.groups) for table in drawn), default=0)
    caption = (
        "A point is one seed, the bar is the mean; the line is Student's 95 % interval of the mean over seeds, which "
        "are assumed normal."
    )
    panels = [(table.setting.title, partial(_draw_seeds, table=table, looks=looks)) for table in drawn]
    return with_panels(name, "Test score by method", caption, panels, max(HEIGHT, height))


def _draw_seeds(axes: Axes, table: Table, looks: Looks) -> None:
    scores, setting = table.seeds["weighted"].unstack("row"), table.setting
    known = [group for group in setting.groups if np.isfinite(table.value(group, "weighted"))]
    known.sort(key=lambda group: setting.sign * table.value(group, "weighted"))
    for place, group in enumerate(known):
        values, colour = scores[group.label].dropna().to_numpy(), looks[group.label]["color"]
        axes.plot(values, np.full(len(values), place), "o", color=colour, markersize=4, alpha=0.5)
        axes.plot([values.mean()], [place], "|", color=colour, markersize=12, markeredgewidth=2)
        if len(values) > 1:
            axes.plot(t_interval(values), [place, place], color=colour, linewidth=1.2)
    axes.set_yticks(range(len(known)), [drawn_text(group.name, 30) for group in known])
    axes.set(xlabel=f"test {setting.unit}, weighted", ylim=(-0.6, len(known) - 0.4))
    axes.grid(visible=False, axis="y")


def percentile_figure(name: str, settings: Sequence[Setting], looks: Looks) -> Drawn | None:
    """Draws test scores of the clients that train, from the lowest to the highest, with a band over seeds."""
    drawn = [setting for setting in settings if any(map(_quantiles, setting.groups))]
    caption = "The score that this share of the clients does not exceed; a band reaches over the seeds."
    panels = [(setting.title, partial(_draw_percentiles, setting=setting, looks=looks)) for setting in drawn]
    return with_panels(name, "Test scores over clients", caption, panels)


def _draw_percentiles(axes: Axes, setting: Setting, looks: Looks) -> None:
    for group in setting.groups:
        if quantiles := _quantiles(group):
            points = pd.DataFrame(quantiles).agg(["mean", "min", "max"]).T
            draw_over_seeds(axes, _PERCENTILES, points, drawn_text(group.name, _NAME), looks[group.label])
    axes.set(xlabel="percentile of clients, lowest score first", ylabel=f"a client's test {setting.unit}")


def _quantiles(group: Group) -> list[np.ndarray]:
    """The clients' test scores by percentile, for each seed that has any."""
    scores = [run.scored["score"].dropna().to_numpy() for run in group.runs if run.scored is not None]
    return [np.quantile(values, _PERCENTILES / 100, method="inverted_cdf") for values in scores if len(values)]


def main_pair(setting: Setting) -> tuple[Setting, Group, Group] | None:
    """FedEM's row, else the first that is no baseline, and a baseline; None for one row."""
    order = sorted(setting.groups, key=lambda g: (g.algorithm != FIRST[0], g.algorithm in FIRST))
    rivals = sorted(order[1:], key=lambda g: FIRST.index(g.algorithm) if g.algorithm in FIRST else len(FIRST))
    return (setting, order[0], rivals[0]) if rivals else None


def gains_figure(name: str, pairs: Sequence[tuple[Setting, Group, Group]], looks: Looks) -> Drawn | None:
    """Draws every client as a point: its score with the pair's second row to the right, with the first upwards."""
    drawn = [(pair, clients) for pair in pairs if (clients := compare_clients(*pair[1:])) is not None]
    sides = {"above the line" if pair[0].sign > 0 else "below the line" for pair, _ in drawn}
    caption = (
        f"One point a client and seed; {' or, of losses, '.join(sorted(sides))} the first method is better; full "
        "colour: the two models differ on the client's own test samples, p < 0.05; rows with a doubt are not tested."
    )
    panels = [(pair[0].title, partial(_draw_gains, pair=pair, clients=c, looks=looks)) for pair, c in drawn]
    return with_panels(name, "Two methods, client by client", caption, panels, 4.0)


def _draw_gains(axes: Axes, pair: tuple[Setting, Group, Group], clients: pd.DataFrame, looks: Looks) -> None:
    setting, a, b = pair
    colours = [to_rgba(looks[a.label]["color"], 0.9 if p < CHANCE_LEVEL else 0.25) for p in clients["p"]]
    axes.scatter(clients["b"], clients["a"], s=12, color=colours, linewidths=0)
    low, high = np.sort([*axes.get_xlim(), *axes.get_ylim()])[[0, -1]]
    axes.plot([low, high], [low, high], color="black", linewidth=0.7, linestyle=":")
    x, y = (f"{drawn_text(group.name, 30)}, test {setting.unit}" for group in (b, a))
    axes.set(xlim=(low, high), ylim=(low, high), aspect="equal", xlabel=x, ylabel=y)


def weights_figure(name: str, settings: Sequence[Setting]) -> Drawn | None:
    """Draws mixture weights after training: a column a client; of the first seed of each row."""
    rows = [(f"{setting.title}: {group.name}", group.runs[0]) for setting in settings for group in setting.groups]
    drawn = [(title, run, pi) for title, run in rows if (pi := run.weights()) is not None][:_MOST_ROWS]
    caption = (
        "One column a client, sorted by its true group, where the data know it, and its largest component. First seed "
        f"of each row{f', the first {_MOST_ROWS} rows' if len(drawn) == _MOST_ROWS else ''}."
    )
    panels = [(title, partial(_heat_map, pi=pi, groups=_true_groups(run))) for title, run, pi in drawn]
    height = 1.7 + 0.3 * max((pi.shape[1] for *_, pi in drawn), default=0)
    return with_panels(name, "Mixture weights after training", caption, panels, height)


def _true_groups(run: Run) -> np.ndarray | None:
    """The true groups of the clients that train, [T]; None if the data do not know them."""
    clients = run.clients
    if clients is None or "true_group" not in clients:
        return None
    return clients.loc[clients["population"] == "seen", "true_group"].to_numpy()


def _heat_map(axes: Axes, pi: np.ndarray, groups: np.ndarray | None) -> None:
    """Draws weights [T, M], with lines between true groups [T]; few groups have their names below them."""
    names, codes = np.unique(np.zeros(len(pi)) if groups is None else groups, return_inverse=True)
    image = heat_map(axes, pi, codes, "clients" if groups is None else "clients by true group")
    if 1 < len(names) <= GROUPS_SHOWN:
        ends = np.cumsum(np.bincount(codes))
        axes.vlines(ends[:-1] - 0.5, -0.5, pi.shape[1] - 0.5, color="white", linewidth=0.8)
        axes.set_xticks((ends + np.append(0, ends[:-1])) / 2 - 0.5, [str(name) for name in names])
    axes.figure.colorbar(image, ax=axes, label="mixture weight")
