"""Figures of a run, as PNG, in the style of all figures."""

import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedem_lightning.errors import one_line
from fedem_lightning.records.files import replacing
from fedem_lightning.records.measures import HIGHER_IS_BETTER, headline
from fedem_lightning.settings.shipped import method_title

PALETTE = ("#d55e00", "#0072b2", "#7f7f7f", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#882255")
"""Okabe and Ito's colours (Color Universal Design, 2008), without black and yellow; grey; and a wine red of Tol's."""
MARKERS = "os^Dv<>P"
"""Markers of Matplotlib; with the colours they repeat after the eighth."""
STYLE: dict[Any, Any] = {
    **dict.fromkeys(("xtick.labelsize", "ytick.labelsize"), 8.5),
    **dict.fromkeys(("axes.spines.top", "axes.spines.right", "legend.frameon"), False),
    **{"axes.labelsize": 9, "axes.linewidth": 0.6, "legend.fontsize": 8, "figure.titlesize": 10},
    **{"axes.grid": True, "axes.axisbelow": True, "grid.color": "#c0c1c2", "grid.linewidth": 0.5},
}
"""Matplotlib's settings while figures are made and saved; reports have the same, and more for their page."""
WIDTH, HEIGHT = 4.9, 3.3
"""Inches of a figure without its legend."""
SPLIT_STYLES = {"train": (PALETTE[2], "--"), "val": (PALETTE[1], "-"), "test": (PALETTE[0], "-")}
SPLIT_NAMES = {"train": "training samples", "val": "validation samples", "test": "test samples"}
POPULATION_COLOURS = {"seen": PALETTE[0], "unseen": PALETTE[1]}
_TITLE_LETTERS = 52
"""Letters of a line of a title, which fit into a figure of `WIDTH`."""
WEIGHTS_WORDS = "Mixture weights of the clients"
GROUPS_SHOWN = 20
"""Largest number of groups for which lines between them and a legend are drawn."""


def draw_figures(
    folder: Path,
    results: dict[str, Any],
    clients: pd.DataFrame,
    artifacts: Mapping[str, Mapping[str, np.ndarray]],
    method: str | None = None,
) -> list[Path]:
    """Draws the figures for which the run has data: scores, mixture weights, collaboration weights.

    Args:
        folder: folder of the figures.
        results: results of the run, see docs/results.md.
        clients: the clients' table.
        artifacts: arrays by file and name; "coefficients" is drawn.
        method: the configuration's title of it.

    Returns:
        Paths of the files.

    """
    measure, _, unit = headline(results["train"])
    title = run_title(results, method)
    name = unit.partition(",")[0]
    with mpl.rc_context(STYLE):
        figures = {
            f"{measure}_by_round": (by_round_words(name), _by_round(folder / "metrics.csv", results, measure)),
            "mixture_weights": (WEIGHTS_WORDS, _mixture_weights(clients)),
            f"{measure}_over_clients": (f"Test {name} over the clients", _over_clients(clients, measure)),
            "coefficients": ("Collaboration weights", coefficients_figure(artifacts.get("coefficients", {}))),
            "embedding": ("Clients by the similarity of their gradients", embedding_figure(clients)),
        }
        drawn = {folder / f"{stem}.png": found for stem, found in figures.items() if found[1] is not None}
        for path, (words, figure) in drawn.items():
            assert figure is not None
            _save(entitled(figure, words, title), path)
    return list(drawn)


def by_round_words(name: str) -> str:
    """The title of the scores by round, such as "Accuracy by round"."""
    return f"{name.capitalize()} by round"


def entitled(figure: Figure, *lines: str) -> Figure:
    """The figure with a title: what it shows, and of which run; long lines are broken, and the longest cut."""
    shown = [line if len(line) <= 120 else line[:119] + "…" for line in map(one_line, lines)]
    broken = [part for line in shown for part in textwrap.wrap(line, _TITLE_LETTERS)]
    figure.suptitle("\n".join(drawn_text(part) for part in broken))
    return figure


def _save(figure: Figure, path: Path) -> None:
    with replacing(path) as temporary:
        figure.savefig(temporary, dpi=150, format="png")


def drawn_text(text: Any, limit: int = 80) -> str:
    """A text on one line that Matplotlib draws as it is.

    Args:
        text: any text; Matplotlib would read what stands between two dollar signs as a formula.
        limit: the most characters that are kept; an ellipsis stands for the others.

    """
    line = one_line(text)
    shown = line if len(line) <= limit else line[: limit - 1] + "…"
    return shown.replace("$", r"\$")


def run_title(names: Mapping[str, Any], method: str | None = None) -> str:
    """The second line of a run's titles: the method, by its name or the configuration's title, the data and seed."""
    return one_line(f"{method_title(names['algorithm'], method)} on {names['dataset']}, seed {names['seed']}")


def draw_rounds(folder: Path, title: str) -> None:
    """Draws the scores by round of an unfinished run, from metrics.csv; nothing before the first evaluation."""
    path = folder / "metrics.csv"
    columns = pd.read_csv(path, nrows=0).columns if path.exists() else pd.Index([])
    measure = headline(str(name).rpartition("/")[2] for name in columns)[0]
    with mpl.rc_context(STYLE):
        figure = _by_round(path, {"reference": {}}, measure)
        if figure is not None:
            words = by_round_words(headline([measure])[2].partition(",")[0])
            _save(entitled(figure, words, title), folder / f"{measure}_by_round.png")


def _by_round(path: Path, results: dict[str, Any], measure: str) -> Figure | None:
    curves = pd.read_csv(path) if path.exists() else pd.DataFrame()
    if f"val/{measure}" not in curves and f"test/{measure}" not in curves:
        return None
    _, factor, unit = headline([measure])
    figure = Figure(figsize=(WIDTH, HEIGHT), layout="constrained")
    axes = figure.subplots()
    for split, (colour, line) in SPLIT_STYLES.items():
        if (column := f"{split}/{measure}") in curves:
            points = curves[["round", column]].dropna()
            alone = {"marker": "o", "markersize": 4} if len(points) == 1 else {}  # a line would not be seen
            look: dict[str, Any] = {"color": colour, "linestyle": line, "label": SPLIT_NAMES[split], **alone}
            axes.plot(points["round"], factor * points[column], **look)
    if "bayes_accuracy" in results["reference"] and measure == "accuracy":
        ceiling = 100 * results["reference"]["bayes_accuracy"]
        axes.axhline(ceiling, color="black", linewidth=0.8, linestyle=":", label=f"Bayes ceiling {ceiling:.1f} %")
    axes.set(xlabel="communication round", ylabel=f"{unit}, seen clients, weighted")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    figure.legend(loc="outside lower center", ncols=3)
    return figure


def _mixture_weights(clients: pd.DataFrame) -> Figure | None:
    names = [name for name in clients if str(name).startswith("pi_")]
    return weights_figure(clients[names].to_numpy(dtype=float)) if names else None


def weights_figure(pi: np.ndarray, width: float = WIDTH, ax: Axes | None = None) -> Figure:
    """Draws mixture weights pi [T, M]: a column for each client, by its largest component, the purest clients first.

    `ax` is where to draw; None: a new figure.
    """
    order = np.lexsort((-pi.max(axis=1), pi.argmax(axis=1)))
    axes = ax or Figure(figsize=(width, 1.6 + 0.35 * pi.shape[1]), layout="constrained").subplots()
    figure = axes.get_figure(root=True)
    assert figure is not None
    image = axes.imshow(pi[order].T, aspect="auto", vmin=0, vmax=1, cmap="viridis", interpolation="nearest")
    axes.set(xlabel="clients, sorted by their largest component", ylabel="component")
    axes.locator_params(integer=True)
    axes.grid(visible=False)
    figure.colorbar(image, ax=axes, label="mixture weight")
    return figure


def _over_clients(clients: pd.DataFrame, measure: str) -> Figure | None:
    scored = clients.dropna(subset=[f"test_{measure}"])
    groups = {str(name): group[f"test_{measure}"].to_numpy() for name, group in scored.groupby("population")}
    return clients_figure(groups, measure) if groups else None


def clients_figure(scores: Mapping[str, np.ndarray], measure: str) -> Figure:
    """Draws the share of the clients whose test score is at most x.

    Args:
        scores: of the clients by population, seen or unseen: [C] each.
        measure: accuracy, loss or mse.

    """
    _, factor, unit = headline([measure])
    figure = Figure(figsize=(WIDTH, HEIGHT), layout="constrained")
    axes = figure.subplots()
    for population, values in scores.items():
        share = 100 * np.arange(1, len(values) + 1) / len(values)
        label = f"{len(values)} {population} client{'s' * (len(values) != 1)}"
        axes.step(np.sort(factor * values), share, where="post", label=label, color=POPULATION_COLOURS[population])
    worst_tenth = 10 if HIGHER_IS_BETTER[measure] else 90
    axes.axhline(worst_tenth, color="black", linewidth=0.8, linestyle=":", label="worst tenth")
    axes.set(xlabel=f"a client's test {unit}", ylabel="clients at or below, %", ylim=(0, 101))
    figure.legend(loc="outside lower center", ncols=3)
    return figure


def coefficients_figure(found: Mapping[str, np.ndarray]) -> Figure | None:
    """Draws W as a heat map, with clients ordered by group."""
    if not found:
        return None
    kind = _kind(found)
    order = np.argsort(found[kind], kind="stable")
    w, group = found["w"][np.ix_(order, order)], found[kind][order]
    others = np.where(np.eye(len(w), dtype=bool), 0.0, w)  # without the diagonal, which would hide the rest
    figure = Figure(figsize=(WIDTH, 4.2), layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(w, vmin=0, vmax=others.max() or 1.0, cmap="viridis", interpolation="nearest")
    borders = np.flatnonzero(np.diff(group)) + 0.5
    if len(borders) < GROUPS_SHOWN:
        for draw in (axes.axhline, axes.axvline):
            for border in borders:
                draw(border, color="white", linewidth=0.8)
    axes.set(xlabel=f"client whose model it is, by {kind.replace('_', ' ')}", ylabel="client that receives it")
    axes.locator_params(integer=True)
    axes.grid(visible=False)
    figure.colorbar(image, label="collaboration weight", extend="max" if w.max() > others.max() > 0 else "neither")
    return figure


def embedding_figure(clients: pd.DataFrame) -> Figure | None:
    """Draws clients as points in the plane, which are near one another if their gradients are similar."""
    placed = clients.dropna(subset=["embedding_0"]) if "embedding_0" in clients else pd.DataFrame()
    if placed.empty:
        return None
    kind = _kind(placed)
    figure = Figure(figsize=(WIDTH, 4.2), layout="constrained")
    axes = figure.subplots()
    if placed[kind].nunique() > GROUPS_SHOWN:
        points = axes.scatter(placed.embedding_0, placed.embedding_1, s=16, c=placed[kind], cmap="viridis")
        figure.colorbar(points, label=f"number of the {kind.replace('_', ' ')}")
    else:
        for i, (name, group) in enumerate(placed.groupby(kind)):
            look: dict[str, Any] = {
                "color": PALETTE[i % len(PALETTE)],
                "marker": MARKERS[(i // len(PALETTE)) % len(MARKERS)],
            }
            label = f"{kind.replace('_', ' ')} {name}"
            axes.scatter(group.embedding_0, group.embedding_1, s=16, label=label, **look)
        # beside the panel it would hide the axis' label; a frame would stay white on a dark page
        figure.legend(loc="outside lower center", ncols=4, frameon=False)
    axes.set(xlabel="gradients, first direction", ylabel="gradients, second direction", aspect="equal")
    return figure


def _kind(found: Any) -> str:
    """The groups to show, with the name of their column."""
    return "true_group" if "true_group" in found else "stream"
